"""Inside: the program, as a whole (`run`) or as something whose functions are called (`serve`).

Nothing here is trusted once the program has begun: it shares the process with it and may have altered any of it.
"""

from __future__ import annotations

import json
import operator
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from grpo_exp.sandbox.limits import Spec, enter
from grpo_exp.sandbox.plain import decode, encode

OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *args, **kwargs: function(*args, **kwargs),
    "attribute": getattr,
    **{name: getattr(operator, name) for name in ("getitem", "setitem", "delitem")},
    **{function.__name__: function for function in (len, iter, next, repr)},
    "str": str,
}
"""What the tests may ask of an object of the program's."""


def main(file: str) -> None:
    spec = enter(int(file))
    sys.argv = ["program.py"]
    if spec["calls"] is None:
        run(spec["program"])
    else:
        serve(spec)


def run(program: str) -> None:
    """The program as a script, with its standard input and output."""
    exec(_compiled(program), _module("__main__"))


def serve(spec: Spec) -> None:
    """Load the program, then answer requests, one a line: `[operation, object, arguments, keywords]`."""
    replies = spec["replies"]
    objects: list[Any] = []

    def number(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    def reply(make: Callable[[], dict[str, Any]]) -> None:
        try:
            said = json.dumps(make())
        except BaseException as error:  # SystemExit too: a function that exits has not answered
            said = json.dumps({"error": [_name(error), str(error)[:300]]})
        data = said.encode() + b"\n"
        while data:
            data = data[os.write(replies, data) :]

    def load() -> dict[str, Any]:
        exec(_compiled(spec["program"]), space)
        return {"value": None}

    def answer(line: bytes) -> dict[str, Any]:
        operation, target, written, keywords = json.loads(line)
        if operation == "global":
            return {"value": encode(space[target], number)} if target in space else {"missing": True}
        args = [decode(arg, objects.__getitem__) for arg in written]
        kwargs = {name: decode(value, objects.__getitem__) for name, value in keywords.items()}
        value = OPERATIONS[operation](objects[target], *args, **kwargs)
        # A function may change the lists it is given, and a test may look at them.
        return {"value": encode(value, number), "args": [encode(arg, number) for arg in args]}

    space = _module("program")
    reply(load)
    with os.fdopen(spec["calls"], "rb") as calls:
        for line in calls:
            reply(lambda line=line: answer(line))  # type: ignore[misc]


def _compiled(program: str) -> types.CodeType:
    return compile(program, "program.py", "exec")


def _module(name: str) -> dict[str, Any]:
    """The namespace of a new module, known by its name as dataclasses and pickle need it."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module.__dict__


def _name(error: BaseException) -> str:
    return type(error).__name__
