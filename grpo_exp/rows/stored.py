"""Items of one source where they are kept: in memory, or in a file of JSON lines, each read when it is asked for."""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from grpo_exp.batch import Example
from grpo_exp.data.base import Items
from grpo_exp.errors import DataError
from grpo_exp.prompt_order import Places
from grpo_exp.rows.index import Index
from grpo_exp.rows.marks import Marks
from grpo_exp.rows.read import Row, line_of, one_line


class Indexed(Items):
    """Items of which an index knows all that is to be known without making them."""

    def __init__(self, index: Index) -> None:
        self.known = index

    @property
    def ids(self) -> Sequence[str]:
        return self.known.ids

    @property
    def categories(self) -> Sequence[str]:
        return self.known.categories

    @property
    def keys(self) -> Marks:
        return self.known.marks("item")


class Stored(Indexed):
    """Items of one source."""

    def only(self, places: Sequence[int] | Places) -> Stored:
        at = np.asarray(places, np.int64)
        return self if np.array_equal(at, np.arange(len(self))) else self._with(self.known.only(at), at)

    def prefixed(self, prefix: str) -> Stored:
        """The items with something put before each id."""
        return self._with(self.known.renamed(f"{prefix}{name}" for name in self.ids), np.arange(len(self)))

    def given(self) -> Sequence[Example]:
        """The items as a data set has them: a list where they are in memory."""
        return self

    def _with(self, index: Index, places: Places) -> Stored:
        raise NotImplementedError


class Held(Stored):
    """Items in memory; `examples` have the ids of the index, or get them."""

    def __init__(self, examples: list[Example], index: Index) -> None:
        super().__init__(index)
        self.examples = examples

    def one(self, place: int) -> Example:
        example, name = self.examples[place], self.ids[place]
        return example if example.id == name else dataclasses.replace(example, id=name)

    def given(self) -> list[Example]:
        return list(self)

    def _with(self, index: Index, places: Places) -> Held:
        return Held([self.examples[i] for i in places], index)


class LineFile:
    """A file of JSON lines that is read again by place. It must stay as it was."""

    def __init__(self, path: Path) -> None:
        self._shown = one_line(str(path), 200)
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise DataError(f"{self._shown}: cannot be read: {error.strerror}") from error
        weakref.finalize(self, os.close, self._file)
        self._was = self._state()

    def row(self, number: int, start: int, length: int) -> Row:
        """The row of a line, by its place in bytes.

        Raises:
            DataError: the file has changed since it was opened.
        """
        if self._state() != self._was:
            raise DataError(f"{self._shown}: changed while its rows were in use; keep it as it is, or copy it first")
        row = line_of(f"{self._shown}: row {number}", number, os.pread(self._file, length, start).decode("utf-8-sig"))
        if isinstance(row, Row):
            return row
        raise row

    def _state(self) -> tuple[int, int]:
        found = os.fstat(self._file)
        return found.st_size, found.st_mtime_ns


class Streamed(Stored):
    """Items that are made of their lines anew each time.

    Args:
        file: where the lines are.
        spans: int64 `[items, 3]`: number of the row, first byte of its line, bytes of it.
        make: from a row to an item, the same one every time.
        index: of the items.
    """

    def __init__(self, file: LineFile, spans: NDArray[np.int64], make: Callable[[Row], Example], index: Index) -> None:
        super().__init__(index)
        self._file, self._spans, self._make = file, spans, make

    def one(self, place: int) -> Example:
        number, start, length = self._spans[place].tolist()
        return dataclasses.replace(self._make(self._file.row(number, start, length)), id=self.ids[place])

    def _with(self, index: Index, places: Places) -> Streamed:
        return Streamed(self._file, self._spans[places], self._make, index)
