"""How sure a number is: intervals by bootstrap over items, paired differences, unbiased pass@k."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


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
