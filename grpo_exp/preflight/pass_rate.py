"""How often the starting policy is right, overall and by category, and what that means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from grpo_exp.preflight.base import Finding, Line, percent, with_interval
from grpo_exp.preflight.samples import Samples
from grpo_exp.stats import Interval, bootstrap_mean

if TYPE_CHECKING:
    from grpo_exp.config import Config
    from grpo_exp.preflight.options import PreflightOptions


@dataclass(frozen=True)
class PassRate:
    """pass@1.

    Attributes:
        prompts, samples, temperature: how it was measured.
        overall, by_category: with intervals over prompts.
        none_right, all_right: shares of prompts.
        meaning: in words.
        worked: the items have worked targets.
        pass_rates: the file with the rates of all training items; None where some were not sampled.
    """

    prompts: int
    samples: int
    temperature: float
    overall: Interval
    by_category: dict[str, Interval]
    none_right: float
    all_right: float
    meaning: str
    worked: bool
    pass_rates: str | None

    @classmethod
    def of(cls, samples: Samples, options: PreflightOptions, folder: Path) -> PassRate:
        rate = torch.tensor(samples.right, dtype=torch.float64) / samples.each  # [B]
        categories = [example.category for example in samples.examples]
        names = list(dict.fromkeys(categories))
        parts = {name: rate[torch.tensor([c == name for c in categories])] for name in names if len(names) > 1}
        overall = bootstrap_mean(rate)
        return cls(
            len(samples.examples),
            samples.each,
            samples.temperature,
            overall,
            {name: bootstrap_mean(part) for name, part in parts.items()},
            (rate == 0).double().mean().item(),
            (rate == 1).double().mean().item(),
            meaning(overall.value, options),
            all(example.target is not None for example in samples.examples),
            str(folder / "pass_rates.jsonl") if len(samples.examples) == samples.pool else None,
        )

    def lines(self) -> list[Line]:
        return [
            ("pass@1", f"{with_interval(self.overall)}: {self.meaning}"),
            *((f"  {name or 'no category'}", with_interval(interval)) for name, interval in self.by_category.items()),
        ]

    def findings(self, config: Config) -> Iterator[Finding]:
        options, rate = config.preflight, self.overall.value
        assert options is not None
        if not config.algo.online:
            return
        if rate < options.hard:
            tries = [*self._between(config), *(["algo=sft"] if self.worked else [])]
            yield Finding("warn", f"pass@1 is {percent(rate)}: {self.meaning}", tries)
        elif rate > options.easy:
            yield Finding("warn", f"pass@1 is {percent(rate)}: {self.meaning}", self._between(config))

    def _between(self, config: Config) -> list[str]:
        """Overrides that keep the items from which something can be learned, as far as the data has such options."""
        options = config.preflight
        assert options is not None
        learnable = [name for name, it in self.by_category.items() if options.hard <= it.value <= options.easy]
        tries = [f"data.levels=[{','.join(learnable)}]"] if learnable and hasattr(config.data, "levels") else []
        if self.pass_rates is not None and hasattr(config.data, "keep_between"):
            tries.append(f"data.pass_rates={self.pass_rates} data.keep_between=[0.1,0.9]")
        return tries


def meaning(rate: float, options: PreflightOptions) -> str:
    """What a pass@1 says of the training to come."""
    fertile = f"{100 * options.fertile_low:g} to {100 * options.fertile_high:g} %"
    if rate < options.hard:
        return (
            f"under {100 * options.hard:g} %, it will hardly learn, since few groups hold a right sample. Easier items, a "
            "supervised stage before, or a reward that also pays for part of the way"
        )
    if rate > options.easy:
        return f"over {100 * options.easy:g} %, there is nothing left to learn. Harder items"
    if rate < options.fertile_low:
        return f"it can learn, slower than from the fertile {fertile}"
    if rate > options.fertile_high:
        return f"it can learn, with less to gain than from the fertile {fertile}"
    return f"in the fertile range of {fertile}"
