"""How a job ended, read from its folder; what a trial came to, written into it."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from grpo_exp.errors import DataError, InputError
from grpo_exp.sweep.study import feasible, own
from grpo_exp.track.files import read_object
from grpo_exp.track.wording import is_number

FULL = (errno.ENOSPC, errno.EDQUOT)
"""No space left on the disk, or in one's share of it."""


@dataclass(frozen=True)
class Ended:
    """One run of a trial.

    Attributes:
        status: as in run.json, or `missing`.
        reason: why it did not finish.
        error_type: the class of the error that ended it.
    """

    folder: Path
    status: str
    objective: float | None = None
    reason: str | None = None
    error_type: str = ""
    tokens: int = 0
    seconds: float = 0.0

    def values(self, metrics: list[str]) -> list[float]:
        """The objectives at the end of the run; NaN where one was not measured."""
        if len(metrics) == 1:
            return [math.nan if self.objective is None else float(self.objective)]
        last = [row for row in rows(self.folder) if row.get("kind") == "eval"][-1:]
        return [_number(last[0].get(metric)) if last else math.nan for metric in metrics]

    def late(self, metric: str) -> float:
        """A metric over the last ten training steps, or in the last evaluation; NaN where it was not measured."""
        every = rows(self.folder)
        values = [_number(row[metric]) for row in every if metric in row and row.get("kind") == "train"][-10:]
        values = values or [_number(row[metric]) for row in every if metric in row][-1:]
        return sum(values) / len(values) if values else math.nan


def read(folder: Path, error: Exception | None) -> Ended:
    """How the job in this folder ended; `error` is what a launcher said, which counts where the folder does not know.

    A job that is killed leaves `running` behind: it did not finish.
    """
    told = None if error is None else str(error) or type(error).__name__
    if isinstance(error, InputError):  # it never began, whatever an older run left in its place
        return Ended(folder, "failed", reason=told, error_type=type(error).__name__)
    try:
        card = read_object(folder / "run.json")
    except DataError:
        return Ended(folder, "missing" if error is None else "failed", reason=told or "the run left no run.json")
    status = str(card.get("status"))
    numbers = (card.get(key) for key in ("tokens", "wall_seconds", "objective"))
    tokens, seconds, objective = (x if is_number(x) else None for x in numbers)
    tokens, seconds = int(tokens or 0), float(seconds or 0)
    if status == "running":
        return Ended(folder, "failed", None, told or "its process was killed", "RuntimeError", tokens, seconds)
    reason = card.get("reason") or card.get("error") or told
    reason = None if reason is None else str(reason)
    return Ended(folder, status, objective, reason, str(card.get("error_type", "")), tokens, seconds)


def rows(folder: Path) -> list[dict[str, Any]]:
    """The run's metrics, none where there is no file; a torn line is left out."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / "metrics.jsonl").read_bytes().splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
                found += [row] if isinstance(row, dict) else []
    return found


def _number(value: Any) -> float:
    """What a row holds; None, as NaN is written there, and what is no number, is NaN."""
    return float(value) if is_number(value) else math.nan


def disk_is_full(folder: Path, ended: Ended) -> bool:
    """Whether a job failed because nothing more could be written, which is wrong with no trial."""
    if ended.status not in ("failed", "missing"):
        return False
    told = any(os.strerror(number) in (ended.reason or "") for number in FULL)
    return told or shutil.disk_usage(folder).free < 2**20


def write(path: Path, content: dict[str, Any]) -> None:
    """A JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")  # others may write the same file
    temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    os.replace(temporary, path)


def is_told(folder: Path) -> bool:
    """Whether a trial's folder says how it ended."""
    try:
        return bool(read_object(folder / "trial.json").get("state", "running") != "running")
    except DataError:
        return False


def best(study: optuna.Study) -> FrozenTrial | None:
    """The best complete trial that keeps to its constraints."""
    done = [t for t in own(study.get_trials(deepcopy=False)) if t.state == TrialState.COMPLETE and feasible(t)]
    if not done:
        return None
    sign = -1 if study.direction == optuna.study.StudyDirection.MAXIMIZE else 1
    return min(done, key=lambda t: sign * float(t.value or 0))  # the first of equals
