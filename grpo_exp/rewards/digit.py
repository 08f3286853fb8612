"""1 for a completion that is exactly one digit: the smallest reward there is, to see a run work end to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grpo_exp.batch import Completions
from grpo_exp.options import option
from grpo_exp.rewards.base import Reward

_ASCII = frozenset("0123456789")
_FULL_WIDTH = frozenset("０１２３４５６７８９")


@dataclass
class DigitReward(Reward):
    """1.0 if the completion, stripped of white space, is one digit 0 to 9, else 0.0. It needs no reference answer."""

    reads: ClassVar[str] = "form"

    full_width: bool = option("the full-width digits of East Asian text count too")

    def score(self, completions: Completions) -> list[float | None]:
        """1.0 or 0.0 for each sample."""
        return [float(self.answer(text) is not None) for text in completions.texts]

    def answer(self, text: str) -> str | None:
        """The digit, in ASCII."""
        text = text.strip()
        return str(int(text)) if text in _ASCII or (self.full_width and text in _FULL_WIDTH) else None

    def written(self, answer: str) -> str:
        return answer
