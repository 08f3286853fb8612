"""Items from a file of rows: JSON list, JSON lines, CSV or Parquet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grpo_exp.errors import DataError
from grpo_exp.options import option
from grpo_exp.rows.read import Row, RowFault, find_file, one_line, read_rows
from grpo_exp.rows.source import RowSource


@dataclass
class FileData(RowSource):
    """A file of the user's. `split` may name a second file that holds the held-out items."""

    path: str | None = option("the file: .json (one list), .jsonl, .csv or .parquet, UTF-8; relative to the current folder")

    def rows(self) -> Iterable[Row | RowFault]:
        if self.path is None:
            raise DataError(f"data={self.name} needs data.path=FILE, a .json, .jsonl, .csv or .parquet file")
        return read_rows(find_file(self.path, "data.path"))

    def heldout_rows(self, name: str) -> Iterable[Row | RowFault]:
        return read_rows(find_file(name, "data.split"))

    def origin(self) -> str:
        return one_line(self.path, 200)
