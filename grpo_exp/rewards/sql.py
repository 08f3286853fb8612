"""A query against an SQLite database: right where it gives the rows that the expected query gives."""

from __future__ import annotations

import functools
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_exp.answers import blocks
from grpo_exp.batch import Example
from grpo_exp.errors import ConfigError, DataError
from grpo_exp.options import option
from grpo_exp.paths import expanded
from grpo_exp.verifier import Verdict, Verifier, wanted

LONGEST = 10_000  # characters of a query
LARGEST_VALUE = 100_000  # bytes of one value or row while a query runs
MOST_VALUES = 1_000_000  # in a result
MOST_BYTES = 50_000_000  # in a result
STEPS = 100  # of SQLite's machine between two looks at the clock

_BEGINS = re.compile(r"(?:select|with|values)\b", re.IGNORECASE)
_ORDER = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|[()]|\border\s+by\b", re.IGNORECASE | re.DOTALL)
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_REFUSED = {"load_extension", "fts3_tokenizer", "sqlite_log", "printf", "format"}  # printf('%.*c', 1e9, 'a') takes 12 s

Rows = list[tuple[Any, ...]]


class Failed(Exception):
    """A query gives no rows to compare, and why."""


@dataclass
class SqlReward(Verifier):
    """`right` where both queries give the same rows, `near` where only their order or that of columns differs, else `wrong`.

    The order of rows matters where the expected query orders its own result. Names of columns do not matter; fractions are
    compared by nine digits. The query is what stands in <answer>, in a fenced block (```sql or ```), or the whole completion.

    The database is opened to be read, and nothing else is authorised: no PRAGMA, no ATTACH, no writing, no extension, nor the
    functions printf and format, which heed neither clock nor limit. A query is stopped after `seconds`, and where a value has
    more than 100,000 bytes or a result more than a million values. Left out: what it sorts may go to SQLite's temporary files,
    bounded by the time alone.
    """

    near: float = option("value of a query with the right rows in another order, of rows where that matters or of columns")
    database: str | None = option("file with the SQLite database, for all items; null: each item has its own")
    database_field: str | None = option("with database=null: the field of the data with the file")
    folder: str | None = option("folder of the files that database_field names; null: the current one")
    field: str | None = option("field of the data with the expected query; null: the reference answer")
    seconds: float = option("longest time that a query may take", above=0, high=600)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.database is None) == (self.database_field is None):
            raise ConfigError(
                f"{self.key('database')}={self.database} {self.key('database_field')}={self.database_field}: name a file, or "
                "the field of the data that names one for each item"
            )
        if not hasattr(sqlite3.Connection, "setlimit"):
            raise ConfigError("reward=sql needs Python 3.11 or newer, whose sqlite3 can limit how large a value grows")
        if self.database is not None:
            _check(expanded(self.database), self.key("database"))
        self._expected_rows = functools.lru_cache(maxsize=1024)(self._ask)

    def check_data(self, examples: Sequence[Example]) -> None:
        """Queries and databases are there."""
        self.need("field", "the expected query", examples)
        if self.database_field is not None:
            self.need("database_field", "the file with the database", examples)
        for example in examples:
            if (file := self._file(example)) is not None:
                _check(file, f"{self.key('database_field')}={self.database_field}, item {example.id}")

    def verdict(self, text: str, example: Example, finished: bool) -> Verdict:
        """Whether the two queries give the same rows."""
        query, file = wanted(example, self.field), self._file(example)
        if query is None or file is None:
            return Verdict(None, "the item has no expected query, or no database")
        found = blocks.find(text, ("sql", "sqlite"), _BEGINS)
        if not found:
            return Verdict("missing", "no query in a tag, a fenced block or as the whole")
        expected = self._expected(str(query), file, example)
        try:
            rows = self._ask(found, file)
        except Failed as error:
            return Verdict("wrong", str(error), found)
        ordered = orders(str(query))
        if same(rows, expected, ordered):
            return Verdict("right", f"{len(rows)} rows as expected", found)
        if same(rows, expected, False):
            return Verdict("near", "the expected rows in another order", found)
        if same([_sorted(row) for row in rows], [_sorted(row) for row in expected], ordered):
            return Verdict("near", "the expected columns in another order", found)
        return Verdict("wrong", f"{len(rows)} rows, expected {len(expected)}; {_difference(rows, expected)}", found)

    def _expected(self, query: str, file: Path, example: Example) -> Rows:
        try:
            return self._expected_rows(query, file)
        except Failed as error:
            raise DataError(f"reward part '{self.kind}', item {example.id}: the expected query fails: {error}") from error

    def _file(self, example: Example) -> Path | None:
        if self.database is not None:
            return expanded(self.database)
        own = wanted(example, self.database_field)
        return None if own is None else expanded(self.folder or ".") / str(own)

    def _ask(self, query: str, file: Path) -> Rows:
        return ask(query, file, self.seconds)


def ask(query: str, file: Path, seconds: float) -> Rows:
    """The rows that a query gives.

    Raises:
        Failed: it is no query, tries something else than to read, takes too long or too much, or SQLite refuses it.
    """
    if len(query) > LONGEST:
        raise Failed(f"a query of more than {LONGEST} characters")
    with closing(_opened(file, time.monotonic() + seconds)) as connection:
        try:
            return _fetched(connection.execute(query))
        except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:  # ValueError: NUL, lone surrogates
            late = "interrupted" in str(error)
            raise Failed(f"took longer than {seconds:g} s" if late else f"{type(error).__name__}: {error}") from error


def _opened(file: Path, until: float) -> sqlite3.Connection:
    """A connection that can only read, for so long and so much."""
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 100)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0)
    connection.set_progress_handler(lambda: int(time.monotonic() > until), STEPS)
    connection.set_authorizer(_authorized)
    return connection


def _authorized(action: int, one: str | None, two: str | None, *where: Any) -> int:
    allowed = action in _ALLOWED and not (action == sqlite3.SQLITE_FUNCTION and (two or "").lower() in _REFUSED)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _fetched(cursor: sqlite3.Cursor) -> Rows:
    if cursor.description is None:
        raise Failed("no query: it gives no rows")
    rows: Rows = []
    size = 0
    for row in cursor:
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, (str, bytes)))
        if len(rows) * max(1, len(row)) > MOST_VALUES or size > MOST_BYTES:
            raise Failed(f"a result of more than {MOST_VALUES} values or {MOST_BYTES} bytes")
    return rows


def _check(file: Path, key: str) -> None:
    """Raise DataError unless the file is an SQLite database."""
    try:
        with file.open("rb") as opened:
            head = opened.read(16)
    except OSError as error:
        raise DataError(f"{key}: the database {file} cannot be read: {error.strerror} (from {Path.cwd()})") from error
    if head != b"SQLite format 3\x00":
        raise DataError(f"{key}: {file} is no SQLite database")


def orders(query: str) -> bool:
    """Whether a query orders its own result: an ORDER BY outside of brackets, texts and comments."""
    depth = 0
    for match in _ORDER.finditer(query):
        depth += (match[0] == "(") - (match[0] == ")")
        if depth == 0 and match[0][:1] in "oO":
            return True
    return False


def same(rows: Rows, expected: Rows, ordered: bool) -> bool:
    """Whether two results are the same, as lists or as bags of rows."""
    if len(rows) != len(expected):
        return False
    one, other = ([tuple(map(_value, row)) for row in result] for result in (rows, expected))
    return one == other if ordered else Counter(one) == Counter(other)


def _value(value: Any) -> Any:
    """A value as it is compared: 2 and 2.0 alike, fractions by nine digits; a number is no text, and a text no blob."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:.9g}"
    return str(value) if isinstance(value, int) else (type(value).__name__, value)


def _sorted(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(sorted(row, key=lambda value: str(_value(value))))


def _difference(rows: Rows, expected: Rows) -> str:
    """The first row of each that the other does not have."""
    one, other = ({tuple(map(_value, row)): row for row in result} for result in (rows, expected))
    extra, lacking = (next((row for key, row in a.items() if key not in b), None) for a, b in ((one, other), (other, one)))
    told = [f"{what} {row!r:.80}" for what, row in (("has", extra), ("lacks", lacking)) if row is not None]
    return " and ".join(told) or "the same rows, but not as often"
