"""Calls of tools against the expected ones: name and arguments, in the forms that models write and services return."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from grpo_exp.answers import blocks, forms, structures
from grpo_exp.answers.structures import Malformed
from grpo_exp.batch import Example
from grpo_exp.errors import DataError
from grpo_exp.options import option
from grpo_exp.verifier import Verdict, Verifier, shown, wanted

MOST = 64  # calls of one completion
_BEGINS = re.compile(r'\[\s*\{|\{\s*"')
_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_MARK = "[TOOL_CALLS]"


class Call(NamedTuple):
    """One call of a tool."""

    name: str
    arguments: dict[str, Any]


@dataclass
class ToolCallReward(Verifier):
    """`right` where the calls are the expected ones, `near` where their names are, `wrong` otherwise, `missing` for none.

        <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>, as often as there are calls     Hermes, Qwen
        [TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]                                           Mistral
        {"name": "f", "parameters": {"x": 1}} as a whole, in a fenced block or in <answer>           Llama
        {"tool_calls": [{"function": {"name": "f", "arguments": "{\\"x\\": 1}"}}]}, or its list alone    OpenAI

    Numbers are compared by value, texts exactly. Where the expected list is empty, no call is right. A <tool_call> that is not
    closed or holds no call makes the completion wrong. Left out: calls written as Python, default values of arguments.
    """

    near: float = option("value of calls of the right tools with other arguments")
    field: str | None = option("field of the data with the expected calls, in one of the forms; null: the reference answer")
    ordered: bool = option("true: several calls must be in the expected order; false: in any")

    def check_data(self, examples: Sequence[Example]) -> None:
        """Some items say what is expected, and those that do say it as calls."""
        self.need("field", "the expected call", examples)
        for example in examples:
            if wanted(example, self.field) is not None:
                self._expected(example)

    def verdict(self, text: str, example: Example, finished: bool) -> Verdict:
        """Whether the calls are the expected ones."""
        if wanted(example, self.field) is None:
            return Verdict(None, "the item has no expected call")
        expected = self._expected(example)
        try:
            found = find(text)
        except Malformed as error:
            return Verdict("wrong", str(error), text[-200:])
        if not found and not expected:
            return Verdict("right", "no call, as expected")
        if not found:
            return Verdict("missing", "no call")
        said = ", ".join(f"{call.name}({call.arguments})" for call in found)
        if matches(found, expected, self.ordered):
            return Verdict("right", "as expected", said)
        names = [[call.name for call in calls] for calls in (found, expected)]
        same = names[0] == names[1] if self.ordered else sorted(names[0]) == sorted(names[1])
        return Verdict("near" if same else "wrong", f"expected {shown(str([tuple(call) for call in expected]))}", said)

    def written(self, answer: str) -> str:
        return answer  # it is written as a call

    def _expected(self, example: Example) -> list[Call]:
        given = wanted(example, self.field)
        try:
            if isinstance(given, str) and _OPENING in given:
                return find(given)
            return calls(structures.parse(given) if isinstance(given, str) else given)
        except Malformed as error:
            raise DataError(
                f"reward part '{self.kind}', item {example.id}: the expected call {shown(str(given))} is none: {error}. Write "
                'it as {"name": ..., "arguments": {...}}, or a list of such'
            ) from error


def find(text: str) -> list[Call]:
    """The calls that a completion makes, in their order.

    Raises:
        Malformed: what stands where a call should is none.
    """
    text = forms.spoken(text)
    if _OPENING in text:
        inner = text.split(_OPENING)[1:]
        if len(inner) > MOST:
            raise Malformed(f"more than {MOST} calls")
        if open_ := [part for part in inner if _CLOSING not in part]:
            raise Malformed(f"{_OPENING} is not closed: {shown(open_[0])}")
        return [call for part in inner for call in calls(structures.parse(part.partition(_CLOSING)[0].strip()))]
    if _MARK in text:
        return calls(structures.parse(text.rpartition(_MARK)[2].strip()))
    found = blocks.find(text, ("json",), _BEGINS)
    return [] if not found or not _BEGINS.match(found) else calls(structures.parse(found))


def calls(value: Any) -> list[Call]:
    """The calls that a value of JSON states: one, a list of them, or a message with `tool_calls`. Raises as `find`."""
    if isinstance(value, dict) and "tool_calls" in value:
        value = value["tool_calls"]
    listed = value if isinstance(value, list) else [value]
    if len(listed) > MOST:
        raise Malformed(f"more than {MOST} calls")
    return [_call(one) for one in listed]


def _call(value: Any) -> Call:
    inner = value.get("function", value) if isinstance(value, dict) else value
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise Malformed(f"no call with a name: {shown(str(value))}")
    given = [inner[key] for key in ("arguments", "parameters") if key in inner]
    if len(given) > 1:
        raise Malformed("both arguments and parameters")
    arguments = given[0] if given else {}
    if isinstance(arguments, str):
        arguments = structures.parse(arguments) if arguments.strip() else {}
    if not isinstance(arguments, dict):
        raise Malformed(f"the arguments are no object: {shown(str(arguments))}")
    return Call(inner["name"], arguments)


def matches(found: Sequence[Call], expected: Sequence[Call], ordered: bool) -> bool:
    """Whether the two lists hold the same calls."""
    if len(found) != len(expected):
        return False
    if ordered:
        return all(map(_same, found, expected))
    left = list(expected)
    for call in found:
        at = next((i for i, other in enumerate(left) if _same(call, other)), None)
        if at is None:
            return False
        left.pop(at)
    return True


def _same(one: Call, other: Call) -> bool:
    return one.name == other.name and structures.same(one.arguments, other.arguments)
