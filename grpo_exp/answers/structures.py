"""JSON that a policy wrote: read strictly and with bounds, and when two values are the same.

Refused, besides what is no JSON: NaN and Infinity, which JSON does not have, numbers that no float holds, a key that occurs
twice, which would be read one way here and another way elsewhere, and what is deeper than DEEPEST or longer than LONGEST.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

LONGEST = 100_000  # characters
DEEPEST = 64
MOST_DIGITS = 300  # of a whole number

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


class Malformed(ValueError):
    """Why a text is not the JSON that is wanted."""


def parse(text: str) -> Any:
    """The value that the text states.

    Raises:
        Malformed: it states none.
    """
    if len(text) > LONGEST:
        raise Malformed(f"longer than {LONGEST} characters")
    depth = 0
    for match in _TOKEN.finditer(text):
        depth += (match[0] in "[{") - (match[0] in "]}")
        if depth > DEEPEST:
            raise Malformed(f"deeper than {DEEPEST} levels")
    try:
        return json.loads(text, parse_int=_whole, parse_float=_decimal, parse_constant=_constant, object_pairs_hook=_object)
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed(f"no JSON: {error}") from error


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same: 1 is 1.0, but true is not 1; the order of keys does not matter, that of lists does."""
    return canonical(one) == canonical(other)


def canonical(value: Any) -> str:
    """A text that is the same for the same values."""
    return json.dumps(_numbers(value), sort_keys=True, default=str)


def _numbers(value: Any) -> Any:
    """The value with 1 for 1.0."""
    if isinstance(value, dict):
        return {str(key): _numbers(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_numbers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise Malformed(f"a number of {len(digits)} digits")
    return int(digits)


def _decimal(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise Malformed(f"{digits[:20]} is larger than any float")
    return number


def _constant(name: str) -> Any:
    raise Malformed(f"{name} is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Malformed(f"the key {key[:40]!r} occurs twice")
        found[key] = value
    return found
