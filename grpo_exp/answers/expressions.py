"""Whether an answer may be given to code that evaluates it as Python, as sympy's parse_expr and `eval` do: they run anything.

Only what cannot call, loop or grow is let through: literals, or arithmetic of short numbers and single letters with small
powers and a few functions. It is a list of what is allowed, since lists of what is forbidden have holes.
"""

from __future__ import annotations

import ast
import math
import re

LONGEST = 500
MOST_WORDS = 40
LARGEST_POWER = 100  # the product of exponents of what stands in brackets

_BARE = re.compile(r"[\w ,;:'.\n-]*")
_ARITHMETIC = re.compile(r"[0-9A-Za-z+\-*/^().\s]*")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_FUNCTION_NAMES = "sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt pi"
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzCEIX")  # of the others some are functions of sympy
_DOT = re.compile(r"(?<![0-9])\.|\.(?![0-9\s)+\-*/^]|$)|\.\s*[A-Za-z(]")
_POWER = re.compile(r"(?:\*\*|\^)\s*(?:(\d{1,2})|[a-z]|\(\s*-?\s*(\d{1,2})(?:\s*/\s*\d{1,2})?\s*\))(?![\w.])(?!\s*(?:\*\*|\^))")
_LONG_NUMBER = re.compile(r"[0-9]{16}")
_EXPONENT = re.compile(r"[0-9.]\s*[eE]\s*[+-]?\s*[0-9]{4}")


def literal(text: str) -> bool:
    """Whether it is a Python literal, or words and numbers that no bracket and no operator joins."""
    if len(text) > 4 * LONGEST or "__" in text:
        return False
    if _BARE.fullmatch(text):
        return True
    try:
        ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def arithmetic(text: str) -> bool:
    """Whether it is arithmetic that is quickly done."""
    if len(text) > LONGEST or not _ARITHMETIC.fullmatch(text) or _DOT.search(text) or _LONG_NUMBER.search(text):
        return False
    words = _WORD.findall(text)
    if len(words) > MOST_WORDS or any(word not in _FUNCTIONS and word not in _LETTERS for word in words):
        return False
    powers = list(_POWER.finditer(text))
    if len(powers) != len(re.findall(r"\*\*|\^", text)):
        return False
    of_brackets = [int(m[1] or m[2] or 1) for m in powers if text[: m.start()].rstrip().endswith(")")]
    return math.prod(max(1, power) for power in of_brackets) <= LARGEST_POWER


def moderate(text: str) -> bool:
    """Whether it is of a length, and its numbers of a size, that reading it as a number takes no time: not 1e999999999."""
    return len(text) <= 20 * LONGEST and not _EXPONENT.search(text)
