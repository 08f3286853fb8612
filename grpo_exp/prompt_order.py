"""Which prompts a step asks: seeded, each once an epoch unless it rests, every step a fair share of every category."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from grpo_exp.batch import Example
from grpo_exp.data.base import Dataset, Items, Share, only
from grpo_exp.errors import CheckpointError, DataError

Places = NDArray[np.int64]


def shuffled(names: Sequence[str], salt: str) -> Places:
    """The indices of `names` in an order decided by `salt` and the names alone: int64 `[names]`.

    By hash, so that it is the same on every platform and Python version, and adding names leaves the others in order.
    """
    first = np.fromiter((int.from_bytes(_digest(name, salt)[:8], "big") for name in names), np.uint64, len(names))
    order = np.argsort(first, kind="stable")  # equal names in the order they have
    if (np.diff(first[order]) > 0).all():
        return order
    digests = [_digest(name, salt) for name in names]  # eight bytes do not tell all of them apart
    return np.array(sorted(range(len(names)), key=digests.__getitem__), np.int64)


def _digest(name: str, salt: str) -> bytes:
    return hashlib.sha256(f"{salt}/{name}".encode("utf-8", "surrogatepass")).digest()


class Order(Protocol):
    """An endless order of prompts, and what it remembers of them."""

    def take(self, count: int) -> list[int]: ...

    def record(self, indices: Sequence[int], contrast: Sequence[bool]) -> None: ...

    @property
    def resting_frac(self) -> float: ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any]) -> None: ...


def order_of(data: Dataset, seed: int, memory: int, skip_visits: int = 0) -> Order:
    """The order of a data set's training items: with turns by weight where several sources are mixed."""
    if data.shares:
        return MixedOrder(data.train, data.shares, seed, memory, skip_visits)
    return PromptOrder(data.train, seed, memory, skip_visits)


class PromptOrder:
    """An endless order of prompts.

    An epoch holds every prompt once. Within it the categories are interleaved: item j of a category of n stands at
    (j + 1/2) / n of the epoch, so every stretch of it is close to proportional. Across an epoch's end no prompt returns
    within the last `memory` prompts; memory is at most half the pool, since beyond that the epochs would grow alike.

    A prompt that `record` was told to teach nothing rests for `skip_visits` epochs, from the next one that begins. Twice
    `memory` prompts, or one, stay in every epoch: where fewer are left, those nearest to their return come back early.

    Args:
        examples: the pool.
        seed: decides the order, together with the examples' ids.
        memory: prompts that must lie between two uses of the same one.
        skip_visits: epochs that a prompt without contrast rests; 0 for none.

    Raises:
        DataError: the pool is empty.
    """

    def __init__(self, examples: Sequence[Example], seed: int, memory: int, skip_visits: int = 0) -> None:
        if not examples:
            raise DataError("no training prompts to draw from")
        known = examples if isinstance(examples, Items) else None
        self._ids = [example.id for example in examples] if known is None else known.ids
        categories = [example.category for example in examples] if known is None else known.categories
        codes: dict[str, int] = {}
        self._category = np.fromiter((codes.setdefault(name, len(codes)) for name in categories), np.int32, len(examples))
        self.seed = seed
        self.memory = max(0, min(memory, len(examples) // 2))
        self.skip_visits = skip_visits
        self._rests: dict[int, int] = {}  # prompt -> the last epoch that it rests in
        self._start_epoch(0, before=[], out=set())

    def take(self, count: int) -> list[int]:
        """The next `count` prompts, as indices into the examples; more than the pool holds means repeats."""
        taken: list[int] = []
        while len(taken) < count:
            if self._position >= len(self._order):
                before = self._order[len(self._order) - self.memory :].tolist()
                self._start_epoch(self._epoch + 1, before, self._resting(self._epoch + 1))
            step = self._order[self._position : self._position + count - len(taken)]
            self._position += len(step)
            taken += step.tolist()
        return taken

    def record(self, indices: Sequence[int], contrast: Sequence[bool]) -> None:
        """What became of prompts that were taken: whether the outcomes of each one's samples differed."""
        if not self.skip_visits:
            return
        for index, different in zip(indices, contrast, strict=True):
            if different:
                self._rests.pop(index, None)
            else:
                self._rests[index] = self._epoch + self.skip_visits

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def resting_frac(self) -> float:
        """Share of the pool that is left out of this epoch."""
        return len(self._out) / len(self._ids)

    def state(self) -> dict[str, Any]:
        """What `load` needs to go on from here; plain JSON values."""
        return {
            "pool": len(self._ids),
            "seed": self.seed,
            "memory": self.memory,
            "epoch": self._epoch,
            "position": self._position,
            "before": self._before,
            "skip_visits": self.skip_visits,
            "rests": sorted(self._rests.items()),
            "out": sorted(self._out),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            CheckpointError: it belongs to another pool, seed, memory or number of visits to skip.
        """
        own = {"pool": len(self._ids), "seed": self.seed, "memory": self.memory, "skip_visits": self.skip_visits}
        for key, now in own.items():
            if state[key] != now:
                raise CheckpointError(
                    f"the checkpoint's prompt order has {key} {state[key]}, this run has {now}; "
                    "resume with the data and the seed that the run started with"
                )
        self._rests = {index: last for index, last in state["rests"]}
        self._start_epoch(state["epoch"], list(state["before"]), set(state["out"]))
        self._position = state["position"]

    def _resting(self, epoch: int) -> set[int]:
        """The prompts that an epoch leaves out: those that rest, farthest from their return first, while enough are left."""
        resting = [index for index, last in self._rests.items() if last >= epoch]
        if not resting:
            return set()
        rank = _inverse(shuffled(self._ids, f"{self.seed}/{epoch}/rest"))
        resting.sort(key=lambda index: (-self._rests[index], rank[index]))
        return set(resting[: len(self._ids) - max(1, 2 * self.memory)])

    def _start_epoch(self, epoch: int, before: list[int], out: set[int]) -> None:
        """Set the epoch's order: all prompts but `out`; `before` are the last `memory` of the epoch that went before."""
        self._epoch, self._position, self._before, self._out = epoch, 0, before, out
        self._order = self._interleaved(f"{self.seed}/{epoch}")
        # The k-th of `before` has left the last `memory` prompts once slot k is filled, so it is open from slot k + 1 on.
        # At slot q of n prompts that makes n - memory + q open ones at least, of which q are placed: one is always left.
        opens = {index: k + 1 for k, index in enumerate(before)}
        for slot in range(len(before)):
            self._swap_in(slot, opens)

    def _swap_in(self, slot: int, opens: dict[int, int]) -> None:
        """Put an open prompt at `slot`: of the category that stands there if one is open, else the next open one."""
        order = self._order
        open_places = (p for p in range(slot, len(order)) if opens.get(order[p], 0) <= slot)
        first = next(open_places)
        wanted = self._category[order[slot]]
        place = first
        if self._category[order[first]] != wanted:
            place = next((p for p in open_places if self._category[order[p]] == wanted), first)
        order[slot], order[place] = order[place], order[slot]

    def _interleaved(self, salt: str) -> Places:
        """Every index that does not rest once, shuffled within its category, the categories in proportion: int64 `[stay]`."""
        stays = np.ones(len(self._ids), dtype=bool)
        stays[list(self._out)] = False
        mixed = shuffled(self._ids, salt)  # by names alone, so that leaving out some leaves the others in order
        mixed = mixed[stays[mixed]]
        place = np.empty(len(mixed))  # within the epoch, from 0 to 1
        for category in np.unique(self._category[mixed]):
            members = np.flatnonzero(self._category[mixed] == category)
            place[members] = (np.arange(len(members)) + 0.5) / len(members)
        tie = _inverse(shuffled(self._ids, f"{salt}/tie"))
        return mixed[np.lexsort((tie[mixed], place))]


class MixedOrder:
    """Prompts of several sources in turns, each source in an order of its own, an epoch of its own after the other.

    Next is always the source that is farthest behind its share, so that the shares hold in every stretch of prompts, whatever
    the sizes. There is no chance in it: the same weights give the same turns, whatever the seed.

    Args:
        examples: all training items.
        shares: the stretches of them that are the sources'.
        seed, memory, skip_visits: as for `PromptOrder`; each source has its share of `memory`.
    """

    def __init__(self, examples: Sequence[Example], shares: Sequence[Share], seed: int, memory: int, skip_visits: int) -> None:
        total = math.fsum(share.weight for share in shares)
        self._shares = {share.name: share.weight / total for share in shares}
        self._taken = dict.fromkeys(self._shares, 0)
        self._first: dict[str, int] = {}
        self._orders: dict[str, PromptOrder] = {}
        first = 0
        for share in shares:
            part = only(examples, range(first, first + share.size))
            own = math.ceil(memory * self._shares[share.name])
            self._first[share.name], self._orders[share.name] = first, PromptOrder(part, seed, own, skip_visits)
            first += share.size

    def take(self, count: int) -> list[int]:
        """The next `count` prompts, as indices into all examples."""
        taken = []
        for _ in range(count):
            place = sum(self._taken.values()) + 1
            name = max(self._shares, key=lambda name: self._shares[name] * place - self._taken[name])
            self._taken[name] += 1
            taken.append(self._first[name] + self._orders[name].take(1)[0])
        return taken

    def record(self, indices: Sequence[int], contrast: Sequence[bool]) -> None:
        """What became of prompts that were taken: whether the outcomes of each one's samples differed."""
        for index, different in zip(indices, contrast, strict=True):
            name = next(name for name in reversed(self._first) if self._first[name] <= index)
            self._orders[name].record([index - self._first[name]], [different])

    @property
    def resting_frac(self) -> float:
        """Share of all prompts that are left out of their source's epoch."""
        resting = sum(len(order) * order.resting_frac for order in self._orders.values())
        return resting / sum(map(len, self._orders.values()))

    def state(self) -> dict[str, Any]:
        """What `load` needs to go on from here; plain JSON values."""
        return {
            "shares": self._shares,
            "taken": dict(self._taken),
            "orders": {name: order.state() for name, order in self._orders.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            CheckpointError: it belongs to other sources, weights or pools.
        """
        if state.get("shares") != self._shares:
            raise CheckpointError(
                f"the checkpoint's prompt order mixes {state.get('shares')}, this run {self._shares}; resume with the sources "
                "and weights that the run started with"
            )
        self._taken = dict(state["taken"])
        for name, order in self._orders.items():
            order.load(state["orders"][name])


def _inverse(order: Places) -> Places:
    """The rank of each index in an order."""
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank
