"""Items that say the same: within a data set, and in training and held-out items. Found by their marks, told and left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpo_exp.data.base import DataSource
from grpo_exp.errors import DataError
from grpo_exp.options import option
from grpo_exp.prompt_order import Places
from grpo_exp.rows.index import Index
from grpo_exp.rows.marks import Marks

ALIKE = "but for case, spaces and Unicode forms"


@dataclass
class CheckedData(DataSource):
    """Options that say what becomes of items that say the same."""

    duplicates: str = option(
        "items whose prompt, answer, target and pair an earlier one has word for word are kept, or left out (drop); drop_near: "
        "also those that differ in case, spaces and Unicode forms alone; error: either ends the run; counted in any case",
        choices=("keep", "drop", "drop_near", "error"),
    )
    leaks: str = option(
        "training items whose prompt is held out word for word are left out (drop); drop_near: also those that differ in case, "
        "spaces and Unicode forms alone; error: either ends the run before it starts; counted in any case",
        choices=("drop", "drop_near", "error"),
    )


def repeats(index: Index, options: CheckedData, what: str) -> tuple[Places, list[str]]:
    """The places of the items that stay, and what is to be told of those that an earlier one says too.

    Raises:
        DataError: there are some, and `duplicates` is error.
    """
    exact, near = (_again(index.marks(name)) for name in ("item", "near_item"))
    if not near.any():
        return np.arange(len(index)), []
    gone = near if options.duplicates == "drop_near" else exact if options.duplicates == "drop" else np.zeros_like(exact)
    some = ", ".join(index.ids[i] for i in np.flatnonzero(near)[:3])
    found = f"{int(exact.sum())} of {len(index)} {what} repeat an earlier one word for word"
    found += f", {int((near & ~exact).sum())} more {ALIKE} ({some}{', ...' if near.sum() > 3 else ''})"
    if options.duplicates == "error":
        raise DataError(f"data={options.name}: {found}. Use data.duplicates=drop or drop_near to leave them out, or keep")
    return np.flatnonzero(~gone), [f"{found}: {_left(int(gone.sum()), int(near.sum()))}"]


def leaks(train: Index, heldout: Index, options: CheckedData) -> tuple[Places, list[str]]:
    """The places of the training items that stay, and what is to be told of those whose prompt is held out.

    Raises:
        DataError: there are some, and `leaks` is error.
    """
    exact, near = (np.isin(train.marks(name), heldout.marks(name)) for name in ("prompt", "near_prompt"))
    alone = int((near & ~exact).sum())
    some = ", ".join(train.ids[i] for i in np.flatnonzero(near & ~exact if alone else near)[:3])
    if options.leaks == "error" and near.any():
        raise DataError(
            f"data={options.name}: the prompts of {int(exact.sum())} training items are also held out word for word, and of "
            f"{alone} {ALIKE} ({some}). Use data.leaks=drop to leave out the former, or drop_near for both"
        )
    gone = near if options.leaks == "drop_near" else exact
    notes = [f"{int(exact.sum())} training items dropped: their prompt is also held out"] if exact.any() else []
    if alone:
        left = "dropped" if options.leaks == "drop_near" else "kept, data.leaks=drop_near leaves them out"
        notes.append(f"{alone} training items have a prompt that is held out {ALIKE} ({some}): {left}")
    return np.flatnonzero(~gone), notes


def _again(marks: Marks) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True where an earlier item has the same mark: `[items]`."""
    again = np.ones(len(marks), dtype=bool)
    again[np.unique(marks, return_index=True)[1]] = False
    return again


def _left(gone: int, all_of_them: int) -> str:
    if not gone:
        return "kept"
    return "left out" if gone == all_of_them else f"{gone} left out"
