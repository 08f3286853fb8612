"""What all data made of rows shares, wherever the rows come from: reading with or without faults, ids, the split."""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grpo_exp.batch import Example
from grpo_exp.data.base import Dataset, items_sha256
from grpo_exp.errors import ConfigError, DataError
from grpo_exp.options import option
from grpo_exp.rows.checks import leaks, repeats
from grpo_exp.rows.formats import Form
from grpo_exp.rows.index import Indexing, marks_of_ids
from grpo_exp.rows.mapping import MappedData
from grpo_exp.rows.read import Row, RowFault, one_line
from grpo_exp.rows.split import check_split, hold_out, mix, part_of
from grpo_exp.rows.stored import Held, LineFile, Stored, Streamed


@dataclass
class RowSource(MappedData):
    """Items from rows. A subclass says where the rows come from: `rows`, `heldout_rows`, `origin`."""

    split: Any = option("held-out items: a count, a fraction, or a second source (a file; for hub: a split's name)")
    split_seed: int = option("decides which items are held out; runs that are compared keep it fixed")
    train_from: float = option("start of the part of the training items that is used, a fraction of them", low=0, high=1)
    train_to: float = option("end of the part of the training items that is used, a fraction of them", low=0, high=1)
    limit: int | None = option("rows to read from each source; null: all", low=1)
    stream: str = option(
        "read each row of a .jsonl file when it is needed, so that the file need not fit into memory; auto: from 256 MiB on",
        choices=("auto", "always", "never"),
    )
    on_error: str = option("a faulty row ends the run with an error, or is skipped and listed", choices=("error", "skip"))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_split(self.split)
        if not self.train_from < self.train_to:
            raise ConfigError(
                f"data.train_from={self.train_from} data.train_to={self.train_to}: nothing lies between them; "
                "train_from must be the smaller, as in data.train_from=0.4 data.train_to=1"
            )

    def rows(self) -> Iterable[Row | RowFault]:
        """The rows, in order."""
        raise NotImplementedError

    def heldout_rows(self, name: str) -> Iterable[Row | RowFault]:
        """The rows of the second source that `data.split` names."""
        raise NotImplementedError

    def origin(self) -> str:
        """Where the rows come from, for people."""
        raise NotImplementedError

    def file(self, split: str | None) -> LineFile | None:
        """What the rows, or those of a second source, are read from again whenever one is needed; None: they stay in memory.

        Raises:
            ConfigError: `stream` is always, and they can only be read in one go.
        """
        if self.stream == "always":
            raise ConfigError(
                f"data.stream=always: only the lines of a .jsonl file can be read one by one, and this is {self.origin()}. "
                "Write the rows as .jsonl, or use data.stream=auto"
            )
        return None

    def load(self) -> Dataset:
        """Read the rows, make items of them, split them.

        Raises:
            DataError: the rows cannot be read, a row is faulty and `on_error` is error, or no item is left.
        """
        reading = _Reading(self)
        items, notes = reading.unlike(reading.items(self.rows(), self.origin(), "", self.file(None)), "items")
        if isinstance(self.split, str):
            origin = f"data.split={one_line(self.split, 200)}"
            others = reading.items(self.heldout_rows(self.split), origin, "heldout-", self.file(self.split))
            others, told = reading.unlike(others, "held-out items")
            notes += told
            pool, heldout = items.only(mix(items.ids, self.split_seed)), _apart(others, items)
            heldout = heldout.only(mix(heldout.ids, self.split_seed))
        else:
            pool, heldout = (items.only(places) for places in hold_out(items.ids, self.split, self.split_seed))
        kept, leaked = leaks(pool.known, heldout.known, self)
        fresh = pool.only(kept)
        train = fresh.only(part_of(len(fresh), self.train_from, self.train_to))
        if not len(train):
            raise DataError(
                f"{self.origin()}: nothing is left to train on: {len(items)} items, {len(pool)} after data.split={self.split}, "
                f"{len(pool) - len(fresh)} dropped since their prompt is also held out, "
                f"data.train_from={self.train_from:g} data.train_to={self.train_to:g} take none of the other {len(fresh)}"
            )
        part = "" if len(train) == len(fresh) else f" (from {self.train_from:g} to {self.train_to:g} of {len(fresh)})"
        source = f"{self.origin()}: {len(train)} to train on{part}, {len(heldout)} held out, data.split_seed={self.split_seed}"
        given = train.given(), heldout.given()
        return Dataset(*given, items_sha256(*given), source, [*reading.notes(), *notes, *leaked])


@dataclass
class _Reading:
    """Turns rows into items and remembers what was wrong with the others."""

    source: RowSource
    read: int = 0
    faults: list[RowFault] = field(default_factory=list)

    def items(self, rows: Iterable[Row | RowFault], origin: str, prefix: str, file: LineFile | None) -> Stored:
        """The items of one source, in memory or to be read from `file`; ids that are not the rows' own get `prefix`."""
        examples: list[Example] = []
        spans = array("q")
        indexing = Indexing()
        faults: list[RowFault] = []
        for row in itertools.islice(rows, self.source.limit):
            try:
                item, own = self._item(row, prefix)
            except RowFault as fault:
                if self.source.on_error == "error":
                    raise DataError(f"{fault} (data.on_error=skip leaves such rows out)") from fault
                faults.append(fault)
                continue
            indexing.add(item, own)
            if file is None:
                examples.append(item)
            else:
                assert isinstance(row, Row) and row.span is not None
                spans.extend((row.number, *row.span))
        if not len(indexing) and not faults:
            raise DataError(f"{origin}: no rows; it is empty")
        if not len(indexing):
            raise DataError(f"{origin}: none of its {len(faults)} rows can be used: {_counts(faults)}. The first: {faults[0]}")
        self.read += len(indexing) + len(faults)
        self.faults += faults
        if file is None:
            return Held(examples, indexing.index(lambda: (example.id for example in examples)))
        table = np.frombuffer(spans, np.int64).reshape(-1, 3)  # [items, 3]
        index = indexing.index(lambda: (f"{prefix}row-{number}" for number in table[:, 0]))
        return Streamed(file, table, self.source.item, index)

    def _item(self, row: Row | RowFault, prefix: str) -> tuple[Example, str | None]:
        """An item, and the id that its row has."""
        if isinstance(row, RowFault):
            raise row
        self.source.settle(row)
        return self.source.item(row, prefix), _own_id(row)

    def unlike(self, items: Stored, what: str) -> tuple[Stored, list[str]]:
        """The items without those that repeat others, as `duplicates` says, and what is to be told of it."""
        places, notes = repeats(items.known, self.source, what)
        return items.only(places), notes

    def notes(self) -> list[str]:
        form = [] if self.source.form is None else [_told(self.source.form, self.source.chat)]
        if not self.faults:
            return form
        head = f"{len(self.faults)} of {self.read} rows skipped: {_counts(self.faults)}"
        return [*form, head, *(f"skipped: {fault}" for fault in self.faults[:3])]


def _told(form: Form, chat: bool) -> str:
    """How the rows were read, for people."""
    as_chat = (
        "; their texts are put to the model as chat messages, data.chat=false: as they are"
        if chat and not form.messages
        else ""
    )
    return f"rows read in {form}{as_chat}"


def _counts(faults: list[RowFault]) -> str:
    """`no field 'x': 3, malformed line: 1`."""
    return ", ".join(f"{one_line(kind)}: {count}" for kind, count in Counter(fault.kind for fault in faults).most_common())


def _own_id(row: Row) -> str | None:
    """The row's field `id` or `ID`, where it is text or a whole number."""
    value = row.fields.get("id", row.fields.get("ID"))
    return str(value) if isinstance(value, (str, int)) and str(value).strip() else None


def _apart(others: Stored, items: Stored) -> Stored:
    """The items of a second source, their ids marked where one of them is taken."""
    taken = np.isin(marks_of_ids(others.known), marks_of_ids(items.known)).any()
    return others.prefixed("heldout-") if taken else others
