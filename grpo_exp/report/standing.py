"""The numbers of one setting over its seeds, and of its difference to the best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_exp import stats
from grpo_exp.report.groups import Group
from grpo_exp.report.runs import Run
from grpo_exp.stats import Array, Interval

ALPHA = 0.05
RESAMPLES = 1000  # of an interval; there may be a thousand of them


@dataclass
class Versus:
    """The best setting minus this one, on the same items.

    Attributes:
        difference: with its 95 % interval, not corrected.
        p, p_holm: two-sided p-value; corrected for the comparisons of all pairs, among which the best was picked.
        test: what it is of: "settings" where both have two seeds, "models" where only these very runs can be judged.
        improvement: P(a run of the best beats a run of this one); None below two seeds.
        seeds, items: how many would tell a difference of this size apart among as many settings; inf: none would.
    """

    difference: Interval
    p: float
    test: str
    improvement: float | None
    seeds: float | None
    items: float | None
    p_holm: float = 1.0

    @property
    def real(self) -> bool:
        return self.p_holm < ALPHA


@dataclass
class Standing:
    """A setting in the ranking.

    Attributes:
        group: the setting and all its runs.
        used: the runs that its numbers are from: the finished ones; where there are none, all that have a value so far.
        values: the objective by item, `[used, items]`, or one column where it is not known by item.
        interval: mean with its 95 % interval; None without a value.
        iqm: interquartile mean over seeds with its interval; None below four seeds.
        kl, length: median over the last ten steps, mean over runs. tokens, seconds: mean over runs.
    """

    group: Group
    used: list[Run]
    values: Array
    by_item: bool
    interval: Interval | None
    iqm: Interval | None
    kl: float | None
    length: float | None
    tokens: float | None
    seconds: float | None
    versus: Versus | None = None

    @property
    def final(self) -> bool:
        return bool(self.used) and self.used[0].status == "finished"

    @property
    def seeds(self) -> int:
        return len(self.used)

    @property
    def status(self) -> str:
        """`finished`, `pruned`, or `2 finished, 1 failed`."""
        counts = Counter(run.status for run in self.group.runs)
        return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {name}" for name, n in counts.items())


def standing(group: Group, metric: str) -> Standing:
    """The numbers of a group."""
    measured = [run for run in group.runs if value(run, metric) is not None]
    used = [run for run in measured if run.status == "finished"] or measured
    values, by_item = _values(used, metric)
    per_seed = values.mean(1)
    return Standing(
        group=group,
        used=used,
        values=values,
        by_item=by_item,
        interval=_interval(used, values, by_item, metric),
        iqm=stats.stratified_interval(per_seed[:, None], resamples=RESAMPLES) if len(used) >= 4 else None,
        kl=_mean([run.late("kl/mean") for run in used]),
        length=_mean([run.late("length/mean") for run in used]),
        tokens=_mean([run.tokens for run in used]),
        seconds=_mean([run.seconds for run in used]),
    )


def value(run: Run, metric: str) -> float | None:
    """What a run is judged by: the newest evaluation, or the median of a training metric over the last ten steps."""
    if run.status in ("failed", "broken"):
        return None
    if not metric.startswith("eval/"):
        return run.late(metric)
    if metric == run.metric:
        return run.objective
    return run.after[metric].value if metric in run.after else None


def versus(best: Standing, other: Standing, family: int) -> Versus:
    """The difference between two settings, one of `family` such pairs, and what would suffice to tell it apart."""
    alpha = ALPHA / family
    paired = best.by_item and other.by_item and best.values.shape[1] == other.values.shape[1]
    x, y = (s.values if paired else s.values.mean(1, keepdims=True) for s in (best, other))
    by_item = x.mean(0) - y.mean(0)  # [items]
    item_variance = float(by_item.var(ddof=1)) if len(by_item) > 1 else 0.0
    improvement = stats.probability_of_improvement(x.mean(1), y.mean(1)) if min(len(x), len(y)) > 1 else None
    if min(len(x), len(y)) > 1:
        found = stats.settings_difference(x, y)
        between = sum(float(a.mean(1).var(ddof=1)) for a in (x, y))
        of_items = item_variance / len(by_item)
        seeds = stats.seeds_needed(found.value, between, of_items, alpha)
        items = stats.items_needed(found.value, item_variance, between / min(len(x), len(y)), alpha) if item_variance else None
        return Versus(Interval(*found[:3]), found.p, "settings", improvement, seeds, items)
    if paired:
        test = _models(by_item, one_sample=bool(np.isin([x, y], (0, 1)).all()) if x.shape == y.shape else False)
        items = stats.items_needed(float(by_item.mean()), item_variance, alpha=alpha)
        difference = stats.crossed_interval(by_item[None]) if by_item.any() else Interval(0.0, 0.0, 0.0)
        return Versus(difference, test, "models", improvement, None, items)
    return _unpaired(best, other)


def correct(standings: Sequence[Standing], family: int) -> None:
    """Holm's correction of all differences to the best."""
    found = [s.versus for s in standings if s.versus is not None]
    for one, p in zip(found, stats.holm(np.array([v.p for v in found]), family), strict=True):
        one.p_holm = float(p)


def _models(difference: Array, one_sample: bool) -> float:
    """McNemar's exact test where an item is right or wrong, otherwise paired bootstrap."""
    if one_sample:
        return stats.mcnemar(int((difference > 0).sum()), int((difference < 0).sum()))
    return stats.paired_bootstrap(difference)


def _unpaired(best: Standing, other: Standing) -> Versus:
    """From the two intervals alone, where neither items nor seeds are known: as if they were independent and normal."""
    a, b = best.interval, other.interval
    assert a is not None and b is not None
    value, half = a.value - b.value, float(np.hypot(a.high - a.low, b.high - b.low)) / 2
    p = stats.normal_tail(abs(value) / (half / 1.96)) if half > 0 else 1.0  # no interval, no verdict
    return Versus(Interval(value, value - half, value + half), p, "models", None, None, None)


def _values(runs: Sequence[Run], metric: str) -> tuple[Array, bool]:
    """The objective of each run, by item where all runs tell the same items: `[runs, items]`, whether it is by item."""
    found = [_by_item(run, metric) for run in runs]
    rows = [values for values in found if values is not None and len(values)]
    if runs and len(rows) == len(runs) and len({len(row) for row in rows}) == 1:
        return np.stack(rows), True
    return np.array([[value(run, metric)] for run in runs], dtype=np.float64).reshape(len(runs), 1), False


def _by_item(run: Run, metric: str) -> Array | None:
    items = run.items() if metric.startswith("eval/") else None
    values = None if items is None else items.values(metric)
    told = value(run, metric)
    # rows of an evaluation that was interrupted do not add up to the number
    return values if values is not None and len(values) and told is not None and abs(values.mean() - told) < 1e-3 else None


def _interval(runs: Sequence[Run], values: Array, by_item: bool, metric: str) -> Interval | None:
    if not runs:
        return None
    if by_item:
        return stats.crossed_interval(values, RESAMPLES)
    if len(runs) > 1:
        return stats.mean_interval(values[:, 0])
    return runs[0].after.get(metric) or Interval(float(values[0, 0]), float("nan"), float("nan"))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [x for x in values if x is not None]
    return float(np.mean(known)) if known else None
