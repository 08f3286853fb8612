"""The soft penalty on overlong completions of DAPO (arXiv 2503.14476, equation 13)."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_exp.batch import Completions
from grpo_exp.errors import ConfigError
from grpo_exp.options import option
from grpo_exp.rewards.base import Reward


@dataclass
class LengthReward(Reward):
    """0 up to L_max - L_cache tokens, then falling linearly to -1 at L_max, and -1 beyond.

    With y tokens, L_max = `max_length` and L_cache = `buffer` x L_max:

        0                                   y <= L_max - L_cache
        ((L_max - L_cache) - y) / L_cache   L_max - L_cache < y <= L_max
        -1                                  L_max < y

    The end-of-sequence token counts. DAPO gives L_cache in tokens, 4096 of 20480; as a share it fits any `max_length`.
    """

    max_length: int = option("length in tokens at which the penalty is -1", low=1)
    buffer: float = option("share of max_length, at its end, over which the penalty grows", above=0, high=1)

    def __post_init__(self) -> None:
        if self.role == "outcome":
            raise ConfigError(
                f"reward.parts.{self.kind}.role=outcome: a length says nothing about right and wrong; use role=shaping"
            )

    def score(self, completions: Completions) -> list[float | None]:
        """A value from -1 to 0 for each sample."""
        return [self._penalty(len(ids)) for ids in completions.token_ids]

    def _penalty(self, tokens: int) -> float:
        cache = self.buffer * self.max_length
        return -min(max((tokens - (self.max_length - cache)) / cache, 0.0), 1.0)
