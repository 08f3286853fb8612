"""What rewards that check a completion against something share: it is right, nearly right, wrong, or says nothing.

What each of these is worth is configured, such as 1 / 0.3 / 0 / -1. A subclass says which one it is and why (`verdict`);
`score` makes that a value and `explain` a line for people, so that the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_exp.answers import forms
from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError, DataError, RewardError, nearest
from grpo_exp.options import option
from grpo_exp.rewards.base import Reward, told

SHOWN = 200  # characters of what was found that `explain` shows
COMMITTED = ("tag", "boxed", "hash", "answer_is")  # the forms of an answer that may be any text
WHERE = ("answer", "completion")


@dataclass(frozen=True)
class Verdict:
    """What a verifier makes of one completion.

    Attributes:
        grade: right, near, wrong or missing; None where the item has nothing to hold the completion against.
        why: the reason, in a few words.
        found: what was read from the completion; None where there is nothing.
    """

    grade: str | None
    why: str
    found: str | None = None


@dataclass
class Verifier(Reward):
    """A reward of a few steps. A subclass implements `verdict`; one that knows "nearly right" adds the option `near`."""

    reads: ClassVar[str] = "answers"

    right: float = option("value of a completion that is right")
    wrong: float = option("value of one that is not")
    missing: float = option("value of one without an answer")

    def __post_init__(self) -> None:
        others = {name: getattr(self, name) for name in ("near", "wrong", "missing") if hasattr(self, name)}
        if self.right <= max(others.values()):
            lower = [f"{name}={value:g}" for name, value in others.items()]
            raise ConfigError(
                f"reward.parts.{self.kind}.right={self.right:g} must be greater than {', '.join(lower[:-1])} and {lower[-1]}, "
                "otherwise a right answer earns nothing"
            )

    def verdict(self, text: str, example: Example, finished: bool) -> Verdict:
        """What the completion is.

        Raises:
            RewardError: this could not be found out; the sample alone counts as failed.
        """
        raise NotImplementedError

    def score(self, completions: Completions) -> Sequence[float | RewardError | None]:
        """`right`, `near`, `wrong` or `missing` for each sample; None where the item has nothing to hold it against."""
        rows = zip(completions.texts, completions.examples, completions.finished, strict=True)
        return [self._value(*row) for row in rows]

    def _value(self, text: str, example: Example, finished: bool) -> float | RewardError | None:
        try:
            return self.worth(self.verdict(text, example, finished))
        except RewardError as error:
            return error

    def worth(self, verdict: Verdict) -> float | None:
        """The value of a verdict."""
        return None if verdict.grade is None else float(getattr(self, verdict.grade))

    def explain(self, text: str, example: Example) -> str:
        """Such as `wrong, 0: not the answer, which is 18; read '17'`."""
        try:
            verdict = self.verdict(text, example, True)
        except RewardError as error:
            return told(error)
        if verdict.grade is None:
            return f"does not apply: {verdict.why}"
        read = "" if verdict.found is None else f"; read {shown(verdict.found)}"
        return f"{verdict.grade}, {told(self.worth(verdict))}: {verdict.why}{read}"

    def key(self, name: str) -> str:
        """An option as people write it."""
        return f"reward.parts.{self.kind}.{name}"

    def need(self, name: str, what: str, examples: Sequence[Example]) -> None:
        """Refuse data in which no item has what the option `name` says: a field, or null for the reference answer.

        Raises:
            DataError: none has it; the fields that there are are named.
        """
        field = getattr(self, name)
        if any(wanted(example, field) is not None for example in examples):
            return
        if field is None:
            raise DataError(
                f"{self.key(name)}=null: {what} is the reference answer, and no item has one. Name its field with "
                f"data.answer=FIELD, or with {self.key(name)}=FIELD"
            )
        there = sorted({column for example in examples[:100] for column in example.columns})
        raise DataError(
            f"{self.key(name)}={field!r}: {what} stands in that field of the data, and no item has it.{nearest(field, there)} "
            f"There are: {', '.join(there) or 'none'}"
        )


def wanted(example: Example, field: str | None) -> Any:
    """What an item has in a field; its reference answer for None. None where there is nothing."""
    return example.answer if field is None else example.columns.get(field)


def read(text: str, where: str, finished: bool) -> str | None:
    """What a completion says, in its answer or as a whole; None where that is nothing.

    `answer` is the last <answer>...</answer>, box, "#### ..." or "the answer is ...", so that working and guesses do not count;
    `completion` is all of the text. What stands within <think>...</think> is part of neither.
    """
    text = forms.spoken(text)
    found = forms.find(text, COMMITTED, finished) if where == "answer" else text.strip()
    return found or None


def shown(text: str) -> str:
    """A text in one line, shortened, for people."""
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…")
