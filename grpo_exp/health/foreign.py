"""Runs of other programs, read from what they log: TRL's trainer_state.json, verl's and OpenRLHF's console, JSON lines, CSV.

Completions are not read, so detectors that look at samples see none. A log that was cut off in the middle loses its last line.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_exp.errors import DataError, InputError, nearest
from grpo_exp.health.log import Log
from grpo_exp.health.names import Names, Taken, built_in, guess, with_own
from grpo_exp.track.base import Row
from grpo_exp.track.files import read_jsonl

STATE = "trainer_state.json"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_VERL = re.compile(r"\bstep:(\d+) - (\S+:.*)")
_OPENRLHF = re.compile(r"Global step (\d+): \{(.*)\}")
_PAIR = re.compile(r"'([^']+)': (?:np\.float\d+\()?([^,()\s]+)")
_OF_RUN = re.compile(r"(.+) - (\S+?)(__MIN|__MAX)?")
KINDS = "trainer_state.json of TRL, a console log of verl or OpenRLHF, JSON lines, or a CSV file with a header"


def trainer_state(folder: Path) -> Path | None:
    """The newest trainer_state.json of an output folder of TRL, or of a checkpoint in it; None where there is none."""
    if (folder / STATE).is_file():
        return folder / STATE
    found = [p for p in folder.glob(f"checkpoint-*/{STATE}") if p.parent.name.removeprefix("checkpoint-").isdecimal()]
    return max(found, key=lambda p: int(p.parent.name.removeprefix("checkpoint-")), default=None)


def read(path: Path, own: Mapping[str, str], named: str | None = None) -> list[Log]:
    """The runs that a file tells of: one, or those side by side in a CSV file of W&B.

    Args:
        own: the user's own names, {our metric: column}.
        named: the built-in mapping that is to be used; None: the one that knows most columns.

    Raises:
        InputError: it is no log that is known, it is empty, or no column of it is.
    """
    kind, tables, steps = _tables(path)
    chosen = named or kind
    return [_log(path, name, table, chosen, own, steps) for name, table in tables.items()]


# ---- files as tables


def _tables(path: Path) -> tuple[str | None, dict[str, list[Row]], int | None]:
    """(whose log it is where that is plain, the table of each run, steps the run is to have)."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise DataError(f"{path}: cannot be read ({reason}). Expected {KINDS}") from error
    if not text.strip():
        raise DataError(f"{path}: empty; nothing was logged")
    if path.suffix == ".json":
        return _json(path, text)
    if text.lstrip().startswith("{"):
        return None, {"": [_flat(row) for row in read_jsonl(path)]}, None
    if rows := list(_verl(text)):
        return "verl", {"": rows}, None
    if rows := list(_openrlhf(text)):
        return "openrlhf", {"": rows}, None
    return None, _csv(path, text), None


def _json(path: Path, text: str) -> tuple[str | None, dict[str, list[Row]], int | None]:
    """TRL's state, or a list of rows."""
    try:
        content = json.loads(text)  # NaN and Infinity stand in it as Python writes them
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: no JSON ({error}); a run that was killed while it wrote has another in a checkpoint"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("log_history"), list):
        steps = content.get("max_steps")
        return "trl", {"": _objects(path, content["log_history"])}, steps if isinstance(steps, int) and steps > 0 else None
    if isinstance(content, list):
        return None, {"": [_flat(row) for row in _objects(path, content)]}, None
    raise DataError(f"{path}: no log (a JSON file without a log_history). Expected {KINDS}")


def _objects(path: Path, rows: list[Any]) -> list[Row]:
    if not rows:
        raise DataError(f"{path}: empty; nothing was logged")
    if not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: no log; its rows are no objects. Expected {KINDS}")
    return rows


def _flat(row: Row) -> Row:
    """verl's file logger writes {"step": 3, "data": {...}}."""
    data = row.get("data")
    return {**{key: value for key, value in row.items() if key != "data"}, **data} if isinstance(data, dict) else row


def _verl(text: str) -> Iterator[Row]:
    """`step:3 - critic/score/mean:0.25 - ...`, with what Ray writes before and after it."""
    for line in _whole_lines(text):
        if found := _VERL.search(line):
            pairs = (part.split()[0].rpartition(":") for part in found.group(2).split(" - ") if part.strip())
            yield {"step": int(found.group(1)), **{name: _bare(value) for name, _, value in pairs}}


def _openrlhf(text: str) -> Iterator[Row]:
    """`Global step 3: {'policy_loss': 0.1, ...}`."""
    for line in _whole_lines(text):
        if found := _OPENRLHF.search(line):
            yield {"step": int(found.group(1)), **{name: _bare(value) for name, value in _PAIR.findall(found.group(2))}}


def _whole_lines(text: str) -> list[str]:
    return [_COLOUR.sub("", line) for line in text.split("\n")[:-1]]  # what follows the last end of line was cut off


def _bare(value: str) -> str:
    """`np.float64(0.25)`, as numpy 2 shows itself, without its type."""
    return re.sub(r"^np\.\w+\((.*?)\)?$", r"\1", value)


def _csv(path: Path, text: str) -> dict[str, list[Row]]:
    """The rows of a CSV file; of W&B's export of a chart, whose columns are `RUN - METRIC`, those of each run."""
    header = text.lstrip().partition("\n")[0]
    separator = "\t" if "\t" in header else ";" if ";" in header and "," not in header else ","
    if separator not in header:
        raise DataError(f"{path}: no log; its first line is {header[:60]!r}. Expected {KINDS}")
    rows = list(csv.reader(io.StringIO(text), delimiter=separator))
    names = [name.strip() for name in rows[0]]
    if rows and not text.endswith("\n") and len(rows[-1]) < len(names):
        rows.pop()
    if len(rows) < 2:
        raise DataError(f"{path}: empty; a header and nothing under it")
    table = [dict(zip(names, row, strict=False)) for row in rows[1:]]
    parts = {name: found for name in names if (found := _OF_RUN.fullmatch(name))}
    if not parts:
        return {"": table}
    runs = dict.fromkeys(found.group(1) for found in parts.values())
    return {
        run: [
            {k: v for k, v in row.items() if k not in parts}
            | {
                found.group(2): row.get(name, "")
                for name, found in parts.items()
                if found.group(1) == run and not found.group(3)
            }
            for row in table
        ]
        for run in runs
    }


# ---- tables as runs


def _log(path: Path, name: str, table: list[Row], chosen: str | None, own: Mapping[str, str], steps: int | None) -> Log:
    columns = list(dict.fromkeys(key for row in table for key in row))
    names = with_own(built_in(chosen) if chosen else guess(columns), own)
    for target, column in own.items():
        if (column if column in columns else column.partition("*")[2]) not in columns:
            raise InputError(f"metrics.{target}={column}: {path} has no such column.{nearest(column, columns)}")
    taken = [one for one in names.bind(columns) if not (one.drops_zeros and _is_zero(table, one))]
    if not taken:
        some = ", ".join(columns[:8]) + (", …" if len(columns) > 8 else "")
        raise InputError(f"{path}: none of its columns is known ({some}); name them, as in metrics.reward/mean=COLUMN")
    step = names.step_column(columns)
    if step is None:
        raise InputError(f"{path}: no column says which step a row is of; name it, as in metrics.step=COLUMN")
    rows, notes = _rows(table, step, taken, names)
    if not rows:
        raise InputError(f"{path}: no row of it has a step and a value of a metric that is known")
    label = f"{path}: {name}" if name else str(path)
    log = Log(label, names.name, steps=steps, rows=rows, notes=notes, taken={one.target: one.column for one in taken})
    if log.every > 1:
        notes.append(f"a row every {log.every} steps, so a step in a detector's thresholds and texts is {log.every} of the run")
    return log


def _rows(table: Iterable[Row], step_column: str, taken: list[Taken], names: Names) -> tuple[list[Row], list[str]]:
    """Rows as metrics.jsonl has them, and what to know of them. Rows of the same step are one; where the log goes back, as that
    of a run that was resumed does, what it says later counts."""
    found: dict[str, dict[int, Row]] = {"train": {}, "eval": {}}
    notes: list[str] = []
    newest = -1
    for source in table:
        step = _number(source.get(step_column), "absent")
        told = {one.target: _number(source[one.column], names.nulls, one.factor) for one in taken if one.column in source}
        values = {name: value for name, value in told.items() if value is not None}
        if step is None or not math.isfinite(step) or not values:
            continue
        now = int(step)
        trains = any(kind_of(name) == "train" for name in values)
        if trains and now < newest:
            notes.append(f"the log goes back from step {newest} to {now}: what it says later counts")
            found = {kind: {key: row for key, row in rows.items() if key < now} for kind, rows in found.items()}
        newest = now if trains else newest
        for name, value in values.items():
            found[kind_of(name)].setdefault(now, {})[name] = value
    every = [{"step": step, "kind": kind, **row} for kind, by_step in found.items() for step, row in by_step.items()]
    return sorted(every, key=lambda row: row["step"]), notes  # stable: of a step first what training says


def kind_of(metric: str) -> str:
    """Whether a metric is of training steps or of evaluations."""
    return "eval" if metric.startswith(("eval/", "gap/")) else "train"


def _is_zero(table: list[Row], taken: Taken) -> bool:
    return not any(_number(row.get(taken.column), "absent") for row in table)


def _number(value: Any, nulls: str, factor: float = 1.0) -> float | None:
    """A value as a number, NaN and infinities too; None where there is none."""
    if value is None:
        return math.nan if nulls == "not_finite" else None
    if isinstance(value, bool):
        return None
    try:
        return float(value) * factor
    except (TypeError, ValueError, OverflowError):
        return None
