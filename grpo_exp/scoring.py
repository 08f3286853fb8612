"""The values of one reward part, checked, under a limit in time, and what becomes of samples that it fails on."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_exp.batch import Completions
from grpo_exp.deadline import DeadlineExceeded, deadline, possible
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
    """What a part's function did wrong, in words; `search` where one sample may be to blame."""

    def __init__(self, text: str, search: bool = True) -> None:
        super().__init__(text)
        self.search = search


def score(name: str, function: Score, completions: Completions, failures: Failures) -> tuple[Tensor, dict[int, str]]:
    """A part's values for N samples, `[N]` float32, NaN where it does not apply or failed; and row -> how it failed.

    A RewardError in place of a value says what went wrong with that sample. A function that raises is given each alone. With
    on_error=error that finds the one to name. With zero it finds those that count nothing; each may then take its even share of
    the time that was too short for all.

    Raises:
        GrpoError: an InputError of the function's own, which no sample is to blame for.
        RewardError: with on_error=error any failure; a wrong number of values; more failures than max_failed.
    """
    failed: dict[int, str] = {}
    try:
        values = _values(name, function, completions, failures.timeout)
    except _Fault as fault:
        if failures.on_error == "error":
            culprit = _culprit(name, function, completions) if fault.search else ""
            raise RewardError(f"{fault}{culprit}") from fault.__cause__
        values = []
        for row in range(len(completions)):
            try:
                values += _values(name, function, completions.alone(row), failures.timeout / len(completions))
            except _Fault as alone:
                values.append(None)
                failed[row] = f"{alone}, for {_sample(completions, row)}"
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


def _values(name: str, function: Score, completions: Completions, seconds: float) -> list[Any]:
    """What the function returned, one value a sample.

    Raises:
        _Fault: it raised, or took too long.
        RewardError: it returned something else.
    """
    try:
        with deadline(seconds) if math.isfinite(seconds) and possible() else contextlib.nullcontext():
            values = function(completions)
    except RewardError as error:
        raise _Fault(str(error)) from error  # it explains itself
    except GrpoError:
        raise
    except DeadlineExceeded as error:
        raise _Fault(
            f"reward part '{name}' took longer than {seconds:.3g} s for {len(completions)} samples (reward.timeout sets the "
            "limit for a call)",
            search=False,
        ) from error
    except (Exception, SystemExit) as error:  # SystemExit: sys.exit() in a reward must not end the run as if it were done
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


def _culprit(name: str, function: Score, completions: Completions) -> str:
    """The first sample that the function fails on alone, in words; empty where there is none."""
    for row in range(len(completions)):
        try:
            _values(name, function, completions.alone(row), seconds=1.0)
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
