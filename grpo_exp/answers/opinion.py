"""math-verify's opinion of a whole completion, as a worker of the pool asks for it: a second one, beside this project's own."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import math_verify

from grpo_exp import pool

SECONDS = 2.0  # for one completion
TOGETHER = 60.0  # for all of them

logging.getLogger("math_verify").setLevel(logging.ERROR)  # its warnings quote the completion to the console


def right(pair: tuple[str, str]) -> bool:
    """Whether math-verify, as it comes, finds the reference answer in the text. It has no limit in time here: the pool has."""
    text, reference = pair
    found, wanted = math_verify.parse(text, parsing_timeout=None), math_verify.parse(f"${reference}$", parsing_timeout=None)
    return bool(math_verify.verify(wanted, found, timeout_seconds=None))


def opinions(pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
    """The same for each pair of completion and reference; None where it raised, crashed or took too long."""
    results = pool.shared("grpo_exp.answers.opinion:right").map(list(pairs), SECONDS, TOGETHER)
    return [None if isinstance(result, pool.Lost) else bool(result) for result in results]
