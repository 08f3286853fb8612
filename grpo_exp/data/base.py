"""What a data set is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from grpo_exp.batch import Example
from grpo_exp.errors import ConfigError
from grpo_exp.options import option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Items(Sequence[Example]):
    """Items that are made when they are asked for, so that they need not fit into memory.

    What everything must know of all of them, ids, categories and keys, is there without making any. A slice is a list.
    """

    @property
    @abstractmethod
    def ids(self) -> Sequence[str]:
        """The id of each item."""

    @property
    @abstractmethod
    def categories(self) -> Sequence[str]:
        """The category of each item."""

    @property
    @abstractmethod
    def keys(self) -> NDArray[np.uint64]:
        """What each item is known by whatever its place and id: `marks.Mark.item`, `[items]`."""

    @abstractmethod
    def one(self, place: int) -> Example:
        """The item at a place from 0 on."""

    @abstractmethod
    def only(self, places: Sequence[int] | NDArray[np.int64]) -> Items:
        """The items at these places, in this order."""

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> Example: ...
    @overload
    def __getitem__(self, place: slice) -> list[Example]: ...
    def __getitem__(self, place: int | slice) -> Example | list[Example]:
        inside = range(len(self))[place]
        return self.one(inside) if isinstance(inside, int) else [self.one(i) for i in inside]

    def __iter__(self) -> Iterator[Example]:
        return (self.one(i) for i in range(len(self)))


class Share(NamedTuple):
    """A stretch of the training items that takes turns with the others: whose it is, its weight, how many there are."""

    name: str
    weight: float
    size: int


@dataclass(frozen=True)
class Dataset:
    """Training and held-out items.

    Attributes:
        train, heldout: the items, a list or `Items`; no held-out item is in `train`.
        sha256: hash of the items as read, for the run card.
        source: one line for people: where it came from and how it was split.
        notes: lines the run card shows, such as rows that were skipped and why.
        shares: the stretches that `train` consists of, where several sources are mixed; () for one source.
    """

    train: Sequence[Example]
    heldout: Sequence[Example]
    sha256: str
    source: str
    notes: list[str] = field(default_factory=list)
    shares: tuple[Share, ...] = ()

    @property
    def exhausted(self) -> str | None:
        """A source of which no training item is left."""
        return next((share.name for share in self.shares if not share.size), None)

    def training_on(self, places: Sequence[int] | NDArray[np.int64]) -> Dataset:
        """The data with only these training items, named by their places in rising order."""
        shares, first = [], 0
        for share in self.shares:
            last = first + share.size
            shares.append(share._replace(size=sum(first <= place < last for place in places)))
            first = last
        return dataclasses.replace(self, train=only(self.train, places), shares=tuple(shares))


@dataclass
class DataSource:
    """A kind of data. A subclass adds its options as fields and implements `load`; built from its YAML like a reward."""

    name: str = option("name of this data set, for the run card and W&B")
    kind: str = option("which loader: the name of a file in grpo_exp/data")
    max_prompt_tokens: int | None = option(
        "longest prompt in tokens; null: as many as the model has positions for beside the longest completion", low=1
    )
    long_prompts: str = option(
        "a longer prompt ends the run before it starts, is left out, or loses its beginning; counted in any case",
        choices=("error", "drop", "truncate_left"),
    )
    pass_rates: str | None = option(
        "eval.jsonl of an evaluation of the training items (evaluate MODEL split=train), which says how hard each is"
    )
    keep_between: list[float] | None = option(
        "train on items alone whose pass rate there lies between these two, both included, as in [0.1,0.9]; null: on all"
    )

    def load(self) -> Dataset:
        """Read or generate the items, the same ones at every call.

        Raises:
            DataError: naming file, row and field, before any model loads.
        """
        raise NotImplementedError


def only(items: Sequence[Example], places: Sequence[int] | NDArray[np.int64]) -> Sequence[Example]:
    """The items at these places, as a list where they are one."""
    return items.only(places) if isinstance(items, Items) else [items[i] for i in places]


def check_rates(options: DataSource) -> None:
    """Raise ConfigError unless `keep_between` and `pass_rates` are both null, or two shares and a file."""
    between, file = options.keep_between, options.pass_rates
    if between is None and file is None:
        return
    if between is None or file is None:
        raise ConfigError(
            f"data.keep_between={between} data.pass_rates={file}: they belong together. python -m grpo_exp evaluate MODEL "
            "split=train writes an eval.jsonl for data.pass_rates; or set both to null"
        )
    if len(between) != 2 or not 0 <= between[0] <= between[1] <= 1:
        raise ConfigError(f"data.keep_between={between}: expected two shares of 1, the smaller first, such as [0.1,0.9]")


def items_sha256(train: Sequence[Example], heldout: Sequence[Example]) -> str:
    """Hash of all items as canonical JSON: equal exactly where prompts, answers, targets, fields and split are.

    One item after the other, so that they need not be in memory at once.
    """
    digest = hashlib.sha256()
    for opening, part in (('{"heldout":[', heldout), ('],"train":[', train)):
        digest.update(opening.encode())
        for i, example in enumerate(part):
            digest.update(f"{',' if i else ''}{_said(example)}".encode())
    digest.update(b"]}")
    return digest.hexdigest()


def _said(example: Example) -> str:
    return _CANONICAL.encode({name: value for name, value in vars(example).items() if name != "held"})


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_plain)
