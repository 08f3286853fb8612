"""Rows of a data file: one JSON list, JSON lines, CSV or Parquet, each row with the place a message can name.

A fault of the whole file is raised. A fault of one row is handed on in the row's place, so that the reader decides
whether one bad line ends the run (`data.on_error`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_exp.errors import DataError, nearest
from grpo_exp.paths import expanded

SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")


@dataclass(frozen=True)
class Row:
    """One row as read.

    Attributes:
        place: for messages: `file:line`, or `file: row n` where lines mean nothing.
        number: counted from 1 over the rows of the file, faulty ones included.
        fields: name -> value.
        span: of a line, its first byte in the file and how many there are; None for other rows.
    """

    place: str
    number: int
    fields: dict[str, Any]
    span: tuple[int, int] | None = None


class RowFault(DataError):
    """What is wrong with one row; `kind` names the fault without its place, to be counted."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def one_line(value: object, limit: int = 80) -> str:
    """Text from a file made fit for a one-line message: control characters out, at most `limit` characters."""
    text = value if isinstance(value, str) else repr(value)
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def find_file(name: str, key: str) -> Path:
    """The file that option `key` names: relative to the current folder, `~` expanded.

    Raises:
        DataError: absent (the nearest name in that folder is suggested), a folder, or of a kind that cannot be read.
    """
    shown = f"{key}={one_line(name, 200)}"
    try:
        path = expanded(name)
        if path.is_dir():
            files = sorted(f.name for f in path.iterdir() if f.suffix.lower() in SUFFIXES)
            raise DataError(f"{shown}: a folder; name one file in it{': ' + one_line(', '.join(files)) if files else ''}")
        if not path.exists():
            raise DataError(f"{shown}: {_absent(path)}")
        if not path.is_file():
            raise DataError(f"{shown}: a pipe or a device; expected a file that can be read again")
    except (OSError, RuntimeError) as error:  # a folder that may not be entered, a name too long, ~ of an unknown user
        raise DataError(f"{shown}: cannot be read: {one_line(str(error), 200)}") from error
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{shown}: cannot read '{one_line(path.suffix)}' files; expected one of {', '.join(SUFFIXES)}")
    return path


def _absent(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"no such file; the folder {_shown(folder)} does not exist (the current folder is {_shown(Path.cwd())})"
    near = nearest(path.name, (one_line(f.name, 200) for f in folder.iterdir()))
    return f"no such file in {_shown(folder.resolve())}.{near}"


def read_rows(path: Path) -> Iterator[Row | RowFault]:
    """The rows of a file, in order; blank lines do not count.

    Raises:
        DataError: the file as a whole cannot be read: not UTF-8, not a list, no pyarrow.
    """
    readers = {".json": _json_list, ".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}
    return readers[path.suffix.lower()](path)


def _text(path: Path) -> str:
    """The file's text; a byte order mark is dropped."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{_shown(path)}: cannot be read: {error.strerror}") from error
    return _decoded(data, path, "utf-8-sig")


def _decoded(data: bytes, path: Path, encoding: str, first_line: int = 1) -> str:
    """Text of bytes that begin at a line of a file."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line, byte = first_line + error.object.count(b"\n", 0, error.start), error.object[error.start]
        raise DataError(
            f"{_shown(path)}:{line}: not UTF-8 (byte 0x{byte:02x}); convert it, e.g. iconv -f latin1 -t utf-8 OLD > NEW"
        ) from error


def _shown(path: Path) -> str:
    return one_line(str(path), 200)


def _json_list(path: Path) -> Iterator[Row | RowFault]:
    text = _text(path)
    if not text.strip():
        return
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = " One object a line? Then name the file .jsonl." if "Extra data" in str(error) else ""
        raise DataError(f"{_malformed(_shown(path), text, error, with_line=True)}{hint}") from error
    if not isinstance(data, list):
        keys = f" with {one_line(', '.join(data))}" if isinstance(data, dict) else ""
        raise DataError(f"{_shown(path)}: expected one list of objects, found {_kind(data)}{keys}")
    for number, value in enumerate(data, 1):
        yield _row(f"{_shown(path)}: row {number}", number, value)


def _json_lines(path: Path) -> Iterator[Row | RowFault]:
    """Line by line, so that the file need not fit into memory; first whether all of it is text."""
    for _ in _lines(path):
        pass
    number, shown = 0, _shown(path)
    for line, start, length, text in _lines(path):
        if text.strip():
            number += 1
            yield line_of(f"{shown}:{line}", number, text, (start, length))


def _lines(path: Path) -> Iterator[tuple[int, int, int, str]]:
    """Each line of a file: its number, its first byte, how many bytes it has, its text. U+2028 may stand inside a string."""
    end = 0
    try:
        with path.open("rb") as file:
            for line, data in enumerate(file, 1):
                start, end = end, end + len(data)
                text = _decoded(data, path, "utf-8-sig" if line == 1 else "utf-8", line)
                yield line, start, len(data), text.removesuffix("\n")
    except OSError as error:
        raise DataError(f"{_shown(path)}: cannot be read: {error.strerror}") from error


def line_of(place: str, number: int, text: str, span: tuple[int, int] | None = None) -> Row | RowFault:
    """The row that a line of JSON holds."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return RowFault("malformed line", _malformed(place, text, error))
    return _row(place, number, value, span)


def _malformed(place: str, text: str, error: Exception, with_line: bool = False) -> str:
    if not isinstance(error, json.JSONDecodeError):  # too deep, or a number of thousands of digits
        reason = "nested too deeply" if isinstance(error, RecursionError) else one_line(str(error))
        return f"{place}: malformed JSON ({reason}): {one_line(text)}"
    line = f":{error.lineno}" if with_line else ""
    excerpt = one_line(text[max(0, error.pos - 40) : error.pos + 40])
    return f"{place}{line}: malformed JSON at column {error.colno} ({one_line(error.msg)}): {excerpt}"


def _row(place: str, number: int, value: Any, span: tuple[int, int] | None = None) -> Row | RowFault:
    if isinstance(value, dict):
        return Row(place, number, value, span)
    return RowFault("not an object", f"{place}: expected an object with fields, found {_kind(value)}: {one_line(value)}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null" if value is None else type(value).__name__)


def _csv(path: Path) -> Iterator[Row | RowFault]:
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    number, header, line = 0, None, 1
    try:
        for values in reader:
            start, line = line, reader.line_num + 1  # a quoted value may span lines
            if not values:
                continue
            if header is None:
                header = _header(path, values)
                continue
            number += 1
            place = f"{_shown(path)}:{start}"
            if len(values) == len(header):
                yield Row(place, number, dict(zip(header, values, strict=True)))
            else:
                message = f"{place}: {len(values)} values for {len(header)} columns ({one_line(', '.join(header))})"
                yield RowFault("wrong number of values", f"{message}; quote values that hold commas")
    except csv.Error as error:
        raise DataError(f"{_shown(path)}:{reader.line_num}: malformed CSV ({one_line(str(error))}); or use .jsonl") from error


def _header(path: Path, names: list[str]) -> list[str]:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise DataError(f"{_shown(path)}:1: the header names the column '{one_line(twice[0])}' twice; rename one")
    return names


def _parquet(path: Path) -> Iterator[Row | RowFault]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"{_shown(path)}: Parquet needs pyarrow: pip install 'grpo-exp[parquet]'") from error
    try:
        values = parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # the latter: texts and times out of range
        raise DataError(f"{_shown(path)}: cannot be read as Parquet: {one_line(str(error), 200)}") from error
    for number, value in enumerate(values, 1):
        yield Row(f"{_shown(path)}: row {number}", number, value)
