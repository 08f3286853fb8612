"""How long completions get, how many are cut off, whether they end at all, and the limit that would do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from grpo_exp.preflight.base import Finding, Line, percent
from grpo_exp.preflight.samples import Samples

if TYPE_CHECKING:
    from grpo_exp.config import Config
    from grpo_exp.preflight.options import PreflightOptions


@dataclass(frozen=True)
class Length:
    """Lengths in tokens, the end of sequence included.

    Attributes:
        quantiles: of all samples, by name.
        truncated: share of samples cut off at the limit.
        ended: share that ends with an end of sequence; others that are not cut off end with a stop string.
        limit: max_new_tokens.
        proposed: what it might be.
    """

    quantiles: dict[str, float]
    mean: float
    truncated: float
    ended: float
    limit: int
    proposed: int

    @classmethod
    def of(cls, samples: Samples, limit: int, options: PreflightOptions) -> Length:
        length = torch.tensor([row["length"] for row in samples.rows], dtype=torch.float64)  # [N]
        finished = torch.tensor([row["finished"] for row in samples.rows])
        named = {"p5": 0.05, "p50": 0.5, "p95": 0.95, "p99": 0.99, "longest": 1.0}
        truncated = (~finished).double().mean().item()
        return cls(
            {name: length.quantile(q, interpolation="higher").item() for name, q in named.items()},
            length.mean().item(),
            truncated,
            samples.ended / len(length),
            limit,
            _proposed(length[finished], truncated, limit, options),
        )

    def lines(self) -> list[Line]:
        spread = ", ".join(f"{name} {value:.0f}" for name, value in self.quantiles.items())
        do = f"{self.proposed} would do" if self.proposed < self.limit else f"{self.proposed} is worth a try"
        do = "" if self.proposed == self.limit else f"; {do}"
        cut = f"{percent(self.truncated)} cut off at max_new_tokens={self.limit}{do}"
        return [
            ("length", f"{spread} tokens; {cut}"),
            ("  end", f"{percent(self.ended)} of the samples end with an end of sequence" if self.ended else "none ever ended"),
        ]

    def findings(self, config: Config) -> Iterator[Finding]:
        options = config.preflight
        assert options is not None
        if not config.algo.online:
            return
        tries = [f"max_new_tokens={self.proposed}"]
        if self.truncated == 1:
            yield Finding(
                "warn",
                f"no sample ends within max_new_tokens={self.limit}, and an end of sequence was never seen: the limit is too "
                "low, the prompt is not in the form that the model was trained on, or the model never learned to end",
                tries,
            )
        elif self.truncated > options.truncated:
            yield Finding(
                "warn",
                f"{percent(self.truncated)} of the samples are cut off at max_new_tokens={self.limit}, mostly before their "
                "answer, and are paid as wrong",
                tries,
            )
        elif 2 * self.proposed <= self.limit:
            yield Finding(
                "note", f"no sample needs half of max_new_tokens={self.limit}, and memory is set aside for all of it", tries
            )


def _proposed(ended: torch.Tensor, truncated: float, limit: int, options: PreflightOptions) -> int:
    """Twice the limit where too many are cut off to know better; otherwise what holds nearly all with a margin."""
    if truncated > options.truncated:
        return 2 * limit
    if not len(ended):
        return limit
    wanted = 8 * math.ceil(options.length_margin * ended.quantile(0.99, interpolation="higher").item() / 8)
    return min(wanted, limit) if truncated == 0 else max(wanted, limit)
