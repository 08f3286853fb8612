r"""Whether two expressions are equal by algebra, such as \sqrt{8} and 2\sqrt{2}: math-verify behind a gate, in processes of
its own.

math-verify hands the text to sympy, in which 9^{9^{9}} or a long product takes as long as it likes: by default it gives up
after five seconds for each side and five more for the comparison, by an alarm that works in the main thread alone and that a
long multiplication never sees. A policy that hits upon such expressions would stall each step by minutes, so the gate lets
through only what is short, flat and small, and that is compared by worker processes (`pool`), which are killed after two
seconds. What the comparisons of one batch take together is limited too (`decide`). Everything else counts as not equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from grpo_exp import pool

LONGEST = 300
MOST_DIGITS = 30
DEEPEST = 10
MOST_POWERS = 6
MOST_FUNCTIONS = 4  # sines and the like, which sympy tries to simplify in many ways
LARGEST_POWER = 100  # the product of all exponents
SECONDS = 2.0
TOGETHER = 5.0  # seconds that the comparisons of a batch share
HURRIED = 0.1  # for each of the others, some hundred times what an ordinary one takes
REMEMBERED = 1 << 16
MEMORY = 4 << 30  # bytes a worker may use

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

Pair = tuple[str, str]  # found, reference
T = TypeVar("T")

_known: dict[Pair, bool | float] = {}  # whether they are equal, or after how many seconds the comparison was stopped
_batch: dict[Pair, bool | float] | None = None  # the same, of the batch that is being decided


class Undecided(Exception):
    """A batch asks whether two expressions are equal, and nobody has compared them yet."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(*pair)
        self.pair = pair


def decide(questions: Sequence[Callable[[], T]]) -> list[T]:
    """The answers to questions that use `equal`: what they need to have compared is compared together, equal pairs once.

    A question is asked again when what it stumbled over is known, so it must have no effect but its answer.
    """
    global _batch
    answers: dict[int, T] = {}
    _batch, before = {}, _batch
    try:
        open_ = list(range(len(questions)))
        while open_:
            wanted: dict[int, Pair] = {}
            for i in open_:
                try:
                    answers[i] = questions[i]()
                except Undecided as undecided:
                    wanted[i] = undecided.pair
            _batch |= _compare(dict.fromkeys(wanted.values()))
            open_ = list(wanted)
    finally:
        _batch = before
    return [answers[i] for i in range(len(questions))]


def equal(found: str, reference: str) -> bool:
    """Whether the two are the same by algebra; False for what the gate keeps out and for what takes too long.

    Raises:
        Undecided: within `decide`, which asks again.
    """
    if not (admitted(found) and admitted(reference)):
        return False
    pair = (found, reference)
    if _batch is None:
        verdict = _compare([pair])[pair]
    elif pair in _batch:
        verdict = _batch[pair]
    elif _settled(_known.get(pair)):
        verdict = _batch[pair] = _known[pair]
    else:
        raise Undecided(pair)
    if isinstance(verdict, bool):
        return verdict
    pool.count_stopped()
    return False


def _compare(pairs: Iterable[Pair]) -> dict[Pair, bool | float]:
    """The verdict on each pair; one that was stopped after SECONDS is not tried again."""
    pairs = list(pairs)
    new = [pair for pair in pairs if not _settled(_known.get(pair))]
    if len(_known) + len(new) > REMEMBERED:
        kept = {pair: _known[pair] for pair in pairs if pair in _known}
        _known.clear()
        _known.update(kept)
    if new:
        results = pool.shared("grpo_exp.answers.algebra:equal", MEMORY).map(new, SECONDS, TOGETHER, HURRIED)
        # A worker that ran out of memory or crashed has no verdict either: not equal.
        _known.update({pair: _verdict(result) for pair, result in zip(new, results, strict=True)})
    return {pair: _known[pair] for pair in pairs}


def _verdict(result: bool | pool.Lost) -> bool | float:
    if isinstance(result, pool.Lost):
        return result.seconds if result.late else False
    return result


def _settled(verdict: bool | float | None) -> bool:
    return isinstance(verdict, bool) or (verdict is not None and verdict >= SECONDS)


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
