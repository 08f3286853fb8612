r"""Whether two expressions are equal by algebra, such as \sqrt{8} and 2\sqrt{2}: math-verify behind a gate.

math-verify hands the text to sympy, in which 9^{9^{9}} or a long product takes as long as it likes: by default it gives up
after five seconds for each side and five more for the comparison. A policy that hits upon such expressions would stall each
step by minutes, so the gate lets through only what is short, flat and small, and that has two seconds in all. Everything else
counts as not equal.
"""

from __future__ import annotations

import logging
import math
import re
from functools import lru_cache

from grpo_exp.deadline import DeadlineExceeded, deadline

LONGEST = 300
MOST_DIGITS = 30
DEEPEST = 10
MOST_POWERS = 6
LARGEST_POWER = 100  # the product of all exponents
SECONDS = 2.0

_FUNCTION_NAMES = "sin cos tan cot sec csc log ln exp sqrt pi arcsin arccos arctan sinh cosh tanh"
_COMMAND_NAMES = """
frac cdot times div pm mp le leq ge geq lt gt ne neq infty cup cap in emptyset begin end pmatrix bmatrix mathbb alpha beta gamma
delta epsilon theta lambda mu phi omega sigma rho tau psi circ overline vert lvert rvert mid
"""
_FUNCTIONS = set(_FUNCTION_NAMES.split())
_COMMANDS = _FUNCTIONS | set(_COMMAND_NAMES.split())
_WORD = re.compile(r"(\\?)([A-Za-z]{2,})")
_POWER = re.compile(r"\^ ?(?:\{ ?([-+]?)([0-9]{0,3})([A-Za-z/0-9]{0,4}) ?\}|([0-9])|[A-Za-z])")
_TWO_NUMBERS = re.compile(r"[0-9)] +[0-9]")


def equal(found: str, reference: str) -> bool:
    """Whether the two are the same by algebra; False for what the gate keeps out and for what takes longer than `SECONDS`.

    Raises:
        RuntimeError: from `deadline`, outside the main thread or without alarms.
    """
    return admitted(found) and admitted(reference) and _verify(found, reference)


def admitted(text: str) -> bool:
    """Whether an expression is short, flat and small enough, and is mathematics rather than prose."""
    if not 0 < len(text) <= LONGEST or sum(c.isdigit() for c in text) > MOST_DIGITS or not text.isascii():
        return False
    if any(c in text for c in "!$#\n") or "**" in text or _TWO_NUMBERS.search(text):
        return False
    if any(
        w not in (_COMMANDS if slash else _FUNCTIONS | {"pmatrix", "bmatrix"}) and (slash or len(w) > 2)
        for slash, w in _WORD.findall(text)
    ):
        return False
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return depth == 0 and deepest <= DEEPEST and _powers_are_small(text)


def _powers_are_small(text: str) -> bool:
    powers = list(_POWER.finditer(text))
    if len(powers) != text.count("^") or len(powers) > MOST_POWERS or any(text.startswith("^", m.end()) for m in powers):
        return False
    return math.prod(max(1, int(m[2] or m[4] or 1)) for m in powers) <= LARGEST_POWER


@lru_cache(maxsize=4096)
def _verify(found: str, reference: str) -> bool:
    from math_verify import LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # its warnings quote the completion to the console
    config = [LatexExtractionConfig(boxed_match_priority=-1)]
    try:
        with deadline(SECONDS):  # one for all three calls, so theirs are off
            gold, answer = (parse(f"${text}$", config, parsing_timeout=None) for text in (reference, found))
            # With the default of 6 digits sqrt(2) would equal 1.414214.
            return bool(verify(gold, answer, float_rounding=12, numeric_precision=15, timeout_seconds=None))
    except DeadlineExceeded:
        return False
