"""Several sources in one data set, mixed by weight; each source's items are a category of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_exp.batch import Example
from grpo_exp.data.base import Dataset, DataSource, Share, items_sha256
from grpo_exp.errors import ConfigError, DataError, InputError, nearest
from grpo_exp.options import option
from grpo_exp.prompt_order import Places
from grpo_exp.rows.checks import CheckedData, leaks, repeats
from grpo_exp.rows.index import Index, Indexing
from grpo_exp.rows.stored import Indexed


@dataclass
class MixedData(CheckedData):
    """Sources that take turns in training in the proportion of their weights.

    What training draws from each is decided by the source's own options, its seed among them. Held-out items are those of all
    sources, each source a category: `eval/pass@1/NAME`. `duplicates` and `leaks` are judged over all sources together. The
    category that a source gives an item becomes its column `category`.
    """

    sources: dict[str, Any] = option("name -> the options of a data set: +data@data.sources.NAME=OPTION adds one")
    weights: dict[str, float] = option(
        "name -> share of the training prompts that a source gives, in any unit: +data.weights.NAME=3; a source without one: 1"
    )

    def __post_init__(self) -> None:
        self.parts: dict[str, DataSource] = {}
        """The sources as objects; the configuration makes them."""
        for name in self.weights:
            if name not in self.sources:
                known = ", ".join(self.sources) or "none"
                raise ConfigError(f"data.weights.{name}: no such source; there are: {known}.{nearest(name, self.sources)}")
            if not 0 < self.weights[name] < float("inf"):
                raise ConfigError(f"data.weights.{name}={self.weights[name]:g}: expected a number greater than 0")
        for name in self.sources:
            if not name or "/" in name:
                raise ConfigError(f"data.sources: {name!r} is no name for a source; it becomes a part of ids: use no '/'")

    @property
    def answer(self) -> str | None:
        """None where no source has reference answers, as such a source says it."""
        return "" if any(getattr(part, "answer", "") is not None for part in self.parts.values()) else None

    def load(self) -> Dataset:
        """Load all sources and put their items one after the other."""
        if not self.parts:
            raise ConfigError(
                f"data={self.name} has no sources: add some with +data@data.sources.sums=arithmetic and "
                "+data@data.sources.words=svamp_file, or write a YAML file of your own that does; docs/data.md shows one"
            )
        loaded = {name: _loaded(name, part) for name, part in self.parts.items()}
        notes = [f"{name}: {note}" for name, data in loaded.items() for note in data.notes]
        heldout, told = self._unlike(_joined({name: data.heldout for name, data in loaded.items()}), "held-out items")
        train, more = self._unlike(_joined({name: data.train for name, data in loaded.items()}), "training items")
        kept, leaked = leaks(train.known, heldout.known, self)
        train = train.only(kept)
        counts = {name: train.size_of(name) for name in loaded}
        if empty := [name for name, count in counts.items() if not count]:
            raise DataError(f"data.sources.{empty[0]}: none of its items is left to train on: {'; '.join([*more, *leaked])}")
        shares = tuple(Share(name, self.weights.get(name, 1.0), count) for name, count in counts.items())
        total = sum(share.weight for share in shares)
        parts = (f"{s.name} {s.weight / total:.0%} ({s.size}, {loaded[s.name].source})" for s in shares)
        source = f"mixed: {'; '.join(parts)}"
        return Dataset(train, heldout, items_sha256(train, heldout), source, [*notes, *told, *more, *leaked], shares)

    def _unlike(self, items: Joined, what: str) -> tuple[Joined, list[str]]:
        places, notes = repeats(items.known, self, what)
        return items.only(places), notes


def _loaded(name: str, part: DataSource) -> Dataset:
    """A source's data; its faults name it."""
    try:
        return part.load()
    except InputError as error:
        raise type(error)(f"data.sources.{name}: {error}") from error


class Joined(Indexed):
    """Items of several sources one after the other, with the source's name as category and before the id."""

    def __init__(self, sources: dict[str, Sequence[Example]], index: Index, which: Places) -> None:
        super().__init__(index)
        self._names, self._sources, self._which = list(sources), sources, which
        self._firsts = np.cumsum([0, *map(len, sources.values())])  # where each source begins among all items

    def size_of(self, name: str) -> int:
        """How many of the items are a source's."""
        first, last = self._firsts[self._names.index(name)], self._firsts[self._names.index(name) + 1]
        return int(((self._which >= first) & (self._which < last)).sum())

    def one(self, place: int) -> Example:
        at = int(self._which[place])
        source = int(np.searchsorted(self._firsts, at, side="right")) - 1
        name = self._names[source]
        item = _named(name, self._sources[name][at - int(self._firsts[source])])
        return dataclasses.replace(item, id=self.ids[place])

    def only(self, places: Sequence[int] | Places) -> Joined:
        at = np.asarray(places, np.int64)
        if np.array_equal(at, np.arange(len(self))):
            return self
        return Joined(self._sources, self.known.only(at), self._which[at])


def _joined(sources: dict[str, Sequence[Example]]) -> Joined:
    indexing = Indexing()
    for name, items in sources.items():
        for item in items:
            named = _named(name, item)
            indexing.add(named, named.id)
    index = indexing.index(lambda: (f"item-{i}" for i in range(len(indexing))))  # where a source names two of its items alike
    return Joined(sources, index, np.arange(len(index)))


def _named(source: str, item: Example) -> Example:
    own = {"category": item.category} if item.category and "category" not in item.columns else {}
    return dataclasses.replace(item, id=f"{source}/{item.id}", category=source, columns={**item.columns, **own})
