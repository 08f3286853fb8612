"""What a data set is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_exp.batch import Example
from grpo_exp.options import option


@dataclass(frozen=True)
class Dataset:
    """Training and held-out items.

    Attributes:
        train, heldout: the items; no held-out item is in `train`.
        sha256: hash of the items as read, for the run card.
        source: one line for people: where it came from and how it was split.
        notes: lines the run card shows, such as rows that were skipped and why.
    """

    train: list[Example]
    heldout: list[Example]
    sha256: str
    source: str
    notes: list[str] = field(default_factory=list)


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

    def load(self) -> Dataset:
        """Read or generate the items, the same ones at every call.

        Raises:
            DataError: naming file, row and field, before any model loads.
        """
        raise NotImplementedError


def items_sha256(train: Sequence[Example], heldout: Sequence[Example]) -> str:
    """Hash of all items as canonical JSON: equal exactly where prompts, answers, targets, fields and split are."""
    items = {name: [_said(e) for e in part] for name, part in (("train", train), ("heldout", heldout))}
    return hashlib.sha256(json.dumps(items, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()


def _said(example: Example) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(example).items() if name != "held"}
