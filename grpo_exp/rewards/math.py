"""Right or wrong by the value of the final answer: for mathematics and any task with one short answer.

The answer is looked for only where a completion commits to it (`answers.forms`), never "somewhere in the text", and compared
with the reference as an exact value (`answers.quantities`). A row without a reference answer gets None: it does not apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from grpo_exp.answers import forms, quantities, symbolic
from grpo_exp.batch import Completions
from grpo_exp.errors import ConfigError, nearest
from grpo_exp.options import option
from grpo_exp.rewards.base import Reward

_WRITTEN = {
    "tag": "<answer>{}</answer>",
    "boxed": "\\boxed{{{}}}",
    "hash": "#### {}",
    "answer_is": "The answer is {}",
    "equation": "x = {}",
    "whole": "{}",
    "last_number": "{}",
}


@dataclass
class MathReward(Reward):
    """`right`, `wrong` or `missing`, by the last answer of the completion."""

    extract: list[str] = option(f"forms of answer that count, the most trusted first: {', '.join(forms.FORMS)}")
    right: float = option("value when the answer equals the reference")
    wrong: float = option("value when it does not")
    missing: float = option("value when there is no answer")
    tolerance: float = option("largest relative difference at which numbers are equal; 0: exactly equal", low=0, high=1)

    def __post_init__(self) -> None:
        for form in self.extract:
            if form not in forms.FORMS:
                raise ConfigError(
                    f"reward.parts.{self.kind}.extract={list(self.extract)}: '{form}' is no form of answer."
                    f"{nearest(form, forms.FORMS)} Valid: {', '.join(forms.FORMS)}"
                )
        if not self.extract:
            raise ConfigError(f"reward.parts.{self.kind}.extract=[]: name at least one of {', '.join(forms.FORMS)}")
        if self.right <= max(self.wrong, self.missing):
            raise ConfigError(
                f"reward.parts.{self.kind}.right={self.right:g} must be greater than wrong={self.wrong:g} and "
                f"missing={self.missing:g}, otherwise a right answer earns nothing"
            )

    def score(self, completions: Completions) -> list[float | None]:
        """One value a sample; None where the data item has no reference answer."""
        rows = zip(completions.texts, completions.examples, completions.finished, strict=True)
        return symbolic.decide([partial(self._value, text, example.answer, finished) for text, example, finished in rows])

    def _value(self, text: str, reference: str | None, finished: bool) -> float | None:
        if reference is None or not (reference := reference_answer(reference)):
            return None
        found = forms.find(text, self.extract, finished)
        if not found:
            return self.missing
        return self.right if quantities.equal(found, reference, self.tolerance) else self.wrong

    def answer(self, text: str) -> str | None:
        """The last answer in canonical form, such as "3/4" for 0.75."""
        found = forms.find(text, self.extract)
        return quantities.canonical(found) or None if found else None

    def written(self, answer: str) -> str:
        return _WRITTEN[self.extract[0]].format(reference_answer(answer))


def reference_answer(text: str) -> str:
    """The final answer of a reference, which may be a whole worked solution as GSM8K and MATH have it."""
    return forms.find(text, ("tag", "boxed", "hash")) or text.strip()
