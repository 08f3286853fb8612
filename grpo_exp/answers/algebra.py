"""math-verify, as a worker of the pool calls it. `symbolic` is the gate before it."""

from __future__ import annotations

import logging

import math_verify

logging.getLogger("math_verify").setLevel(logging.ERROR)  # its warnings quote the completion to the console


def equal(pair: tuple[str, str]) -> bool:
    """Whether found and reference are the same. There is no limit in time here: the pool has it."""
    config = [math_verify.LatexExtractionConfig(boxed_match_priority=-1)]
    found, reference = (math_verify.parse(f"${text}$", config, parsing_timeout=None) for text in pair)
    # With the default of 6 digits sqrt(2) would equal 1.414214.
    return bool(math_verify.verify(reference, found, float_rounding=12, numeric_precision=15, timeout_seconds=None))


equal(("\\sqrt{8}", "2\\sqrt{2}"))  # the first takes some hundred times as long: before the worker says that it is ready
