"""An item's tests, in the forms that data sets have them, as one list.

    ["assert f(2) == 3", ...]                               code: MBPP; or one text with all of it
    "def check(candidate): ..."                             code: HumanEval; `entry_point` is what is checked
    {"inputs": ["3 4\\n"], "outputs": ["7\\n"]}              standard input and output: APPS, TACO
    {"inputs": [[3, 4]], "outputs": [7], "fn_name": "f"}    calls: the same; `Class.method` of a class made without arguments
    [{"input": "3 4\\n", "output": "7\\n", "weight": 2}]     one by one, also {"code": ...} and {"call": "f", "args": [...],
                                                            "expected": ...}; `weight` is 1 where it is not given

Each may also be given as text that holds it in JSON.
"""

from __future__ import annotations

import json
from typing import Any

Case = dict[str, Any]
_FORMS = ({"code"}, {"input", "output"}, {"call", "args", "expected"})


def read(tests: Any, entry_point: str | None = None) -> list[Case]:
    """The tests, each with its `weight`; none where there are none.

    Raises:
        ValueError: they have none of these forms; the message is what follows "the tests".
    """
    if isinstance(tests, str):
        tests = _parsed(tests)
    if tests is None:
        return []
    if isinstance(tests, dict) and "inputs" in tests:
        tests = _pairs(tests)
    if isinstance(tests, (str, dict)):
        tests = [tests]
    if not isinstance(tests, (list, tuple)):
        raise ValueError(f"are {type(tests).__name__}; expected a list, a text or a mapping")
    return [_case(test, entry_point) for test in tests]


def _parsed(text: str) -> Any:
    """What a text holds in JSON, or the text itself, which is code; None for an empty one."""
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text if text.strip() else None


def _case(test: Any, entry_point: str | None) -> Case:
    case = dict(test) if isinstance(test, dict) else {"code": test}
    weight = case.pop("weight", 1.0)
    if not any(set(case) - {"of"} == form for form in _FORMS):
        fields = ", ".join(map(str, case)) or "nothing"
        raise ValueError(f"have one with {fields}; expected code, or input and output, or call, args and expected")
    texts = [case[name] for name in ("code", "input", "output", "call") if name in case]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"have one that is no text: {next(t for t in texts if not isinstance(t, str))!r:.60}")
    if not isinstance(weight, (int, float)) or not 0 <= weight < float("inf"):
        raise ValueError(f"have a weight of {weight!r:.40}; expected a number from 0 up")
    if "def check(" in case.get("code", "") and entry_point:
        case["code"] += f"\ncheck({entry_point})\n"
    return {**case, "weight": float(weight)}


def _pairs(tests: dict[str, Any]) -> list[Case]:
    """The columns of APPS as cases."""
    inputs, outputs, name = tests["inputs"], tests.get("outputs"), tests.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("have inputs and outputs that are not two lists of one length")
    if not name:
        return [{"input": _text(i), "output": _text(o)} for i, o in zip(inputs, outputs, strict=True)]
    first, *of = str(name).split(".")
    return [{"call": first, "of": of, "args": list(i), "expected": o} for i, o in zip(inputs, outputs, strict=True)]


def _text(value: Any) -> str:
    """APPS has some inputs as lists of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)
