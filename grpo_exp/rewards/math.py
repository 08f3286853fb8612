"""Right or wrong by the value of the final answer: for mathematics and any task with one short answer.

The answer is looked for only where a completion commits to it (`answers.forms`), never "somewhere in the text", and compared
with the reference as an exact value (`answers.quantities`). A row without a reference answer gets None: it does not apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from grpo_exp.answers import forms, quantities, symbolic
from grpo_exp.answers.reference import reference_answer
from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError, RewardError, nearest
from grpo_exp.options import option
from grpo_exp.verifier import Verdict, Verifier, shown


@dataclass
class MathReward(Verifier):
    """`right`, `wrong` or `missing`, by the last answer of the completion."""

    reads: ClassVar[str] = "numbers"

    extract: list[str] = option(f"forms of answer that count, the most trusted first: {', '.join(forms.FORMS)}")
    tolerance: float = option("largest relative difference at which numbers are equal; 0: exactly equal", low=0, high=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for form in self.extract:
            if form not in forms.FORMS:
                raise ConfigError(
                    f"reward.parts.{self.kind}.extract={list(self.extract)}: '{form}' is no form of answer."
                    f"{nearest(form, forms.FORMS)} Valid: {', '.join(forms.FORMS)}"
                )
        if not self.extract:
            raise ConfigError(f"reward.parts.{self.kind}.extract=[]: name at least one of {', '.join(forms.FORMS)}")

    def score(self, completions: Completions) -> Sequence[float | RewardError | None]:
        """One value a sample; None where the data item has no reference answer."""
        rows = zip(completions.texts, completions.examples, completions.finished, strict=True)
        return symbolic.decide([partial(self._value, *row) for row in rows])

    def verdict(self, text: str, example: Example, finished: bool) -> Verdict:
        """Whether the answer equals the reference."""
        if example.answer is None or not (reference := reference_answer(example.answer)):
            return Verdict(None, "the item has no reference answer")
        found = forms.find(text, self.extract, finished)
        if not found:
            return Verdict("missing", f"no answer in any of the forms {', '.join(self.extract)}")
        if quantities.equal(found, reference, self.tolerance):
            return Verdict("right", f"equals {shown(reference)}", found)
        return Verdict("wrong", f"does not equal {shown(reference)}", found)

    def answer(self, text: str) -> str | None:
        """The last answer in canonical form, such as "3/4" for 0.75."""
        found = forms.find(text, self.extract)
        return quantities.canonical(found) or None if found else None

    def written(self, answer: str) -> str:
        return self.writings(answer)[0]

    def writings(self, answer: str) -> list[str]:
        return [forms.WRITTEN[form].format(reference_answer(answer)) for form in self.extract]
