"""In how many groups nothing can be learned, since all samples earn the same, and the group size that would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from grpo_exp.preflight.base import Finding, Line, percent, with_interval
from grpo_exp.preflight.difficulty import Difficulty, alike
from grpo_exp.preflight.samples import Samples
from grpo_exp.stats import Interval, bootstrap_mean

if TYPE_CHECKING:
    from grpo_exp.config import Config

SIZES = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Size:
    """The share of groups of G samples whose outcomes are all equal; predicted where there are fewer samples than that."""

    G: int
    share: Interval
    measured: bool


@dataclass(frozen=True)
class Contrast:
    """Groups without contrast.

    Attributes:
        rewards: share of groups of the run's G whose rewards are all equal.
        outcomes: share whose outcomes are.
        by_size: the latter by group size.
        predicted: the latter at the run's G as the prediction has it, to hold against what is measured.
        would_do: the smallest group size at which few enough groups have none; None where none of SIZES is.
        reward: the one value that all of the `samples` have; None where they differ.
    """

    G: int
    rewards: Interval
    outcomes: Interval
    by_size: list[Size]
    predicted: Interval
    would_do: int | None
    reward: float | None
    samples: int

    @classmethod
    def of(cls, samples: Samples, G: int, flat: float) -> Contrast:
        belief = Difficulty(samples.right, samples.each)
        counts = samples.counts("outcome")

        def by(size: int) -> Size:
            if size > samples.each:
                return Size(size, belief.without_contrast(size), False)
            return Size(size, _mean(counts, size), True)

        sizes = [by(size) for size in sorted({*SIZES, G} - {1})]
        values = {row["total"] for row in samples.rows}
        return cls(
            G,
            _mean(samples.counts("total"), G),
            _mean(counts, G),
            sizes,
            belief.without_contrast(G),
            next((size.G for size in sizes if size.share.value <= flat), None),
            values.pop() if len(values) == 1 else None,
            len(samples.rows),
        )

    def lines(self) -> list[Line]:
        told = [f"{one.G} {100 * one.share.value:.0f} %{'' if one.measured else '*'}" for one in self.by_size]
        star = "" if all(one.measured for one in self.by_size) else "  (* predicted from the pass rates)"
        do = f"G={self.would_do} would do" if self.would_do else "no G up to 64 would do"
        return [
            ("no contrast", f"{with_interval(self.rewards)} of groups at G={self.G} have equal rewards; {do}"),
            ("  by G", f"equal outcomes: {', '.join(told)}{star}"),
        ]

    def findings(self, config: Config) -> Iterator[Finding]:
        options, root = config.preflight, config.root
        assert options is not None
        if not config.algo.online:
            return
        if self.reward is not None:
            yield Finding(
                "stop",
                f"all {self.samples} samples earn {self.reward:g}, so there is nothing to learn from; what they are "
                "is in samples.jsonl",
                ["temperature=1"] if root.temperature < 0.5 else [],
            )
        elif compares(config) and self.rewards.value == 1:
            yield Finding(
                "stop",
                f"in no group do the rewards of its G={self.G} samples differ, so every advantage is 0",
                self._tries(config),
            )
        elif compares(config) and self.rewards.value > options.flat:
            yield Finding(
                "warn",
                f"{percent(self.rewards.value)} of the groups have equal rewards and teach nothing, while they cost as much as "
                "the others",
                self._tries(config),
            )
        elif self.outcomes.value > options.flat and compares(config):
            yield Finding(
                "note",
                f"in {percent(self.outcomes.value)} of the groups all samples are right or all are wrong: what they teach "
                "comes from the shaping parts of the reward alone",
                self._tries(config),
            )
        if compares(config) and self.G < 4:
            yield Finding(
                "warn",
                f"G={self.G}: a sample is compared with the mean of {self.G}, which is mostly noise"
                + (
                    "; with two samples every advantage is +-0.71 or 0, however much the rewards differ"
                    if self.G == 2 and getattr(config.algo, "std", "") == "group"
                    else ""
                ),
                [_with_size(config, 8)],
            )

    def _tries(self, config: Config) -> list[str]:
        larger = [_with_size(config, self.would_do)] if self.would_do and self.would_do > self.G else []
        warmer = ["temperature=1"] if config.root.temperature < 1 else []
        may = not (config.experience.dynamic_sampling or config.hardware.overlap)
        asks = may and self.rewards.value < 1
        return larger + warmer + (["experience.dynamic_sampling=true"] if asks else [])


def compares(config: Config) -> bool:
    """Whether the algorithm learns from differences within a group alone."""
    has_other = "none" if config.algo.critic is not None else "pairs"
    return config.algo.online and getattr(config.algo, "baseline", has_other) != "none"


def _with_size(config: Config, size: int) -> str:
    """Another G at the same number of samples a step, as far as that goes."""
    root = config.root
    prompts = max(1, root.prompts_per_step * root.G // size)
    return f"G={size}" + (f" prompts_per_step={prompts}" if prompts != root.prompts_per_step else "")


def _mean(counts: list[list[int]], size: int) -> Interval:
    """The chance that `size` samples are alike, averaged over prompts."""
    return bootstrap_mean(torch.tensor([alike(one, size) for one in counts], dtype=torch.float64))
