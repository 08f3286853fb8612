"""Training and held-out items: who goes where, decided by a hash of the items' ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_exp.errors import ConfigError, DataError
from grpo_exp.prompt_order import Places, shuffled

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


def hold_out(ids: Sequence[str], split: int | float, seed: int) -> tuple[Places, Places]:
    """The places of training and held-out items, both in an order that depends on `seed` and the ids alone.

    Raises:
        DataError: no item would be left to train on.
    """
    count = split if isinstance(split, int) else max(1, round(split * len(ids)))
    if count >= len(ids):
        raise DataError(f"data.split={split}: holds out {count} of {len(ids)} items and leaves none to train on; {_WAYS}")
    mixed = mix(ids, seed)
    return mixed[count:], mixed[:count]


def mix(ids: Sequence[str], seed: int) -> Places:
    """The places of the items in an order that depends on `seed` and the ids alone."""
    return shuffled(ids, f"split/{seed}")


def part_of(count: int, start: float, end: float) -> Places:
    """The places between two fractions; parts that meet at the same fraction share no item and leave none out."""
    return np.arange(count)[round(start * count) : round(end * count)]
