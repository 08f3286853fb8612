"""What all data made of rows shares, wherever the rows come from: reading with or without faults, ids, the split."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from grpo_exp.batch import Example
from grpo_exp.data.base import Dataset, items_sha256
from grpo_exp.errors import ConfigError, DataError
from grpo_exp.options import option
from grpo_exp.rows.mapping import MappedData
from grpo_exp.rows.read import Row, RowFault, one_line
from grpo_exp.rows.split import check_split, hold_out, mix, part_of, without_prompts_of


@dataclass
class RowSource(MappedData):
    """Items from rows. A subclass says where the rows come from: `rows`, `heldout_rows`, `origin`."""

    split: Any = option("held-out items: a count, a fraction, or a second source (a file; for hub: a split's name)")
    split_seed: int = option("decides which items are held out; runs that are compared keep it fixed")
    train_from: float = option("start of the part of the training items that is used, a fraction of them", low=0, high=1)
    train_to: float = option("end of the part of the training items that is used, a fraction of them", low=0, high=1)
    limit: int | None = option("rows to read from each source; null: all", low=1)
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

    def load(self) -> Dataset:
        """Read the rows, make items of them, split them.

        Raises:
            DataError: the rows cannot be read, a row is faulty and `on_error` is error, or no item is left.
        """
        reading = _Reading(self)
        items = reading.items(self.rows(), self.origin(), "")
        if isinstance(self.split, str):
            others = reading.items(self.heldout_rows(self.split), f"data.split={one_line(self.split, 200)}", "heldout-")
            pool, heldout = mix(items, self.split_seed), mix(_apart(others, items), self.split_seed)
        else:
            pool, heldout = hold_out(items, self.split, self.split_seed)
        fresh = without_prompts_of(pool, heldout)
        train = part_of(fresh, self.train_from, self.train_to)
        dropped = len(pool) - len(fresh)
        if not train:
            raise DataError(
                f"{self.origin()}: nothing is left to train on: {len(items)} items, {len(pool)} after data.split={self.split}, "
                f"{dropped} dropped since their prompt is also held out, "
                f"data.train_from={self.train_from:g} data.train_to={self.train_to:g} take none of the other {len(fresh)}"
            )
        notes = reading.notes()
        if dropped:
            notes.append(f"{dropped} training items dropped: their prompt is also held out")
        part = "" if len(train) == len(fresh) else f" (from {self.train_from:g} to {self.train_to:g} of {len(fresh)})"
        source = f"{self.origin()}: {len(train)} to train on{part}, {len(heldout)} held out, data.split_seed={self.split_seed}"
        return Dataset(train, heldout, items_sha256(train, heldout), source, notes)


@dataclass
class _Reading:
    """Turns rows into items and remembers what was wrong with the others."""

    source: RowSource
    read: int = 0
    faults: list[RowFault] = field(default_factory=list)

    def items(self, rows: Iterable[Row | RowFault], origin: str, prefix: str) -> list[Example]:
        """The items of one source; ids that are not the rows' own get `prefix`."""
        items: list[Example] = []
        own_ids: list[str | None] = []
        faults: list[RowFault] = []
        for row in itertools.islice(rows, self.source.limit):
            try:
                if isinstance(row, RowFault):
                    raise row
                items.append(self.source.item(row, prefix))
                own_ids.append(_own_id(row))
            except RowFault as fault:
                if self.source.on_error == "error":
                    raise DataError(f"{fault} (data.on_error=skip leaves such rows out)") from fault
                faults.append(fault)
        if not items and not faults:
            raise DataError(f"{origin}: no rows; it is empty")
        if not items:
            raise DataError(f"{origin}: none of its {len(faults)} rows can be used: {_counts(faults)}. The first: {faults[0]}")
        self.read += len(items) + len(faults)
        self.faults += faults
        if None not in own_ids and len(set(own_ids)) == len(own_ids):
            return [dataclasses.replace(item, id=str(name)) for item, name in zip(items, own_ids, strict=True)]
        return items

    def notes(self) -> list[str]:
        if not self.faults:
            return []
        head = f"{len(self.faults)} of {self.read} rows skipped: {_counts(self.faults)}"
        return [head, *(f"skipped: {fault}" for fault in self.faults[:3])]


def _counts(faults: list[RowFault]) -> str:
    """`no field 'x': 3, malformed line: 1`."""
    return ", ".join(f"{one_line(kind)}: {count}" for kind, count in Counter(fault.kind for fault in faults).most_common())


def _own_id(row: Row) -> str | None:
    """The row's field `id` or `ID`, where it is text or a whole number."""
    value = row.fields.get("id", row.fields.get("ID"))
    return str(value) if isinstance(value, (str, int)) and str(value).strip() else None


def _apart(others: list[Example], items: list[Example]) -> list[Example]:
    """The items of a second source, their ids marked where one of them is taken."""
    taken = {item.id for item in items}
    if not any(other.id in taken for other in others):
        return others
    return [dataclasses.replace(other, id=f"heldout-{other.id}") for other in others]
