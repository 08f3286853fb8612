r"""Whether two expressions are equal by algebra, such as \sqrt{8} and 2\sqrt{2}: math-verify behind a gate.

math-verify hands the text to sympy, in which 9^{9^{9}} or a long product takes as long as it likes: by default it gives up
after five seconds for each side and five more for the comparison. A policy that hits upon such expressions would stall each
step by minutes, so the gate lets through only what is short, flat and small, and that has two seconds in all. What many such
comparisons of one call take together is limited too (`together`). Everything else counts as not equal.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from grpo_exp.deadline import DeadlineExceeded, deadline

LONGEST = 300
MOST_DIGITS = 30
DEEPEST = 10
MOST_POWERS = 6
MOST_FUNCTIONS = 4  # sines and the like, which sympy tries to simplify in many ways
LARGEST_POWER = 100  # the product of all exponents
SECONDS = 2.0
TOGETHER = 5.0  # seconds that comparisons of one call share
REMEMBERED = 4096
HURRIED = 0.1  # for each of the others, some hundred times what an ordinary one takes

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


_left: list[float] = []  # of the call that runs: seconds that its comparisons may still take
_stopped: dict[tuple[str, str], float] = {}  # a comparison that was stopped, and after how long
_counts = Counter[str]()


@contextmanager
def together() -> Iterator[None]:
    """The comparisons within share TOGETHER seconds; when these are used up, each has HURRIED."""
    _left.append(TOGETHER)
    try:
        yield
    finally:
        _left.pop()


def stops() -> int:
    """How many comparisons were stopped since this was last asked."""
    return _counts.pop("stopped", 0)


def equal(found: str, reference: str) -> bool:
    """Whether the two are the same by algebra; False for what the gate keeps out and for what takes too long.

    Raises:
        RuntimeError: from `deadline`, outside the main thread or without alarms.
    """
    if not (admitted(found) and admitted(reference)):
        return False
    seconds = min(SECONDS, max(HURRIED, _left[-1])) if _left else SECONDS
    if _stopped.get((found, reference), 0.0) >= seconds:
        _counts["stopped"] += 1
        return False
    import math_verify  # noqa: F401 -- seconds of their own, not the comparison's

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # its warnings quote the completion to the console
    began = time.monotonic()
    try:
        with deadline(seconds):
            return _verify(found, reference)
    except DeadlineExceeded:
        if len(_stopped) >= REMEMBERED:
            _stopped.clear()
        _stopped[found, reference] = seconds
        _counts["stopped"] += 1
        return False
    finally:
        if _left:
            _left[-1] -= time.monotonic() - began


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
    if sum(w in _FUNCTIONS - {"sqrt", "pi"} for _, w in _WORD.findall(text)) > MOST_FUNCTIONS:
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


@lru_cache(maxsize=REMEMBERED)
def _verify(found: str, reference: str) -> bool:
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig(boxed_match_priority=-1)]
    # One deadline for all three calls, so theirs are off.
    gold, answer = (parse(f"${text}$", config, parsing_timeout=None) for text in (reference, found))
    # With the default of 6 digits sqrt(2) would equal 1.414214.
    return bool(verify(gold, answer, float_rounding=12, numeric_precision=15, timeout_seconds=None))
