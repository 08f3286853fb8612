"""Inside, in a sandbox of its own: the tests, which ask the program over a pipe and are the only ones that know what is right.

A name of the program's stands here for something far away (`Remote`): calling it sends the arguments as data and makes the
answer from data. So `assert f(2) == 3` compares by Python's own rules, whatever the program did to its side. Names are
resolved in this order: the test's own and its setup's, Python's builtins, modules of the standard library, and last the
program's; it cannot take the place of `abs` or `math`.

Left out: a test cannot hand a function of its own to the program, nor compare objects of the program's except by their parts.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from grpo_exp.sandbox.limits import enter
from grpo_exp.sandbox.plain import decode, encode

LONGEST_REPLY = 1 << 20  # bytes
_ERRORS = {
    name: error
    for name, error in vars(builtins).items()
    # StopIteration from a call would end the test's own loop as if there were nothing left to compare.
    if isinstance(error, type) and issubclass(error, Exception) and not issubclass(error, (StopIteration, StopAsyncIteration))
}


class Gone(BaseException):
    """The program does not answer any more. No `Exception`: a test must not take it for one that it expects."""


class ProgramError(Exception):
    """The program raised something that is none of Python's own exceptions."""


class Program:
    """The other side."""

    def __init__(self, calls: int, replies: int) -> None:
        self._calls, self._replies, self._read = calls, replies, bytearray()
        self.deadline = 0.0

    def ask(self, operation: str, target: Any, *args: Any, **kwargs: Any) -> Any:
        """What the program answers.

        Raises:
            Gone: nothing, in time.
            Exception: what it raised, where that is one of Python's own.
        """
        request = [operation, target, [encode(a, _number) for a in args], {k: encode(v, _number) for k, v in kwargs.items()}]
        self._send(json.dumps(request).encode() + b"\n")
        reply = self.reply()
        if operation == "call":
            for arg, after in zip(args, reply.get("args", ()), strict=False):
                _update(arg, decode(after, self.made))
        return decode(reply["value"], self.made)

    def named(self, name: str) -> tuple[bool, Any]:
        """Whether the program has a global name, and what stands for it."""
        self._send(json.dumps(["global", name, [], {}]).encode() + b"\n")
        reply = self.reply()
        return ("value" in reply), decode(reply.get("value"), self.made)

    def made(self, number: int) -> Remote:
        return Remote(self, number)

    def reply(self) -> dict[str, Any]:
        while b"\n" not in self._read:
            left = self.deadline - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                raise Gone("took too long")
            data = os.read(self._replies, 1 << 16)
            if not data:
                raise Gone("ended without an answer")
            self._read += data
            if len(self._read) > LONGEST_REPLY:
                raise Gone("answered with too much")
        line, _, self._read = self._read.partition(b"\n")
        try:
            reply = json.loads(line)
        except ValueError:
            raise Gone("answered with nonsense") from None
        if not isinstance(reply, dict):
            raise Gone("answered with nonsense")
        if "error" in reply:
            name, message = (str(text) for text in reply["error"])
            raise _ERRORS[name](message) if name in _ERRORS else _error(name)(f"{name}: {message}")
        return reply

    def _send(self, data: bytes) -> None:
        while data:
            if not select.select([], [self._calls], [], max(0.0, self.deadline - time.monotonic()))[1]:
                raise Gone("took too long")
            try:
                data = data[os.write(self._calls, data[: select.PIPE_BUF]) :]
            except BrokenPipeError:
                raise Gone("ended without an answer") from None


class Remote:
    """An object of the program's. What it says of itself is plain data; it is never asked whether it is equal or true."""

    __slots__ = ("_number", "_program")

    def __init__(self, program: Program, number: int) -> None:
        self._program, self._number = program, number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._program.ask("attribute", self._number, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._program.ask("call", self._number, *args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        each = self._program.ask("iter", self._number)
        while True:
            try:
                item = self._program.ask("next", each._number)
            except _Stop:
                return
            yield item

    def __next__(self) -> Any:
        try:
            return self._program.ask("next", self._number)
        except _Stop:
            raise StopIteration from None

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("an object of the program's is compared by its parts, not as a whole")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __hash__ = _refuse


class _Stop(ProgramError):
    """The StopIteration of an iterator of the program's."""


def _error(name: str) -> type[Exception]:
    return _Stop if name == "StopIteration" else ProgramError


def _forwarded(operation: str, kind: type | None) -> Callable[..., Any]:
    def method(self: Remote, *args: Any) -> Any:
        value = self._program.ask(operation, self._number, *args)
        if kind is not None and type(value) is not kind:
            raise TypeError(f"{operation}() of an object of the program's is no {kind.__name__}")
        return value

    return method


for _name, _kind in {"len": int, "str": str, "repr": str}.items():
    setattr(Remote, f"__{_name}__", _forwarded(_name, _kind))
for _name in ("getitem", "setitem", "delitem"):  # no arithmetic: what is nothing apart from any number would be near each
    setattr(Remote, f"__{_name}__", _forwarded(_name, None))


def _number(value: Any) -> int:
    if isinstance(value, Remote):
        return value._number
    raise TypeError(f"a test cannot give the program a {type(value).__name__}")


def _update(arg: Any, after: Any) -> None:
    """Let the test see what a function did to what it was given."""
    if isinstance(arg, list) and isinstance(after, list):
        arg[:] = after
    elif isinstance(arg, (dict, set)) and isinstance(after, type(arg)):
        arg.clear()
        arg.update(after)


# ---- tests


def main(file: str) -> None:
    spec = enter(int(file))
    verdict = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a test prints is no verdict
    program = Program(spec["calls"], spec["replies"])
    try:
        program.deadline = time.monotonic() + spec["seconds"]
        program.reply()  # it is loaded
        base = _space(spec["setup"], {})
        for test in spec["tests"]:
            program.deadline = time.monotonic() + spec["seconds"]
            why = _tried(test, base, program)
            _tell(verdict, why)
            if why and spec["stop"]:
                return
    except Gone as gone:
        _tell(verdict, f"the program {gone}")
    except Exception as error:
        _tell(verdict, _words(error))


def _tried(test: dict[str, Any], base: dict[str, Any], program: Program) -> str:
    """Why a test fails, "" where it passes."""
    try:
        if "code" in test:
            _assert(test["code"], base, program)
            return ""
        function = program.named(test["call"])[1]
        for part in test.get("of", ()):  # a method of a class that is made without arguments
            function = getattr(function(), part)
        got, expected = _listed(function(*test["args"])), test["expected"]
        same = got == expected and isinstance(got, bool) == isinstance(expected, bool)
        return "" if same else f"returned {got!r:.80}, expected {expected!r:.80}"
    except Exception as error:
        return _words(error)


def _assert(code: str, base: dict[str, Any], program: Program) -> None:
    tree = ast.parse(code)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    space = dict(base)
    for name in sorted(names - set(space) - set(vars(builtins))):
        if name in sys.stdlib_module_names and name not in called:  # no module can be called
            space[name] = importlib.import_module(name)
            continue
        there, value = program.named(name)
        if there:
            space[name] = value
    exec(compile(tree, "test.py", "exec"), space)


def _space(setup: str, space: dict[str, Any]) -> dict[str, Any]:
    exec(compile(setup, "setup.py", "exec"), space)
    return space


def _listed(value: Any) -> Any:
    """Tuples as lists, which is what the expected values of a JSON file are."""
    return [_listed(item) for item in value] if isinstance(value, (list, tuple)) else value


def _words(error: Exception) -> str:
    said = str(error)[:200]
    return type(error).__name__ + (f": {said}" if said else "")


def _tell(verdict: int, why: str) -> None:
    os.write(verdict, json.dumps(why).encode() + b"\n")
