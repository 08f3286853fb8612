"""What a data set is."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    def load(self, seed: int) -> Dataset:
        """Read or generate the items; `seed` decides the split and what is generated.

        Raises:
            DataError: naming file, row and field, before any model loads.
        """
        raise NotImplementedError
