"""A penalty on n-grams that occur again, against loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_exp import ops
from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError
from grpo_exp.options import option
from grpo_exp.rewards.base import Reward


@dataclass
class RepetitionReward(Reward):
    """Minus the share of n-grams that occurred earlier in the same completion, less what is free: 0 for none, -1 for a loop.

    With t n-grams, d of them different, and f = `free`:  -max(0, 1 - d/t - f) / (1 - f). Below n words or tokens it is 0. The
    metric `text/repetition` is the same share of tokens for n = 4, without f.
    """

    n: int = option("words or tokens in a row that are compared", low=1)
    of: str = option(
        "what the n-grams are of: words between spaces, capitals aside; or tokens, for any language",
        choices=("words", "tokens"),
    )
    free: float = option("share of repeated n-grams that costs nothing", low=0, high=0.99)

    def __post_init__(self) -> None:
        if self.role == "outcome":
            raise ConfigError(
                f"reward.parts.{self.kind}.role=outcome: repetition says nothing about right and wrong; use role=shaping"
            )

    def score(self, completions: Completions) -> list[float | None]:
        """A value from -1 to 0 for each sample."""
        rows: Sequence[Sequence[object]] = (
            completions.token_ids if self.of == "tokens" else list(map(_words, completions.texts))
        )
        return [self._penalty(self._share(row)) for row in rows]

    def _share(self, row: Sequence[object]) -> float:
        return ops.repeat_ngram_fraction(row, self.n)

    def _penalty(self, share: float) -> float:
        return min(0.0, self.free - share) / (1 - self.free)

    def explain(self, text: str, example: Example) -> str:
        """The share that it is made of, here always of words."""
        share = self._share(_words(text))
        return f"{self._penalty(share):g}: {share:.0%} of the {self.n}-grams of its words occurred earlier in it"


def _words(text: str) -> list[str]:
    return text.casefold().split()
