"""The scorers of reasoning-gym, for the items of data=reasoning_gym; needs pip install 'grpo-exp[reasoning-gym]'."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_exp.answers import expressions
from grpo_exp.batch import Completions, Example
from grpo_exp.deadline import DeadlineExceeded, deadline, possible
from grpo_exp.errors import DataError, InputError
from grpo_exp.options import option
from grpo_exp.rewards.base import Reward
from grpo_exp.verifier import WHERE, read, shown

COLUMN = "reasoning_gym"  # of an item: {"task": its name, "entry": what the generator made}
SECONDS = 2.0  # for one answer
GATES: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), expressions.literal),
    **dict.fromkeys(("countdown", "puzzle24"), lambda text: expressions.arithmetic(text) and not any(map(str.isalpha, text))),
    **dict.fromkeys(("polynomial_multiplication", "simple_integration", "intermediate_integration"), expressions.arithmetic),
}
"""Tasks whose scorers evaluate the answer as Python code, and what of it they are given. A test finds them in the package."""


@dataclass
class ReasoningGymReward(Reward):
    """What the task's own scorer gives the answer, from 0 to 1.

    Some scorers give part of the credit to a text that merely contains the answer, so only full credit counts unless
    `partial` is set. Some evaluate the answer as Python code: what is not plainly harmless is not shown to them and worth 0. A
    scorer that raises, or takes more than two seconds, gives 0.
    """

    reads: ClassVar[str] = "answers"

    missing: float = option("value of a completion without an answer")
    partial: bool = option("true: the scorer's partial credit counts; false: 1 for full credit, else 0")
    where: str = option("what is scored: the answer that a completion commits to, or all of it", choices=WHERE)

    def check_data(self, examples: Sequence[Example]) -> None:
        """Every item is reasoning-gym's."""
        for example in examples:
            if COLUMN not in example.columns:
                raise DataError(
                    f"reward=reasoning_gym scores items of data=reasoning_gym alone, and item {example.id} is none; choose "
                    "both, as in data=reasoning_gym data.task=countdown reward=reasoning_gym"
                )

    def score(self, completions: Completions) -> list[float | None]:
        """One value a sample; None for an item of other data."""
        rows = zip(completions.texts, completions.examples, completions.finished, strict=True)
        return [self._judged(*row)[0] for row in rows]

    def explain(self, text: str, example: Example) -> str:
        """The answer that was read, and what the scorer gave."""
        value, why = self._judged(text, example, True)
        return f"{'does not apply' if value is None else f'{value:g}'}: {why}"

    def written(self, answer: str) -> str:
        return f"<answer>{answer}</answer>" if self.where == "answer" else answer

    def _judged(self, text: str, example: Example, finished: bool) -> tuple[float | None, str]:
        if COLUMN not in example.columns:
            return None, "the item is not reasoning-gym's"
        task, entry = example.columns[COLUMN]["task"], example.columns[COLUMN]["entry"]
        found = read(text, self.where, finished)
        if found is None:
            return self.missing, f"no {self.where}"
        given, why = scored(task, entry, found)
        value = given if self.partial else float(given >= 1)
        return value, f"{why}; read {shown(found)}, expected {shown(str(entry['answer']))}"


def scored(task: str, entry: dict[str, Any], answer: str) -> tuple[float, str]:
    """What the task's scorer gives an answer, and a word on it."""
    gate = GATES.get(task, expressions.moderate)
    if not (gate(answer) and expressions.moderate(answer)):
        return 0.0, f"not shown to the scorer of {task}, which would evaluate it"
    try:
        with deadline(SECONDS) if possible() else contextlib.nullcontext():
            given = float(scorer(task)(answer=answer, entry=entry))
    except DeadlineExceeded:
        return 0.0, f"the scorer of {task} took longer than {SECONDS:g} s"
    except Exception as error:  # whatever a hundred scorers raise on text that they did not expect
        return 0.0, f"the scorer of {task} raised {type(error).__name__}"
    return min(max(given, 0.0), 1.0) if given == given else 0.0, f"the scorer of {task} gives {given:g}"


@functools.cache
def scorer(task: str) -> Callable[..., float]:
    """The scorer of a task."""
    return library().get_score_answer_fn(task)  # type: ignore[no-any-return]


def library() -> Any:
    """The package reasoning_gym.

    Raises:
        InputError: it is not installed.
    """
    try:
        import reasoning_gym
    except ImportError as error:
        raise InputError(f"reasoning-gym cannot be imported ({error}): pip install 'grpo-exp[reasoning-gym]'") from error
    return reasoning_gym
