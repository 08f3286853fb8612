"""The curves of a report: metrics against step, tokens and seconds, thinned so that many runs fit into one page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_exp.report.runs import AXES, Columns, Run
from grpo_exp.track import wording

POINTS = 300  # of a curve, at most
NUMBERS = 300_000  # in a page, over all runs and metrics: about 2 MB
READ = 60_000  # rows over all runs that are read before they are averaged; about 5 s
FIRST = (
    *(
        "reward/mean",
        "kl/mean",
        "length/mean",
        "reward/group_std",
        "reward/std",
        "eval/pass@1",
        "entropy/mean",
        "loss/total",
        "grad/norm",
    ),
    *(
        "eval/length",
        "eval/reward",
        "format/rate",
        "reward/zero_std_frac",
        "length/truncated_frac",
        "dpo/accuracy",
        "dpo/margin",
    ),
)
"""In this order where not all fit."""


def add(shown: Sequence[dict[str, Any]], runs: Sequence[Run]) -> list[str]:
    """Give each of `shown` its `train` and `eval` curves: `{"step": [...], "tokens": ..., "seconds": ..., "m": {name: [...]}}`.

    A point is the mean over a bin of steps, with the step, tokens and seconds at the bin's end; bins are the same for all
    runs. Values that are not finite are left out of the mean.

    Returns:
        The metrics that some run has, in the order in which a reader looks for them.
    """
    train = {run.folder: run.names() for run in runs}
    evaluated = {run.folder: list(run.after) for run in runs}
    names = _order({name for found in (*train.values(), *evaluated.values()) for name in found}, {run.metric for run in runs})
    last = max((run.steps for run in runs), default=0)
    points = min(POINTS, max(40, NUMBERS // max(1, len(runs) * (len(names) + len(AXES)))))
    names = names[: max(8, NUMBERS // (points * max(1, len(runs))) - len(AXES))]
    width = max(1, -(-last // points))
    read = max(points, READ // max(1, len(runs)))
    for entry, run in zip(shown, runs, strict=True):
        trained, measured = ([name for name in names if name in found[run.folder]] for found in (train, evaluated))
        entry["train"], entry["eval"] = (_curve(table, width) for table in run.curves(trained, measured, read))
    present = {name for entry in shown for part in ("train", "eval") for name in entry[part]["m"]}
    return [name for name in map(_shown, names) if name in present]


def _order(names: set[str], judged: set[str]) -> list[str]:
    first = [name for name in dict.fromkeys((*FIRST[:5], *sorted(judged), *FIRST[5:])) if name in names]
    return [*first, *sorted(names - set(first))]


def _curve(table: Columns, width: int) -> dict[str, Any]:
    names = [name for name in table if name not in AXES]
    if not names:
        return {**{axis: [] for axis in AXES}, "m": {}}
    steps = table["step"]
    known = np.isfinite(steps)
    bins = np.ceil(steps[known] / width)  # step 0 alone, then 1..width, ...
    _, group = np.unique(bins, return_inverse=True)  # [rows]
    count = int(group.max()) + 1 if len(group) else 0
    curves = {}
    for name in names:
        column = _means(table[name][known], group, count)
        if any(value is not None for value in column):
            curves[_shown(name)] = column
    return {**{axis: _last(table[axis][known], group, count) for axis in AXES}, "m": curves}


def _shown(name: str) -> str:
    """A metric's name, which may be of any reward or plug-in."""
    return wording.cut(wording.clean(name), 100)


def _means(values: np.ndarray, group: np.ndarray, count: int) -> list[float | None]:
    """Mean of the finite values of each bin, to four digits: `[rows] -> [count]`, None where there is none."""
    finite = np.isfinite(values)
    number = np.bincount(group[finite], minlength=count)
    total = np.bincount(group[finite], weights=values[finite], minlength=count)
    return [float(f"{t / n:.4g}") if n else None for t, n in zip(total.tolist(), number.tolist(), strict=True)]


def _last(values: np.ndarray, group: np.ndarray, count: int) -> list[float | None]:
    """The last finite value of each bin."""
    found: list[float | None] = [None] * count
    for value, place in zip(values.tolist(), group.tolist(), strict=True):
        if np.isfinite(value):
            found[place] = int(value) if value == int(value) else float(f"{value:.5g}")
    return found
