"""The values of reward parts, checked, under a limit in time, and what becomes of samples that a part fails on."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_exp import calls
from grpo_exp.batch import Completions
from grpo_exp.deadline import DeadlineExceeded
from grpo_exp.errors import GrpoError, RewardError

Score = Callable[[Completions], Any]
LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Failures:
    """What is done where a reward raises, takes too long, or returns something else than a finite number or None.

    Attributes:
        on_error: error ends the run; zero lets the part add nothing to that sample, as if it did not apply.
        max_failed: with zero, the largest share of the samples of a call that a part may fail on.
        timeout: seconds that a part may take for a call; without effect where nothing can stop it: outside the main thread.
    """

    on_error: str = "error"
    max_failed: float = 0.0
    timeout: float = math.inf


class _Fault(Exception):
    """What a part's function did wrong, in words."""


def score(
    functions: Mapping[str, Score], completions: Completions, failures: Failures
) -> dict[str, tuple[Tensor, dict[int, str]]]:
    """By part its values for N samples, `[N]` float32, NaN where it does not apply or failed; and row -> how it failed.

    A RewardError in place of a value says what went wrong with that sample. Parts are called in turn, and what is asynchronous
    is awaited together. A part that fails on all samples together is given each alone. With on_error=error that finds the one
    to name. With zero it finds those that count nothing; each may then take its even share of the time that was too short for
    all, and where they are awaited together all of it.

    Raises:
        GrpoError: an InputError of a function's own, which no sample is to blame for.
        RewardError: with on_error=error any failure; a wrong number of values; more failures than max_failed.
    """
    asked = {name: partial(function, completions) for name, function in functions.items()}
    done = calls.run(asked, failures.timeout, failures.timeout)
    return {name: _judged(name, functions[name], done[name], completions, failures) for name in functions}


def _judged(
    name: str, function: Score, done: calls.Done, completions: Completions, failures: Failures
) -> tuple[Tensor, dict[int, str]]:
    """The values of one part, given what its call for all samples did."""
    failed: dict[int, str] = {}
    try:
        values = _values(name, done, completions)
    except _Fault as fault:
        if failures.on_error == "error":
            raise RewardError(f"{fault}{_culprit(name, function, completions, done, failures)}") from done.error
        values, failed = _one_by_one(name, function, completions, failures)
    for row, value in enumerate(values):
        if isinstance(value, RewardError):
            failed[row] = f"{value}, for {_sample(completions, row)}"
        elif value is not None and not _is_number(value):
            failed[row] = (
                f"reward part '{name}' returned {value!r:.80} for {_sample(completions, row)}; return a finite number, or None "
                "where the part does not apply"
            )
    _judge(failed, len(completions), failures)
    numbers = [math.nan if value is None or row in failed else float(value) for row, value in enumerate(values)]
    return torch.tensor(numbers, dtype=torch.float32), failed


def _one_by_one(name: str, function: Score, completions: Completions, failures: Failures) -> tuple[list[Any], dict[int, str]]:
    """The values of samples that are each scored alone, None where that failed; and row -> how it failed."""
    rows = {row: completions.alone(row) for row in range(len(completions))}
    share = failures.timeout / len(completions)
    done = calls.run({row: partial(function, one) for row, one in rows.items()}, share, failures.timeout)
    values, failed = [], {}
    for row, one in rows.items():
        try:
            values += _values(name, done[row], one)
        except _Fault as fault:
            values.append(None)
            failed[row] = f"{fault}, for {_sample(completions, row)}"
    return values, failed


def _judge(failed: dict[int, str], samples: int, failures: Failures) -> None:
    """Raise RewardError where the failures are more than are let pass."""
    first = next(iter(failed.values()), "")
    if failed and failures.on_error == "error":
        raise RewardError(first)
    if len(failed) > failures.max_failed * samples:
        raise RewardError(
            f"{first}. It failed on {len(failed)} of {samples} samples, and reward.max_failed={failures.max_failed:g} of them "
            "is what reward.on_error=zero lets pass"
        )


def _values(name: str, done: calls.Done, completions: Completions) -> list[Any]:
    """What a call returned, one value a sample.

    Raises:
        _Fault: it raised, or took too long.
        RewardError: it returned something else.
    """
    error, values = done.error, done.value
    if isinstance(error, RewardError):
        raise _Fault(str(error)) from error  # it explains itself
    if isinstance(error, GrpoError):
        raise error
    if isinstance(error, DeadlineExceeded):
        raise _Fault(
            f"reward part '{name}' {error} for {len(completions)} samples (reward.timeout sets the limit for a call)"
        ) from error
    if error is not None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise _Fault(
            f"reward part '{name}' raised {type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
        ) from error
    if not isinstance(values, (list, tuple)) or len(values) != len(completions):
        got = f"{len(values)} values" if isinstance(values, (list, tuple)) else type(values).__name__
        raise RewardError(
            f"reward part '{name}' returned {got} for {len(completions)} samples; return a list with one value each"
        )
    return list(values)


def _culprit(name: str, function: Score, completions: Completions, done: calls.Done, failures: Failures) -> str:
    """The first sample that the function fails on alone, in words; empty where there is none.

    Each may take a second, and after a call that took too long its even share of the time, so that one that hangs is found in
    no more than that time.
    """
    seconds = failures.timeout / len(completions) if isinstance(done.error, DeadlineExceeded) else 1.0
    for row in range(len(completions)):
        one = completions.alone(row)
        try:
            _values(name, calls.run({row: partial(function, one)}, seconds, seconds)[row], one)
        except _Fault:
            return f"; alone it fails on {_sample(completions, row)}"
        except GrpoError:
            break
    return ""


def _sample(completions: Completions, row: int) -> str:
    return f"sample {row} of item {completions.examples[row].id} ({completions.texts[row][:80]!r})"


def _is_number(value: Any) -> bool:
    """Whether it is a number that float32 holds."""
    return isinstance(value, (int, float)) and -LARGEST <= value <= LARGEST
