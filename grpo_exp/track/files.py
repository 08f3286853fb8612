"""The files of a run's folder: the truth about a run. W&B and the console mirror them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_exp.errors import DataError, RunError
from grpo_exp.track.base import Row, Tracker

FIRST_KEYS = ("step", "kind", "tokens", "seconds")
ROW_FILES = ("metrics.jsonl", "samples.jsonl", "eval.jsonl")
NOTES_KEPT = 200
_SURROGATE = re.compile("[\ud800-\udfff]")


class FileTracker(Tracker):
    """Writes run.json, config.yaml, metrics.jsonl, samples.jsonl and eval.jsonl.

    run.json is replaced as a whole (temporary file, fsync, rename), so that it is never half a file. Rows are appended
    with one unbuffered write each: a killed process loses none, a power cut or full disk at most the last.

    Raises:
        RunError: a file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._notes: list[Row] = []

    def start(self, card: Row, config: Row) -> None:
        import yaml

        if card.get("resumed_from") is None:
            _move_aside(self.folder)
        else:
            for name in ROW_FILES:
                drop_later_rows(self.folder / name, int(card["resumed_from"]))
        write_whole(
            self.folder / "config.yaml", yaml.safe_dump(plain(config, keep_nan=True), sort_keys=False, allow_unicode=True)
        )
        self._write_card(card)
        for name in ROW_FILES:
            append(self.folder / name, [])

    def metrics(self, row: Row) -> None:
        append(self.folder / "metrics.jsonl", [row])

    def samples(self, rows: Sequence[Row]) -> None:
        append(self.folder / "samples.jsonl", rows)

    def evaluations(self, rows: Sequence[Row]) -> None:
        append(self.folder / "eval.jsonl", rows)

    def note(self, text: str, level: str = "note") -> None:
        if len(self._notes) < NOTES_KEPT:
            self._notes.append({"level": level, "text": text})

    def finish(self, card: Row) -> None:
        self._write_card(card)

    def _write_card(self, card: Row) -> None:
        notes = {"notes": self._notes} if self._notes else {}
        text = json.dumps(plain({**card, **notes}), indent=2, ensure_ascii=False, allow_nan=False)
        write_whole(self.folder / "run.json", text + "\n")


def plain(value: Any, keep_nan: bool = False) -> Any:
    """The value in JSON's types: NaN and infinities become None, tensors and arrays numbers or lists, the rest text.

    JSON has no NaN: `json.dumps` would write a token that most readers refuse. Lone surrogates, which no UTF-8 file can
    hold, become U+FFFD.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if keep_nan or math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _SURROGATE.search(value) else str(value)
    if isinstance(value, dict):
        return {plain(str(k)): plain(v, keep_nan) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v, keep_nan) for v in value]
    if hasattr(value, "tolist"):  # torch and numpy
        return plain(value.tolist(), keep_nan)
    return str(value)


def json_line(row: Row) -> bytes:
    """One object on one physical line: all that is not ASCII is escaped, U+2028 and the escape character included."""
    ordered = {key: row[key] for key in FIRST_KEYS if key in row} | row
    return json.dumps(plain(ordered), allow_nan=False).encode("ascii") + b"\n"


def append(path: Path, rows: Iterable[Row]) -> None:
    """Append one line a row.

    Raises:
        RunError: the disk is full or the file cannot be written; what was written of the lines is cut off again.
    """
    data = b"".join(json_line(row) for row in rows)
    try:
        with open(path, "ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                _cut(path, end)
                raise
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_whole(path: Path, text: str) -> None:
    """Replace a file by a new one, atomically.

    Raises:
        RunError: the file cannot be written; the old one is unchanged.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _cannot_write(path, error) from error


def make_folder(folder: Path) -> None:
    """Make the run's folder and try that it can be written.

    Raises:
        RunError: it cannot.
    """
    probe = folder / ".write-test"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"1")
        probe.unlink()
    except OSError as error:
        raise _cannot_write(folder, error) from error


def read_jsonl(path: Path) -> Iterator[Row]:
    """The rows of a file of JSON lines. A last line that was cut off in the middle is left out.

    Raises:
        DataError: another line is not a JSON object, with its number.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                return
            raise DataError(f"{path}:{number}: not JSON ({error}); delete the line to read the rest") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
        yield row


def drop_later_rows(path: Path, step: int) -> None:
    """Keep the rows up to and including `step`: the others belong to the part of a run that a resumed one does again."""
    if path.exists():
        rows = list(read_jsonl(path))
        kept = [row for row in rows if not isinstance(row.get("step"), (int, float)) or row["step"] <= step]
        write_whole(path, b"".join(json_line(row) for row in kept).decode("ascii"))


def _move_aside(folder: Path) -> None:
    """Move an earlier run's records into a folder of their own, since two runs in one file cannot be told apart."""
    records = [path for name in ("run.json", "config.yaml", "curves.png", *ROW_FILES) if (path := folder / name).exists()]
    if not any(path.name in ROW_FILES and path.stat().st_size for path in records):
        return
    number = 1
    while (aside := folder / f"earlier-{number}").exists():
        number += 1
    try:
        aside.mkdir()
        for path in records:
            path.rename(aside / path.name)
    except OSError as error:
        raise _cannot_write(aside, error) from error


def _cut(path: Path, size: int) -> None:
    try:
        os.truncate(path, size)
    except OSError:
        return  # the line stays torn; `read_jsonl` leaves it out, and the first error is the one to report


def _cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path}: cannot be written ({error.strerror or error}). Make room on the disk (old runs, their checkpoints/ folders) "
        "or choose another folder with hydra.run.dir=…, and give the same command again to go on from the last checkpoint"
    )
