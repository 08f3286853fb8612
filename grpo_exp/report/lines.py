"""Rows out of files of JSON lines, as few as are needed: the last ones, or some evenly spread over a long file.

Files may be of any size, still be written to, or be damaged: a line that is no JSON object is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from grpo_exp.track.wording import is_number

Row = dict[str, Any]
_BLOCK = 1 << 16
_EVALUATION = b'"kind": "eval"'


def parse(line: bytes) -> Row | None:
    """The object on a line; None for anything else, such as a line cut off in the middle."""
    try:
        row = orjson.loads(line)
    except ValueError:  # it is strict, and has no half of a character and no NaN
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return None
    return row if isinstance(row, dict) else None


def from_the_end(path: Path) -> Iterator[Row]:
    """The rows of a file, last first, read block by block; none where it cannot be read."""
    try:
        with open(path, "rb") as file:
            at, rest = file.seek(0, 2), b""
            while at:
                size = min(_BLOCK, at)
                at -= size
                file.seek(at)
                rest = file.read(size) + rest
                if b"\n" not in rest and at:
                    continue
                first, *lines = rest.split(b"\n")
                yield from filter(None, map(parse, reversed(lines)))
                rest = first
            if (row := parse(rest)) is not None:
                yield row
    except OSError:
        return


def first(path: Path) -> Row:
    """The row on the first line; {} where there is none."""
    try:
        with open(path, "rb") as file:
            return parse(file.readline()) or {}
    except OSError:
        return {}


def last_step(path: Path, step: int | None = None) -> list[Row]:
    """The rows of the last step in a file, in their order; of `step` where it is given."""
    rows: list[Row] = []
    for row in from_the_end(path):
        if rows and row.get("step") != rows[-1].get("step"):
            break
        if step is None or row.get("step") == step:
            rows.append(row)
    return rows[::-1]


def spread(path: Path, points: int | None) -> tuple[list[Row], list[Row]]:
    """(training rows, evaluations) of metrics.jsonl, at most `points` of each, evenly spread, first and last included."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return [], []
    kinds: tuple[list[bytes], list[bytes]] = ([], [])
    for line in filter(None, lines):
        kinds[_EVALUATION in line[:60]].append(line)
    return _rows(kinds[0], points), _rows(kinds[1], points)


def _rows(lines: list[bytes], points: int | None) -> list[Row]:
    if points is not None and len(lines) > points:
        lines = [lines[i] for i in np.unique(np.linspace(0, len(lines) - 1, max(points, 2)).round().astype(int))]
    return [row for line in lines if (row := parse(line)) is not None]


def column(rows: list[Row], name: str) -> np.ndarray:
    """One value a row, `[rows]` float64; NaN where there is none."""
    values = (row.get(name) for row in rows)
    numbers = [x if is_number(x) else np.nan for x in values]
    return np.array(numbers, dtype=np.float64)
