"""Items from a file of rows: JSON list, JSON lines, CSV or Parquet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grpo_exp.errors import DataError
from grpo_exp.options import option
from grpo_exp.paths import expanded
from grpo_exp.rows.read import Row, RowFault, find_file, one_line, read_rows
from grpo_exp.rows.source import RowSource
from grpo_exp.rows.stored import LineFile

LARGE = 256 * 2**20
"""Bytes from which on a file of JSON lines is not held in memory, where `stream` leaves that open."""


@dataclass
class FileData(RowSource):
    """A file of the user's. `split` may name a second file that holds the held-out items."""

    path: str | None = option("the file: .json (one list), .jsonl, .csv or .parquet, UTF-8; relative to the current folder")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is not None and self.format != "fields":
            self._look(self.path)

    def rows(self) -> Iterable[Row | RowFault]:
        if self.path is None:
            raise DataError(f"data={self.name} needs data.path=FILE, a .json, .jsonl, .csv or .parquet file")
        return read_rows(find_file(self.path, "data.path"))

    def heldout_rows(self, name: str) -> Iterable[Row | RowFault]:
        return read_rows(find_file(name, "data.split"))

    def origin(self) -> str:
        return one_line(self.path, 200)

    def file(self, split: str | None) -> LineFile | None:
        path = find_file(str(self.path), "data.path") if split is None else find_file(split, "data.split")
        wanted = self.stream == "always" or (self.stream == "auto" and path.stat().st_size >= LARGE)
        return LineFile(path) if wanted and path.suffix.lower() == ".jsonl" else super().file(split)

    def _look(self, name: str) -> None:
        """See from the first row which fields there are, since they decide what a run measures. Faults are told by `load`."""
        try:
            if expanded(name).is_file():
                first = next((row for row in read_rows(find_file(name, "data.path")) if isinstance(row, Row)), None)
                if first is not None:
                    self.settle(first)
        except (DataError, OSError, RuntimeError):
            self._settled = False
