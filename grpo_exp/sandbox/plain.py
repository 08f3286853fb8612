"""Values as text between the program and the tests, so that what arrives is of Python's own types and nothing else.

A subclass of str that is equal to everything arrives as the str that it holds. What is no plain data is an object, known by a
number, and stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LARGE = 1 << 63  # beyond, a number in decimal takes quadratic time to read
_KINDS: dict[str, type[Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def encode(value: Any, number: Callable[[Any], int]) -> Any:
    """What JSON can hold of a value; `number` gives the number of an object that is no plain data, or raises."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return int(value) if -_LARGE < value < _LARGE else ["int", hex(value)]
    if isinstance(value, (str, float)):
        return value
    if isinstance(value, dict):
        return ["dict", *([encode(k, number), encode(v, number)] for k, v in value.items())]
    for name, kind in _KINDS.items():
        if isinstance(value, kind):
            return [name, *(encode(item, number) for item in value)]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    return ["object", number(value)]


def decode(value: Any, made: Callable[[int], Any]) -> Any:
    """The value that JSON held, of Python's own types whoever wrote it; `made` gives what stands for an object.

    Raises:
        ValueError, TypeError: it was not written by `encode`.
    """
    if not isinstance(value, list):
        if isinstance(value, dict):
            raise ValueError("a mapping in JSON, which encode does not write")
        return value
    kind, *items = value
    if kind == "object":
        return made(int(items[0]))
    if kind == "int":
        return int(items[0], 16)
    if kind == "bytes":
        return bytes.fromhex(items[0])
    if kind == "complex":
        return complex(float(items[0]), float(items[1]))
    if kind == "dict":
        return {decode(k, made): decode(v, made) for k, v in items}
    return _KINDS[kind](decode(item, made) for item in items)
