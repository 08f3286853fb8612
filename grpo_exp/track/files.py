"""The files of a run's folder: the truth about a run. W&B and the console mirror them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_exp.errors import ConfigError, DataError, RunError
from grpo_exp.track.base import Row, Tracker
from grpo_exp.track.redact import hidden, redact

FIRST_KEYS = ("step", "kind", "tokens", "seconds")
ROW_FILES = ("metrics.jsonl", "samples.jsonl", "eval.jsonl", "health.jsonl")
RECORDS = ("run.json", "config.yaml", "curves.png", "error.txt", *ROW_FILES)
"""What a run leaves besides checkpoints, export and W&B's files."""
NOTES_KEPT = 200
DEEPEST = 100  # levels of a configuration
_SURROGATE = re.compile("[\ud800-\udfff]")


class FileTracker(Tracker):
    """Writes run.json, config.yaml, metrics.jsonl, samples.jsonl, eval.jsonl and health.jsonl.

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
            step = int(card["resumed_from"])
            evaluated = int(card.get("resumed_evaluation", step))
            for name in ROW_FILES:
                drop_later_rows(self.folder / name, step, evaluated)
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

    def finding(self, row: Row) -> None:
        append(self.folder / "health.jsonl", [row])

    def note(self, text: str, level: str = "note") -> None:
        if len(self._notes) < NOTES_KEPT:
            self._notes.append({"level": level, "text": text})

    def finish(self, card: Row) -> None:
        self._write_card(card)

    def _write_card(self, card: Row) -> None:
        notes = {"notes": self._notes} if self._notes else {}
        write_whole(self.folder / "run.json", json_text({**card, **notes}))


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
    return json.dumps(hidden(plain(ordered)), allow_nan=False).encode("ascii") + b"\n"


def json_text(value: Row) -> str:
    """An object as a file for people: indented, without secrets, and only what is printable is written as it is."""
    text = json.dumps(redact(plain(value)), indent=2, ensure_ascii=False, allow_nan=False)
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text) + "\n"


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


def read_object(path: Path) -> Row:
    """The object in a .json or .yaml file.

    Raises:
        DataError: it cannot be read, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
        found = read_yaml(text) if path.suffix == ".yaml" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected an object with keys, found {type(found).__name__}")
    return {str(key): value for key, value in found.items()}


def read_yaml(text: str) -> Any:
    """YAML as this program writes it: not deeper than DEEPEST, and without aliases, by which a few lines become millions.

    Raises:
        ValueError: anything else, with the line.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST or isinstance(event, yaml.AliasEvent):
                what = "an alias" if depth <= DEEPEST else f"nested more than {DEEPEST} deep"
                raise ValueError(f"line {event.start_mark.line + 1}: {what}")
        return yaml.load(text, loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ValueError(f"line {mark.line + 1 if mark else 1}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:  # characters that YAML does not have
        raise ValueError(str(error)) from error


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run's folder; it is free again when this one ends, however that happens.

    A file system that has no such locks, as some networks' have none, keeps nobody out.

    Raises:
        ConfigError: another process has it.
        RunError: it cannot be made or written.
    """
    make_folder(folder)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(held)
        raise ConfigError(
            f"another process is writing the run in {folder}. Wait for it, end it, or choose another folder with hydra.run.dir="
        ) from error
    except OSError:
        pass
    _HELD.add(held)
    try:
        yield
    finally:
        _HELD.discard(held)
        os.close(held)


_HELD: set[int] = set()


def _let_go() -> None:
    """In a process that was forked off, which may outlive this one: the lock is not its own."""
    while _HELD:
        os.close(_HELD.pop())


os.register_at_fork(after_in_child=_let_go)


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
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                return
            raise DataError(f"{path}:{number}: not JSON ({error}); delete the line to read the rest") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
        yield row


def drop_later_rows(path: Path, step: int, evaluated: int) -> None:
    """Keep the rows of training up to and including `step` and those of evaluations up to `evaluated`: the others belong to the
    part of a run that a resumed one does again."""
    if not path.exists():
        return

    def stays(row: Row) -> bool:
        last = evaluated if path.name == "eval.jsonl" or row.get("kind") == "eval" else step
        return not isinstance(row.get("step"), (int, float)) or row["step"] <= last

    write_whole(path, b"".join(json_line(row) for row in read_jsonl(path) if stays(row)).decode("ascii"))


def free_name(folder: Path) -> Path:
    """Where an earlier run of a folder is kept within it: the first `earlier-N` that is not there."""
    number = 1
    while (kept := folder / f"earlier-{number}").exists():
        number += 1
    return kept


def _move_aside(folder: Path) -> None:
    """Move an earlier run into a folder of its own, since two runs in one file, or one folder of checkpoints, cannot be told
    apart."""
    records = [path for name in (*RECORDS, "checkpoints", "export") if (path := folder / name).exists()]
    rows = any(path.name in ROW_FILES and path.stat().st_size for path in records)
    if not rows and not any(folder.glob("checkpoints/step-*")):
        return
    aside = free_name(folder)
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
