"""How sure a number is: bootstrap intervals over items and seeds, paired tests, corrections, what would suffice; pass@k.

One run's own numbers are tensors; what compares runs takes numpy arrays, so that reading results needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def bootstrap_mean(x: Tensor, resamples: int = 2000, seed: int = 0) -> Interval:
    """Mean of one value per item with its percentile bootstrap interval over items: `[n] -> Interval`.

    Where all values are equal the bootstrap says nothing; values in [0, 1] then get Wilson's interval, which for n items of
    value 1 is [n / (n + 3.84), 1], and any others a width of 0.
    """
    import torch

    x = x.double()
    n, mean = len(x), x.mean().item()
    if n == 0:
        return Interval(math.nan, math.nan, math.nan)
    if bool((x == x[0]).all()):
        return _wilson(mean, n) if 0 <= mean <= 1 else Interval(mean, mean, mean)
    index = torch.randint(n, (resamples, n), generator=torch.Generator().manual_seed(seed))
    low, high = torch.quantile(x[index].mean(-1), torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(mean, low, high)


def paired_difference(before: Tensor, after: Tensor, resamples: int = 2000, seed: int = 0) -> Interval:
    """Mean of `after - before` over the same items with its bootstrap interval over items: `[n], [n] -> Interval`."""
    difference = after.double() - before.double()
    if bool((difference == difference[0]).all()):
        value = difference[0].item()
        return Interval(value, value, value)
    return bootstrap_mean(difference, resamples, seed)


def pass_at_k(right: int, samples: int, k: int) -> float:
    """Unbiased probability that at least one of k samples is right, given `right` of `samples` (arXiv 2107.03374, eq. 1)."""
    if samples - right < k:
        return 1.0
    return 1.0 - math.prod((samples - right - i) / (samples - i) for i in range(k))


def _wilson(p: float, n: int, z: float = 1.959963984540054) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927)."""
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = 0.0 if p == 0 else centre - half  # exactly at the ends, where rounding leaves 1e-17
    return Interval(p, low, 1.0 if p == 1 else centre + half)


# ---- several runs: aggregates and their intervals


def iqm(x: Array) -> Array:
    """Interquartile mean over the last axis: the mean of the middle half of its values, `[..., n] -> [...]`.

    A quarter of the values, rounded down, is cut off at each end, as `aggregate_iqm` of rliable does (Agarwal et al. 2021,
    arXiv 2108.13264, section 4.3). The IQM of 1, 2, 3, 100 is 2.5. With fewer than four values it is the mean.
    """
    x = np.sort(np.asarray(x, dtype=np.float64), axis=-1)
    n = x.shape[-1]
    return np.asarray(x[..., n // 4 : n - n // 4].mean(-1))


def stratified_interval(
    scores: Array, statistic: Callable[[Array], Array] = iqm, resamples: int = 2000, seed: int = 0
) -> Interval:
    """A statistic of `[runs, tasks]` with its interval by stratified bootstrap: tasks are given, runs are drawn.

    Each resample draws runs with replacement within each task independently, and the interval is that of percentiles
    (arXiv 2108.13264, section 4.1). `statistic` takes `[..., runs * tasks]` to `[...]`. With few runs the interval is too
    narrow; with one it has no width.
    """
    scores = np.asarray(scores, dtype=np.float64)
    runs, tasks = scores.shape
    if runs * tasks == 0:
        return Interval(math.nan, math.nan, math.nan)
    rows = np.random.default_rng(seed).integers(runs, size=(resamples, runs, tasks))
    drawn = scores[rows, np.arange(tasks)].reshape(resamples, runs * tasks)
    low, high = np.quantile(statistic(drawn), (0.025, 0.975))
    return Interval(float(statistic(scores.reshape(-1))), float(low), float(high))


def crossed_interval(x: Array, resamples: int = 2000, seed: int = 0) -> Interval:
    """Mean of `[seeds, items]` with its bootstrap interval over both: would other seeds and other items say the same?

    Each resample draws seeds and, independently, items with replacement; every drawn seed is judged on the drawn items (the
    crossed bootstrap of Owen 2007, arXiv 0712.1111). Deviations between seeds are stretched by sqrt(S / (S - 1)), since the
    bootstrap of S values underestimates their variance by that factor. With one seed only items are drawn: the interval is
    that of this one model. Where all values agree it is as in `bootstrap_mean`.
    """
    x = np.asarray(x, dtype=np.float64)
    seeds, items = x.shape
    if x.size == 0:
        return Interval(math.nan, math.nan, math.nan)
    mean = float(x.mean())
    if (x == x.flat[0]).all():
        return _wilson(mean, items) if 0 <= mean <= 1 else Interval(mean, mean, mean)
    by_items = _weights(items, resamples, seed + 1)  # [resamples, items]
    ends = (0.0, 1.0) if x.min() >= 0 and x.max() <= 1 else (-math.inf, math.inf)  # which stretching may overstep
    if seeds == 1:
        drawn = by_items @ x[0]  # [resamples]
    else:
        centre = x.mean(0, keepdims=True)  # [1, items]
        x = centre + (x - centre) * math.sqrt(seeds / (seeds - 1))
        by_seeds = _weights(seeds, resamples, seed)[: len(by_items)]  # [resamples, seeds]
        drawn = ((by_seeds @ x) * by_items).sum(1)  # [resamples]
    low, high = np.clip(np.quantile(drawn, (0.025, 0.975)), *ends)
    return Interval(mean, float(low), float(high))


def mean_interval(x: Array) -> Interval:
    """Mean of one value a seed with its t interval, `[seeds] -> Interval`: seeds alone, items taken as given.

    For 1, 3 it is 2 with a half-width of 12.71: t(0.975) with 1 degree of freedom, times 1.
    """
    from scipy.special import stdtrit

    x = np.asarray(x, dtype=np.float64)
    value = float(x.mean())
    half = float(stdtrit(len(x) - 1, 0.975) * x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else math.nan
    return Interval(value, value - half, value + half)


def probability_of_improvement(x: Array, y: Array) -> float:
    """P(a run of x beats a run of y), ties counted half: `[runs], [runs]` or `[runs, tasks]` each, the mean over tasks.

    The Mann-Whitney U statistic over the product of the numbers of runs (arXiv 2108.13264, section 4.3). For x = 1, 3 and
    y = 1, 2 the four pairs give 1/2, 0, 1, 1: 0.625.
    """
    x, y = (np.asarray(a, dtype=np.float64).reshape(len(a), -1) for a in (x, y))
    wins = (x[:, None] > y[None]) + 0.5 * (x[:, None] == y[None])  # [runs, runs, tasks]
    return float(wins.mean())


# ---- differences: tests


def mcnemar(better: int, worse: int) -> float:
    """Exact two-sided p-value of McNemar's test: items that one model has right and the other wrong, in either direction.

    Under the null hypothesis each of the n = better + worse items falls either way with probability 1/2. For 1 and 5 it is
    2 (1 + 6) / 64 = 0.21875. Without such items it is 1.
    """
    from scipy.stats import binomtest

    return float(binomtest(better, better + worse, 0.5).pvalue) if better + worse else 1.0


def paired_bootstrap(difference: Array, resamples: int = 10_000, seed: int = 0) -> float:
    """Two-sided p-value that the mean of paired differences is 0, `[items] -> float`.

    Twice the smaller share of bootstrap means on either side of 0 (Efron and Tibshirani 1993, chapter 15), half of those at
    0 exactly. Where no resample crosses 0 the resolution is used up; the tail of a normal distribution with the bootstrap's
    standard error then goes on below it, so that corrections for many comparisons keep some power.
    """
    difference = np.asarray(difference, dtype=np.float64)
    n = len(difference)
    if n < 2 or (difference == 0).all():
        return 1.0
    if (difference == difference[0]).all():  # every item differs by the same: as sure as a sign test of n items is
        return float(min(1.0, 2.0 ** (1 - n)))
    means = _weights(n, resamples, seed) @ difference  # [resamples]
    on_zero = 0.5 * float((means == 0).mean())
    p = 2 * min(float((means < 0).mean()) + on_zero, float((means > 0).mean()) + on_zero)
    if p > 0:
        return min(1.0, p)
    return min(2 / (len(means) + 1), normal_tail(abs(difference.mean()) / means.std()))


class Difference(NamedTuple):
    """The difference of two settings: `value` with its 95 % interval, and the p-value that it is 0."""

    value: float
    low: float
    high: float
    p: float


def settings_difference(x: Array, y: Array) -> Difference:
    """Mean of x minus mean of y, `[seeds, items]` each on the same items: would other seeds and other items say the same?

    A t test whose variance is that between seeds, as in Welch's test, plus that between items of the paired differences
    (means over seeds); degrees of freedom by Satterthwaite. What varies by seed and item is counted twice, so it errs on the
    side of caution. It needs two seeds of each; with one column it is Welch's test.

    Worked case, one item: x = 1, 3, y = 0, 0: difference 2, variance 2 / 2 + 0 = 1, t = 2 with 1 degree of freedom,
    p = 0.2952.
    """
    from scipy.special import stdtr, stdtrit

    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if min(len(x), len(y)) < 2:
        raise ValueError("two seeds of each setting are needed")
    value = float(x.mean() - y.mean())
    parts = [(float(a.mean(1).var(ddof=1)) / len(a), len(a) - 1) for a in (x, y)]
    if x.shape[1] > 1:
        by_item = x.mean(0) - y.mean(0)  # [items]
        parts.append((float(by_item.var(ddof=1)) / len(by_item), len(by_item) - 1))
    variance = sum(v for v, _ in parts)
    if variance == 0:
        return Difference(value, value, value, 1.0 if value == 0 else 0.0)
    df = variance**2 / sum(v * v / d for v, d in parts)
    error = math.sqrt(variance)
    half = float(stdtrit(df, 0.975)) * error
    return Difference(value, value - half, value + half, 2 * float(stdtr(df, -abs(value) / error)))


def holm(p: Array, family: int | None = None) -> Array:
    """p-values corrected for many comparisons (Holm 1979), `[n] -> [n]`: the chance of one false finding among all stays 5 %.

    Sorted, the smallest is multiplied by the number of comparisons, the next by one less, and so on, never falling. For
    0.01, 0.04, 0.03 they are 0.03, 0.06, 0.06. `family` is the number of comparisons where these are some of more: whoever
    compares all with the best has picked it among all pairs.
    """
    p = np.asarray(p, dtype=np.float64)
    size = max(len(p), family or 0)
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate(p[order] * (size - np.arange(len(p))))
    out = np.empty_like(p)
    out[order] = np.minimum(raised, 1.0)
    return out


# ---- what would suffice


def seeds_needed(difference: float, variance: float, fixed: float = 0.0, alpha: float = 0.05, power: float = 0.8) -> float:
    """Seeds of each of two settings at which a true difference would be found with probability `power`.

    Args:
        variance: sum of both settings' variances between seeds.
        fixed: variance of the difference that seeds do not lower, that of the items.
        alpha: chance of a false finding, divided by the number of comparisons where there are several.

    The smallest n with `difference^2 >= (t(1 - alpha / 2) + t(power))^2 (variance / n + fixed)`, t with 2 (n - 1) degrees of
    freedom; inf where no number suffices. Two settings whose seeds have a standard deviation of 1 each and whose means differ
    by 1 need 17 seeds each, as tables of the two-sided t test at 80 % power say.
    """
    from scipy.special import stdtrit

    if not _reachable(difference, fixed, alpha, power):
        return math.inf
    for n in range(2, 100_001):
        z = float(stdtrit(2 * (n - 1), 1 - alpha / 2)) + float(stdtrit(2 * (n - 1), power))
        if difference**2 >= z * z * (variance / n + fixed):
            return n
        if n > 200:  # t is normal by now
            z = _normal(1 - alpha / 2) + _normal(power)
            return math.ceil(variance / (difference**2 / (z * z) - fixed))
    return math.inf


def items_needed(difference: float, variance: float, fixed: float = 0.0, alpha: float = 0.05, power: float = 0.8) -> float:
    """Items at which a true difference would be found: `variance` is that of the paired differences between items.

    The smallest n with `difference^2 >= (z(1 - alpha / 2) + z(power))^2 (variance / n + fixed)`; `fixed` is what items do not
    lower, the seeds' part. A difference of 0.1 at variance 0.25 needs 197.
    """
    if not _reachable(difference, fixed, alpha, power):
        return math.inf
    z = _normal(1 - alpha / 2) + _normal(power)
    return math.ceil(variance / (difference**2 / (z * z) - fixed))


def detectable(variance: float, seeds: int, alpha: float = 0.05, power: float = 0.8) -> float:
    """The difference of two settings that so many seeds of each find with probability `power`: `seeds_needed`, turned round.

    With 17 seeds and a variance of 2 it is 1.
    """
    from scipy.special import stdtrit

    df = 2 * (seeds - 1)
    return float(stdtrit(df, 1 - alpha / 2) + stdtrit(df, power)) * math.sqrt(variance / seeds)


def _reachable(difference: float, fixed: float, alpha: float, power: float) -> bool:
    z = _normal(1 - alpha / 2) + _normal(power)
    return difference**2 > z * z * fixed and difference != 0


def _normal(q: float) -> float:
    """Quantile of the standard normal distribution."""
    from scipy.special import ndtri

    return float(ndtri(q))


def normal_tail(z: float) -> float:
    """Two-sided p-value of a standard normal value."""
    return math.erfc(z / math.sqrt(2))


@lru_cache(maxsize=4)
def _weights(n: int, resamples: int, seed: int) -> Array:
    """How often each of n values is drawn in each resample, over n: `[resamples, n]`. The same for all runs of n values.

    With many values there are fewer resamples, at least 400, so that it stays below some 32 MB for up to 10,000 values.
    """
    resamples = min(resamples, max(400, 4_000_000 // n))
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    return counts / n
