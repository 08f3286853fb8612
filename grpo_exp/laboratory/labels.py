"""A reward held against labelled responses, and against the opinion of math-verify."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_exp.answers.reference import reference_answer
from grpo_exp.laboratory.responses import Response
from grpo_exp.laboratory.trial import Trial, Value
from grpo_exp.rewards.math import MathReward

MOST_ASKED = 600  # responses of which math-verify is asked, which takes some milliseconds for each
CALLED = ("right", "wrong", "does not apply", "failed")


@dataclass(frozen=True)
class Case:
    """A labelled response, what the reward gave it, and where the two disagree, why; `opinion` is math-verify's, if asked."""

    response: Response
    value: Value
    why: str = ""
    opinion: bool | None = None

    @property
    def called(self) -> str:
        """What the reward calls it, one of CALLED."""
        if self.value.failed:
            return "failed"
        if self.value.outcome is None:
            return "does not apply"
        return "right" if self.value.right else "wrong"

    @property
    def agrees(self) -> bool:
        return self.called == ("right" if self.response.right else "wrong")


@dataclass(frozen=True)
class Labels:
    """All cases, of how many of them math-verify was asked, and what is told of them."""

    cases: list[Case]
    asked: int = 0

    def confusion(self) -> dict[bool, Counter[str]]:
        """By label, how many the reward calls what."""
        return {label: Counter(c.called for c in self.cases if c.response.right is label) for label in (True, False)}

    def disagreements(self) -> list[Case]:
        """Wrong ones that are called right come first."""
        return sorted((case for case in self.cases if not case.agrees), key=lambda case: case.response.right)

    def values(self) -> dict[bool, Counter[str]]:
        """By label, how often each value of the outcome was given."""
        told = [(c.response.right, "none" if c.value.outcome is None else f"{c.value.outcome:g}") for c in self.cases]
        return {label: Counter(value for own, value in told if own is label) for label in (True, False)}

    def against_opinion(self) -> list[Case]:
        """Cases in which math-verify says something else than the reward."""
        return [case for case in self.cases if case.opinion is not None and case.opinion != case.value.right]

    def undecided(self) -> int:
        """Of how many cases math-verify, asked, said nothing in time."""
        return self.asked - sum(case.opinion is not None for case in self.cases)


def held(trial: Trial, responses: Sequence[Response]) -> Labels:
    """Score the responses; the second opinion is asked where the reward is `math`."""
    values = trial.values([(r.example, r.text) for r in responses])
    step = -(-len(responses) // MOST_ASKED)
    asked = range(0, len(responses), step) if isinstance(trial.rewards.outcome_part, MathReward) else range(0)
    opinions = dict(zip(asked, _opinions([responses[i] for i in asked]), strict=True))
    cases = [Case(*pair, opinion=opinions.get(i)) for i, pair in enumerate(zip(responses, values, strict=True))]
    return Labels([case if case.agrees else _explained(trial, case) for case in cases], len(asked))


def _explained(trial: Trial, case: Case) -> Case:
    why = trial.why(case.response.example, case.response.text)
    return Case(case.response, case.value, f"{why}; behind a closed gate" if case.value.closed else why, case.opinion)


def _opinions(responses: Sequence[Response]) -> list[bool | None]:
    if not responses:
        return []
    from grpo_exp.answers.opinion import opinions

    return opinions([(r.text, reference_answer(str(r.example.answer or ""))) for r in responses])
