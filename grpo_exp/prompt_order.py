"""Which prompts a step asks: seeded, each once an epoch unless it rests, every step a fair share of every category."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from grpo_exp.batch import Example
from grpo_exp.errors import CheckpointError, DataError


def shuffled(names: Sequence[str], salt: str) -> list[int]:
    """The indices of `names` in an order decided by `salt` and the names alone.

    By hash, so that it is the same on every platform and Python version, and adding names leaves the others in order.
    """
    digests = [hashlib.sha256(f"{salt}/{name}".encode("utf-8", "surrogatepass")).digest() for name in names]
    return sorted(range(len(names)), key=lambda i: (digests[i], i))


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
        self._ids = [example.id for example in examples]
        self._by_category: dict[str, list[int]] = defaultdict(list)
        for index, example in enumerate(examples):
            self._by_category[example.category].append(index)
        self._category = [example.category for example in examples]
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
                before = self._order[len(self._order) - self.memory :]
                self._start_epoch(self._epoch + 1, before, self._resting(self._epoch + 1))
            step = self._order[self._position : self._position + count - len(taken)]
            self._position += len(step)
            taken += step
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
        rank = {index: place for place, index in enumerate(shuffled(self._ids, f"{self.seed}/{epoch}/rest"))}
        resting = [index for index, last in self._rests.items() if last >= epoch]
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

    def _interleaved(self, salt: str) -> list[int]:
        """Every index that does not rest once, shuffled within its category, the categories in proportion."""
        keyed = []
        for category in self._by_category.values():
            members = [index for index in category if index not in self._out]
            mixed = [members[i] for i in shuffled([self._ids[m] for m in members], salt)]
            keyed += [((j + 0.5) / len(mixed), index) for j, index in enumerate(mixed)]
        tie = {index: rank for rank, index in enumerate(shuffled(self._ids, f"{salt}/tie"))}
        return [index for _, index in sorted(keyed, key=lambda pair: (pair[0], tie[pair[1]]))]
