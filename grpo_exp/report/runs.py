"""The runs in folders, whatever state they are in: finished, going on, failed, damaged."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from grpo_exp.errors import DataError, InputError
from grpo_exp.report import lines
from grpo_exp.report.items import Items, read_items
from grpo_exp.stats import Interval
from grpo_exp.track.files import read_jsonl, read_yaml
from grpo_exp.track.wording import is_number

MARKS = ("run.json", "metrics.jsonl", "trial.json", "error.txt")
"""A folder that holds one of them is a run's."""
STATUSES = ("finished", "running", "stopped", "pruned", "failed", "broken")
"""What run.json may say, and `broken`: it cannot be read."""
ALIVE = 600.0  # seconds without a new line after which a running run is suspected dead
AXES = ("step", "tokens", "seconds")
Columns = dict[str, np.ndarray]
"""A metric's values, `[rows]` float64 each, NaN where a row lacks it."""
_INSIDE = {"checkpoints", "export", "wandb"}
_STATES = {"complete": "finished", "pruned": "pruned", "fail": "failed", "running": "running"}


@dataclass
class Run:
    """One run's folder.

    Attributes:
        folder: where it is.
        sweep: name of the sweep that it belongs to; None outside one.
        trial: its number in there.
        status: one of STATUSES.
        reason: why it is not finished; None where that is not known.
        card: run.json, {} where it cannot be read.
        config: config.yaml, flat: `{"beta": 0.04, "algo": "grpo", "algo.clip_low": 0.2}`. A group stands for its name.
        record: trial.json, {} outside a study.
    """

    folder: Path
    sweep: str | None = None
    trial: int | None = None
    status: str = "broken"
    reason: str | None = None
    card: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A short name: `beta_grid/3`, `beta_grid/3/seed-1`, or the folder's."""
        if self.sweep is None or self.trial is None:
            return self.folder.name
        seed = f"/{self.folder.name}" if self.folder.name.startswith("seed-") else ""
        return f"{self.sweep}/{self.trial}{seed}"

    @property
    def seed(self) -> int | None:
        seed = self.config.get("seed", _dict(self.card.get("seeds")).get("run"))
        return seed if isinstance(seed, int) else None

    @property
    def metric(self) -> str:
        """What the run is judged by."""
        found = _dict(self.card.get("goal")).get("metric") or self.config.get("objective.metric")
        return found if isinstance(found, str) else "eval/pass@1"

    @property
    def data_hash(self) -> str | None:
        found = _dict(self.card.get("data")).get("sha256")
        return found if isinstance(found, str) else None

    @property
    def maximize(self) -> bool:
        found = _dict(self.card.get("goal")).get("direction") or self.config.get("objective.direction")
        return found != "minimize"

    @property
    def objective(self) -> float | None:
        """The newest value of `metric`; of a run that is not finished, so far."""
        if (value := number(self.card.get("objective"))) is not None:
            return value
        return self.after[self.metric].value if self.metric in self.after else None

    @cached_property
    def before(self) -> dict[str, Interval]:
        """The evaluation before the first step: metric -> value, low, high; {} where there was none."""
        if found := _intervals(self.card.get("before")):
            return found
        first = lines.first(self.folder / "metrics.jsonl")
        return _columns(first) if first.get("kind") == "eval" and first.get("step") == 0 else {}

    @cached_property
    def after(self) -> dict[str, Interval]:
        """The newest evaluation."""
        if found := _intervals(self.card.get("after")):
            return found
        rows = lines.from_the_end(self.folder / "metrics.jsonl")
        return _columns(next((row for row in rows if row.get("kind") == "eval"), {}))

    @property
    def change(self) -> dict[str, Interval]:
        """The newest evaluation minus the first, paired over items; {} where run.json does not say."""
        return _intervals(self.card.get("difference"))

    @cached_property
    def tail(self) -> list[lines.Row]:
        """The last ten training rows of metrics.jsonl, in their order."""
        rows: list[lines.Row] = []
        for row in lines.from_the_end(self.folder / "metrics.jsonl"):
            if row.get("kind") != "eval":
                rows.append(row)
            if len(rows) == 10:
                break
        return rows[::-1]

    @property
    def steps(self) -> int:
        """Training steps done."""
        return int(number(self.tail[-1].get("step")) or 0) if self.tail else 0

    @property
    def tokens(self) -> float | None:
        """Tokens sampled in training."""
        return self._last("tokens")

    @property
    def seconds(self) -> float | None:
        """Seconds of training and evaluation, summed over resumptions."""
        found = self._last("seconds")
        return number(self.card.get("wall_seconds")) if found is None else found

    def late(self, name: str) -> float | None:
        """Median of a training metric over the last ten steps."""
        values = lines.column(self.tail, name)
        values = values[np.isfinite(values)]
        return float(np.median(values)) if len(values) else None

    def curves(self, train: Sequence[str], evaluated: Sequence[str], points: int | None = None) -> tuple[Columns, Columns]:
        """Columns of metrics.jsonl, of its training rows and of its evaluations.

        `step`, `tokens` and `seconds` are always among them. With `points`, at most so many rows of each, evenly spread and not
        averaged; the first and the last are among them. Nothing is kept: call it once for all the names that are needed.
        """
        parts = zip(lines.spread(self.folder / "metrics.jsonl", points), (train, evaluated), strict=True)
        one, other = ({name: lines.column(rows, name) for name in dict.fromkeys((*AXES, *names))} for rows, names in parts)
        return one, other

    def names(self) -> list[str]:
        """The training metrics that it has."""
        return [key for key in (self.tail[-1] if self.tail else {}) if key not in ("step", "kind", "tokens", "seconds")]

    def items(self, step: int | None = None) -> Items | None:
        """The outcomes of an evaluation by item, of the last one (kept) or that of `step`; None where there is none."""
        return self._last_items if step is None else read_items(self.folder / "eval.jsonl", step)

    @cached_property
    def _last_items(self) -> Items | None:
        return read_items(self.folder / "eval.jsonl", None)

    @cached_property
    def findings(self) -> list[lines.Row]:
        """What health checks found in it, lines of health.jsonl; none where the file is not there or is damaged."""
        try:
            rows = list(read_jsonl(self.folder / "health.jsonl"))
        except DataError:
            return []
        return [row for row in rows if isinstance(row.get("title"), str) and number(row.get("since")) is not None]

    def samples(self) -> list[lines.Row]:
        """The training samples of the last step that has any."""
        return lines.last_step(self.folder / "samples.jsonl")

    def _last(self, name: str) -> float | None:
        row = next(lines.from_the_end(self.folder / "metrics.jsonl"), {})
        found = number(row.get(name))
        return number(self.card.get(name)) if found is None else found


def find(paths: Iterable[str | Path]) -> list[Run]:
    """The runs in run folders, sweeps, and folders of those, each once, in the order of their numbers.

    A run that is damaged is among them, with `status` broken and the reason. Evaluations of the verb `evaluate` are not.

    Raises:
        InputError: a path does not exist, or there is no run in it.
    """
    found: dict[Path, Run] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(
                f"{path}: no such folder. Give the folder of a run or of a sweep, such as outputs/sweeps/beta_grid"
            )
        folders = list(_folders(path.parent if path.is_file() else path))
        if not folders:
            raise InputError(f"{path}: no run in it; a run's folder holds run.json and metrics.jsonl")
        for folder in folders:
            if (key := folder.resolve()) not in found:
                found[key] = read(folder)
    return list(found.values())


def read(folder: Path) -> Run:
    """One run's folder; never fails on what is in it."""
    sweep, trial, record = _place(folder)
    run = Run(folder, sweep, trial, record=record)
    card, problem = _load(folder / "run.json", json.loads)
    config, trouble = _load(folder / "config.yaml", read_yaml)
    run.card, run.config = card, flat(config)
    status, state = card.get("status"), _STATES.get(str(record.get("state")))
    if status in STATUSES:
        # a study knows of a killed process, and of an objective that is no number, what run.json cannot say
        later = state in ("pruned", "failed") if status == "running" else state == "failed" and folder.name.isdigit()
        run.status = str(state) if later else str(status)
        run.reason = _reason(run)
    elif state in ("pruned", "failed"):
        run.status, run.reason = state, _text(record.get("reason")) or problem
    else:
        run.reason = problem or f"run.json has the status {str(status)[:40]!r}"
    if trouble and not problem and run.status not in ("running", "failed"):  # these may end before it is written
        run.status, run.reason = "broken", trouble
    return run


def flat(config: Mapping[str, Any], key: str = "") -> dict[str, Any]:
    """A nested configuration by dotted keys; the name of a group stands for the group: `algo.name` becomes `algo`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        here = f"{key}.{name}" if key else str(name)
        if isinstance(value, dict):
            found |= flat(value, here)
        else:
            found[key if name == "name" and key and "." not in key else here] = value
    return found


def number(value: Any) -> float | None:
    """A finite number, or None."""
    return float(value) if is_number(value) else None


def _folders(top: Path) -> Iterator[Path]:
    """The run folders at and below a folder, numbers in their order."""
    if not (top / "evaluation.json").exists() and any((top / name).exists() for name in MARKS) and not _holds_seeds(top):
        yield top
        return
    try:
        below = [entry for entry in os.scandir(top) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in sorted(below, key=lambda e: (not e.name.isdigit(), int(e.name) if e.name.isdigit() else 0, e.name)):
        if not entry.name.startswith((".", "earlier-")) and entry.name not in _INSIDE:
            yield from _folders(top / entry.name)


def _holds_seeds(folder: Path) -> bool:
    return any(folder.glob("seed-*/"))


def _place(folder: Path) -> tuple[str | None, int | None, dict[str, Any]]:
    """(sweep, number, trial.json) of a run's folder."""
    path = Path(os.path.abspath(folder))
    trial = path.parent if path.name.startswith("seed-") else path
    record, _ = _load(trial / "trial.json", json.loads)
    if not trial.name.isdigit():
        return None, None, record
    top = trial.parent
    if record or (top / "sweep.json").exists() or (top / "multirun.yaml").exists() or top.parent.name == "sweeps":
        return top.name, int(trial.name), record
    return None, None, record


def _load(path: Path, parse: Any) -> tuple[dict[str, Any], str | None]:
    """(content, None), or ({}, what is wrong)."""
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, f"{path.name} is missing"
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"{path.name} cannot be read ({str(error).splitlines()[0][:100]})"
    return (content, None) if isinstance(content, dict) else ({}, f"{path.name} holds no object")


def _reason(run: Run) -> str | None:
    """Why a run with a readable card is not finished."""
    if run.status == "finished":
        return None
    found = _text(run.record.get("reason")) or _text(run.card.get("error")) or _text(run.card.get("reason"))
    if found or run.status != "running":
        return found
    try:
        silent = time.time() - (run.folder / "metrics.jsonl").stat().st_mtime
    except OSError:
        return None
    return f"no new line for {silent / 60:.0f} minutes; it may be dead" if silent > ALIVE else None


def _intervals(rows: Any) -> dict[str, Interval]:
    """`before` or `after` of run.json."""
    found = {}
    for name, triple in _dict(rows).items():
        if isinstance(triple, list) and len(triple) == 3 and all(number(x) is not None for x in triple):
            found[str(name)] = Interval(*map(float, triple))
    return found


def _columns(row: Mapping[str, Any]) -> dict[str, Interval]:
    """The same from an evaluation row of metrics.jsonl."""
    found = {}
    for name, value in row.items():
        triple = [number(value), number(row.get(f"{name}_low")), number(row.get(f"{name}_high"))]
        if name.startswith("eval/") and None not in triple:
            found[name] = Interval(*(x for x in triple if x is not None))
    return found


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None
