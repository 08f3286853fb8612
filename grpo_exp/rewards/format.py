"""Whether a completion has the wanted form, whatever its answer: 1 or 0."""

from __future__ import annotations

import re
from dataclasses import dataclass

from grpo_exp.answers import forms, quantities
from grpo_exp.batch import Completions
from grpo_exp.deadline import DeadlineExceeded, deadline
from grpo_exp.errors import ConfigError, RewardError
from grpo_exp.options import option
from grpo_exp.rewards.base import Reward

STYLES = ("answer_tag", "think_answer", "boxed", "equation", "regex")
LONGEST_FOR_REGEX = 20_000  # characters; a longer completion does not match
REGEX_SECONDS = 1.0  # for one completion

_OPERATOR_WORD = re.compile(r"\\times|\\cdot|\\div|(?<= )x(?= )")
_ARITHMETIC = re.compile(r"[-+(]*[$0-9.][0-9.,$%() ]*[-+*/×÷^−][-+*/×÷^−0-9.,$%() ]*")


@dataclass
class FormatReward(Reward):
    """1.0 for a completion in the wanted style, 0.0 for any other.

    answer_tag     exactly one `<answer>...</answer>`, not empty, and nothing after it
    think_answer   `<think>...</think><answer>...</answer>`, neither empty, and nothing else
    boxed          exactly one `\\boxed{...}`, not empty, in the last line
    equation       the last line is arithmetic, an equals sign and a number: `114 / 57 = 2`; whether it is true does not matter
    regex          the whole completion, stripped, matches `pattern`; the dot does not match a line end, `(?s)` makes it
    """

    style: str = option("the form that is wanted", choices=STYLES)
    pattern: str | None = option("regular expression for style=regex, matched against the whole completion")
    finished: bool = option("a completion that was cut off does not count")

    def __post_init__(self) -> None:
        key = f"reward.parts.{self.kind}.pattern"
        if self.style == "regex" and not self.pattern:
            raise ConfigError(f"{key}={self.pattern}: style=regex needs a regular expression, such as {key}='[0-9]+'")
        if self.style != "regex" and self.pattern:
            raise ConfigError(f"{key}={self.pattern!r} has no effect with style={self.style}; set style=regex or pattern=null")
        try:
            self._regex = re.compile(self.pattern or "")
        except re.error as error:
            raise ConfigError(f"{key}={self.pattern!r} is not a regular expression: {error}") from error

    def score(self, completions: Completions) -> list[float | None]:
        """1.0 or 0.0 for each sample.

        Raises:
            RewardError: `pattern` took too long on a completion.
        """
        matches = {"regex": self._matches_pattern, **_MATCHERS}[self.style]
        rows = zip(completions.texts, completions.finished, strict=True)
        return [float((finished or not self.finished) and matches(text)) for text, finished in rows]

    def _matches_pattern(self, text: str) -> bool:
        if len(text) > LONGEST_FOR_REGEX:
            return False
        try:
            with deadline(REGEX_SECONDS):
                return self._regex.fullmatch(text.strip()) is not None
        except DeadlineExceeded as error:
            raise RewardError(
                f"reward.parts.{self.kind}.pattern={self.pattern!r} took longer than {REGEX_SECONDS:g} s on a completion of "
                f"{len(text)} characters; avoid a repeat inside a repeat, as in (a+)+"
            ) from error


def _answer_tag(text: str) -> bool:
    text = text.rstrip()
    if text.count("<answer>") != 1 or text.count("</answer>") != 1 or not text.endswith("</answer>"):
        return False
    return bool(text[text.index("<answer>") + len("<answer>") : -len("</answer>")].strip())


def _think_answer(text: str) -> bool:
    text = text.strip()
    if not text.startswith("<think>") or any(text.count(tag) != 1 for tag in ("<think>", "</think>")) or not _answer_tag(text):
        return False
    thought, _, rest = text[len("<think>") :].partition("</think>")
    return bool(thought.strip()) and rest.lstrip().startswith("<answer>")


def _boxed(text: str) -> bool:
    complete, opened = forms.boxes(text)
    if len(complete) != 1 or opened != len(text):
        return False
    start, end = complete[0]
    return bool(text[start:end].strip()) and "\n" not in text[end:].rstrip()


def _equation(text: str) -> bool:
    left, equals, right = forms.last_line(text)[-2 * quantities.LONGEST :].rpartition("=")
    left = _OPERATOR_WORD.sub("*", left.strip())
    return bool(equals) and quantities.is_number(right) and _ARITHMETIC.fullmatch(left) is not None


_MATCHERS = {"answer_tag": _answer_tag, "think_answer": _think_answer, "boxed": _boxed, "equation": _equation}
