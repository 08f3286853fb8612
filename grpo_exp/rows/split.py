"""Training and held-out items: who goes where, decided by a hash of the items' ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from grpo_exp.batch import Example
from grpo_exp.errors import ConfigError, DataError
from grpo_exp.prompt_order import shuffled

_WAYS = "give a count such as data.split=100, a fraction such as data.split=0.1, or a second source of items"


def check_split(split: Any) -> None:
    """Raise ConfigError unless `split` is a count, a fraction or the name of a second source."""
    if isinstance(split, str) and split.strip():
        return
    if isinstance(split, bool) or not isinstance(split, (int, float)):
        raise ConfigError(f"data.split={split!r}: {_WAYS}")
    if isinstance(split, int) and split < 1:
        raise ConfigError(f"data.split={split}: no item would be held out, and evaluation needs some; {_WAYS}")
    if isinstance(split, float) and not 0 < split < 1:
        raise ConfigError(f"data.split={split}: a fraction must lie between 0 and 1; {_WAYS}")


def hold_out(items: Sequence[Example], split: int | float, seed: int) -> tuple[list[Example], list[Example]]:
    """Training and held-out items, both in an order that depends on `seed` and the ids alone.

    Raises:
        DataError: no item would be left to train on.
    """
    count = split if isinstance(split, int) else max(1, round(split * len(items)))
    if count >= len(items):
        raise DataError(f"data.split={split}: holds out {count} of {len(items)} items and leaves none to train on; {_WAYS}")
    mixed = mix(items, seed)
    return mixed[count:], mixed[:count]


def mix(items: Sequence[Example], seed: int) -> list[Example]:
    """The items in an order that depends on `seed` and the ids alone."""
    return [items[i] for i in shuffled([item.id for item in items], f"split/{seed}")]


def without_prompts_of(items: Sequence[Example], heldout: Sequence[Example]) -> list[Example]:
    """The items whose prompt is not, word for word, that of a held-out item."""
    asked = {json.dumps(item.prompt) for item in heldout}
    return [item for item in items if json.dumps(item.prompt) not in asked]


def part_of(items: Sequence[Example], start: float, end: float) -> list[Example]:
    """The items between two fractions; parts that meet at the same fraction share no item and leave none out."""
    return list(items[round(start * len(items)) : round(end * len(items))])
