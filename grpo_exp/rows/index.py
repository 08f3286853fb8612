"""What is known of many items without having them in memory: ids, categories and marks, some 60 bytes an item."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from grpo_exp.batch import Example
from grpo_exp.prompt_order import Places
from grpo_exp.rows.marks import Mark, Marks, mark, mark_of, marks

Columns = tuple[Marks, ...]
"""One array `[items]` for each field of `Mark`."""


class Texts:
    """Short texts in one buffer, which takes a tenth of a list of them."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._bytes = bytearray()
        self._ends = array("Q", [0])
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        self._bytes += text.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def at(self, place: int) -> str:
        return self._bytes[self._ends[place] : self._ends[place + 1]].decode("utf-8", "surrogatepass")


class Column(Sequence[str]):
    """Texts that are looked up one by one."""

    def __init__(self, count: int, at: Callable[[int], str]) -> None:
        self._count, self._at = count, at

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return map(self._at, range(self._count))

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> Any:
        inside = range(self._count)[place]
        return self._at(inside) if isinstance(inside, int) else [self._at(i) for i in inside]


class Index:
    """Of some items, in their order: `ids`, `categories`, and the four marks of each as columns `[items]`.

    Args:
        texts: ids, of these items or of more.
        names: the categories that there are.
        codes: int32 `[items]`, the category of each item, as a place in `names`.
        columns: its marks, named as in `Mark`.
        places: where each item's id stands in `texts`.
    """

    def __init__(self, texts: Texts, names: list[str], codes: NDArray[np.int32], columns: Columns, places: Places) -> None:
        self._texts, self._names, self._codes, self._columns, self._places = texts, names, codes, columns, places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def ids(self) -> Sequence[str]:
        return Column(len(self), lambda i: self._texts.at(int(self._places[i])))

    @property
    def categories(self) -> Sequence[str]:
        return Column(len(self), lambda i: self._names[self._codes[i]])

    def marks(self, name: str) -> Marks:
        """One of the marks of each item, `[items]`."""
        return self._columns[Mark._fields.index(name)]

    def only(self, places: Places) -> Index:
        """The index of the items at these places."""
        columns = tuple(column[places] for column in self._columns)
        return Index(self._texts, self._names, self._codes[places], columns, self._places[places])

    def renamed(self, ids: Iterable[str]) -> Index:
        """The same with other ids."""
        return Index(Texts(ids), self._names, self._codes, self._columns, np.arange(len(self)))


class Indexing:
    """Makes an index of items that come one after the other."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._codes = array("i")
        self._columns = [array("Q") for _ in Mark._fields]
        self.own_ids: Texts | None = Texts()
        """The ids that the rows themselves have; None once one of them has none."""
        self._own_marks = array("Q")

    def add(self, item: Example, own_id: str | None) -> None:
        """The next item."""
        self._codes.append(self._names.setdefault(item.category, len(self._names)))
        for column, value in zip(self._columns, mark_of(item), strict=True):
            column.append(value)
        if own_id is None:
            self.own_ids = None
        if self.own_ids is not None and own_id is not None:
            self.own_ids.append(own_id)
            self._own_marks.append(mark(own_id))

    def __len__(self) -> int:
        return len(self._codes)

    def index(self, names: Callable[[], Iterable[str]]) -> Index:
        """The index: with the rows' own ids where all of them have one and no two the same, otherwise with `names`."""
        own = self.own_ids if len(np.unique(self._own_marks)) == len(self) else None
        texts = own if own is not None else Texts(names())
        columns = tuple(np.frombuffer(column, np.uint64) for column in self._columns)
        return Index(texts, list(self._names), np.frombuffer(self._codes, np.int32), columns, np.arange(len(self)))


def marks_of_ids(index: Index) -> Marks:
    """A mark of each id, `[items]`."""
    return marks(mark(name) for name in index.ids)
