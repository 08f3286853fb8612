"""How hard each training item is for a model, by its own pass rate, and which are neither too hard nor too easy to train on.

A group whose samples are all right or all wrong teaches nothing. `python -m grpo_exp evaluate MODEL split=train` asks the
training items and writes what became of each into eval.jsonl, named by what it says (`marks.item_key`), so that the rates hold
however the rows are ordered, split or renamed.
"""

from __future__ import annotations

import dataclasses
from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_exp.data.base import Dataset, DataSource
from grpo_exp.errors import DataError
from grpo_exp.metrics import RIGHT_ABOVE
from grpo_exp.rows.marks import Marks, keys_of
from grpo_exp.rows.read import Row, RowFault, find_file, one_line, read_rows


def kept(data: Dataset, options: DataSource) -> Dataset:
    """The data with the training items alone that the options keep by their pass rates; a note tells the counts.

    Raises:
        DataError: the file holds no pass rates, or none of these items, or none is left.
    """
    if options.keep_between is None or options.pass_rates is None:
        return data
    low, high = options.keep_between
    known, rates = read_rates(options.pass_rates)
    rate = _of(keys_of(data.train), known, rates)  # [items], NaN where it is not known
    missing, hard, easy = np.isnan(rate), rate < low, rate > high
    file = one_line(options.pass_rates, 200)
    if missing.all():
        raise DataError(
            f"data.pass_rates={file}: none of the {len(rate)} training items of data={options.name} is among the {len(known)} "
            "that it measured. It must be of these items, with the same prompts and answers: evaluate MODEL split=train with "
            "these options of data"
        )
    counts = f"{int(easy.sum())} above, {int(hard.sum())} below, {int(missing.sum())} not measured"
    places = np.flatnonzero(~(missing | hard | easy))
    if not len(places):
        raise DataError(f"data.keep_between=[{low:g},{high:g}]: no training item is left of {len(rate)}: {counts} in {file}")
    note = f"{len(places)} of {len(rate)} training items kept: pass rate from {low:g} to {high:g} in {file}; left out: {counts}"
    smaller = data.training_on(places)
    if smaller.exhausted:
        raise DataError(
            f"data.keep_between=[{low:g},{high:g}]: no training item of data.sources.{smaller.exhausted} is left; {note}"
        )
    return dataclasses.replace(smaller, notes=[*data.notes, note])


def read_rates(name: str) -> tuple[Marks, NDArray[np.float64]]:
    """What an eval.jsonl says: the keys of its items in rising order, and the share of right samples of each, `[items]` both.

    Where it holds evaluations of several steps, each item has the rate of its last one.

    Raises:
        DataError: a line of it has no item or outcome.
    """
    keys, right, steps = array("Q"), array("b"), array("d")
    for row in read_rows(find_file(name, "data.pass_rates")):
        if isinstance(row, RowFault):
            raise DataError(f"data.pass_rates: {row}")
        keys.append(_key(row))
        right.append(_number(row, "outcome") > RIGHT_ABOVE)
        steps.append(_number(row, "step") if "step" in row.fields else 0.0)
    if not keys:
        raise DataError(
            f"data.pass_rates={one_line(name, 200)}: it is empty; python -m grpo_exp evaluate MODEL split=train writes one"
        )
    known, of = np.unique(np.asarray(keys), return_inverse=True)
    last = np.full(len(known), -np.inf)
    np.maximum.at(last, of, steps)
    counts = np.asarray(steps) == last[of]  # [lines]
    return known, np.bincount(of, np.asarray(right).astype(bool) & counts) / np.bincount(of, counts)


def _key(row: Row) -> int:
    value = row.fields.get("item")
    if not isinstance(value, str) or len(value) != 16 or not all(digit in "0123456789abcdef" for digit in value):
        raise DataError(
            f"data.pass_rates: {row.place}: item={one_line(value)}: expected 16 hexadecimal digits, as in an eval.jsonl of "
            "answers that this version of evaluate wrote"
        )
    return int(value, 16)


def _number(row: Row, name: str) -> float:
    value: Any = row.fields.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
        raise DataError(f"data.pass_rates: {row.place}: {name}={one_line(value)}: expected a number")
    return float(value)


def _of(keys: Marks, known: Marks, rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rate of each item, `[items]`; NaN where it is not known."""
    place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[place] == keys, rates[place], np.nan)
