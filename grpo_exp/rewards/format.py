"""Whether a completion has the wanted form, whatever its answer: 1 or 0."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from grpo_exp.answers import forms, quantities
from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError, RewardError
from grpo_exp.options import option
from grpo_exp.patterns import Pattern
from grpo_exp.rewards.base import Reward, told

STYLES = ("answer_tag", "think_answer", "tags", "boxed", "equation", "regex")

_TAG_NAME = re.compile(r"[A-Za-z][\w-]*")
_OPERATOR_WORD = re.compile(r"\\times|\\cdot|\\div|(?<= )x(?= )")
_ARITHMETIC = re.compile(r"[-+(]*[$0-9.][0-9.,$%() ]*[-+*/×÷^−][-+*/×÷^−0-9.,$%() ]*")


@dataclass
class FormatReward(Reward):
    """1.0 for a completion in the wanted style, 0.0 for any other.

    answer_tag     exactly one `<answer>...</answer>`, not empty, and nothing after it
    think_answer   `<think>...</think><answer>...</answer>`, neither empty, and nothing else
    tags           the same of any `tags`: each once, in this order, none empty or within another, and nothing else
    boxed          exactly one `\\boxed{...}`, not empty, in the last line
    equation       the last line is arithmetic, an equals sign and a number: `114 / 57 = 2`; whether it is true does not matter
    regex          the whole completion, stripped, matches `pattern`; the dot does not match a line end, `(?s)` makes it
    """

    reads: ClassVar[str] = "form"

    style: str = option("the form that is wanted", choices=STYLES)
    pattern: str | None = option("regular expression for style=regex, matched against the whole completion")
    tags: list[str] = option("names of the tags for style=tags, in their order")
    finished: bool = option("a completion that was cut off does not count")

    def __post_init__(self) -> None:
        key = f"reward.parts.{self.kind}.pattern"
        if self.style == "regex" and not self.pattern:
            raise ConfigError(f"{key}={self.pattern}: style=regex needs a regular expression, such as {key}='[0-9]+'")
        if self.style != "regex" and self.pattern:
            raise ConfigError(f"{key}={self.pattern!r} has no effect with style={self.style}; set style=regex or pattern=null")
        tagged, tags = self.style == "tags", f"reward.parts.{self.kind}.tags={list(self.tags)}"
        if tagged != bool(self.tags):
            raise ConfigError(f"{tags}: style=tags needs some, such as [plan,answer], and no other style takes any")
        if len(set(self.tags)) < len(self.tags) or not all(_TAG_NAME.fullmatch(tag) for tag in self.tags):
            raise ConfigError(f"{tags}: expected different names of letters, digits, - and _, without < and >")
        self._pattern = Pattern(self.pattern or "", key)

    def score(self, completions: Completions) -> Sequence[float | RewardError | None]:
        """1.0 or 0.0 for each sample, a RewardError where `pattern` took too long on it."""
        rows = zip(completions.texts, completions.finished, strict=True)
        return [self._value(text, finished) for text, finished in rows]

    def _value(self, text: str, finished: bool) -> float | RewardError:
        if self.finished and not finished:
            return 0.0
        try:
            return float(self._matches(text))
        except RewardError as error:
            return error

    def _matches(self, text: str) -> bool:
        if self.style == "regex":
            return self._pattern.whole(text.strip()) is not None
        return _only_tags(text, self.tags) if self.style == "tags" else _MATCHERS[self.style](text)

    def explain(self, text: str, example: Example) -> str:
        """Such as `0: not in the style answer_tag`."""
        style = {"regex": f"regex {self.pattern!r}", "tags": f"tags {', '.join(self.tags)}"}.get(self.style, self.style)
        value = self._value(text, True)
        return f"{told(value)}: {'' if value == 1.0 else 'not '}in the style {style}"


def _answer_tag(text: str) -> bool:
    text = text.rstrip()
    if text.count("<answer>") != 1 or text.count("</answer>") != 1 or not text.endswith("</answer>"):
        return False
    return bool(text[text.index("<answer>") + len("<answer>") : -len("</answer>")].strip())


def _only_tags(text: str, tags: Sequence[str]) -> bool:
    """Each tag once, one after the other, with something in each and nothing beside them."""
    if any(text.count(mark) != 1 for tag in tags for mark in (f"<{tag}>", f"</{tag}>")):
        return False
    rest = text
    for tag in tags:
        before, _, rest = rest.partition(f"<{tag}>")
        content, closed, rest = rest.partition(f"</{tag}>")
        if before.strip() or not content.strip() or not closed or any(f"<{other}>" in content for other in tags):
            return False
    return not rest.strip()


def _think_answer(text: str) -> bool:
    return _only_tags(text, ("think", "answer"))


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
