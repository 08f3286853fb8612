"""The cosine reward of Yeo et al. (arXiv 2502.03373, section 4.2): by length, one way where right and the other where wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError
from grpo_exp.metrics import RIGHT_ABOVE
from grpo_exp.options import option
from grpo_exp.rewards.base import Reward


@dataclass
class CosineReward(Reward):
    """A short right completion earns more than a long one, and a long wrong one more than a short one: thinking on may help.

    With y tokens, L_max = `max_length`, and r_0 and r_L the values of a right or of a wrong completion at lengths 0 and L_max:

        r_L + (r_0 - r_L) (1 + cos(pi y / L_max)) / 2      y < L_max
        r_e, the value `exceeded`                          y >= L_max

    In the paper this is the whole reward. Here the outcome part says what is right, and its own weight may be 0, as in
    reward=cosine. Right is what that part gives more than 0.5; where it does not apply, this does not either. The
    end-of-sequence token counts.
    """

    after_outcome: ClassVar[bool] = True

    max_length: int = option("length in tokens from which the value is `exceeded`", low=1)
    right_short: float = option("value of a right completion of length 0")
    right_long: float = option("what the value of a right one tends to at max_length")
    wrong_short: float = option("value of a wrong completion of length 0")
    wrong_long: float = option("what the value of a wrong one tends to at max_length")
    exceeded: float = option("value of a completion that is as long as max_length or longer, right or wrong")

    def __post_init__(self) -> None:
        if self.role == "outcome":
            raise ConfigError(
                f"reward.parts.{self.kind}.role=outcome: it asks the outcome part what is right; use role=shaping, and "
                "weight=0 for the outcome part where this is to be the whole reward"
            )

    def score(self, completions: Completions) -> list[float | None]:
        """One value a sample, from the length and from what the outcome part gave; None where that does not apply."""
        outcomes = completions.outcome or [None] * len(completions)
        return [
            None if outcome is None else self._value(len(ids), outcome > RIGHT_ABOVE)
            for ids, outcome in zip(completions.token_ids, outcomes, strict=True)
        ]

    def _value(self, tokens: int, right: bool) -> float:
        if tokens >= self.max_length:
            return self.exceeded
        short, long = (self.right_short, self.right_long) if right else (self.wrong_short, self.wrong_long)
        return long + (short - long) * (1 + math.cos(math.pi * tokens / self.max_length)) / 2

    def explain(self, text: str, example: Example) -> str:
        """What it would be worth if right and if wrong, by its length in words."""
        words = max(1, len(text.split()))
        return f"{self._value(words, True):g} if right and {self._value(words, False):g} if wrong, at {words} words for tokens"
