"""How often the samples of a prompt all come out alike: measured for groups up to the samples there are, predicted beyond.

Pure functions of counts. A group whose values are all equal has no contrast, and an algorithm that compares the samples of a
group learns nothing from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from grpo_exp.stats import Interval

MEANS, SPREADS = 99, 41


def alike(counts: Iterable[int], size: int) -> float:
    """The chance that `size` of a prompt's samples, drawn without replacement, all have the same value.

    `counts` says how often each value occurred. This is unbiased for groups of `size` fresh samples, where p^G + (1 - p)^G
    with p the share of right samples is not: of 4 samples with 2 right, two are alike in 1/3 of the draws, not in 1/2.
    """
    counts = list(counts)
    return sum(math.comb(count, size) for count in counts) / math.comb(sum(counts), size)


class Difficulty:
    """What is believed of the prompts' chances of a right answer, given how many of their samples were right.

    The chances are taken to follow a Beta distribution over prompts, so that the right ones of n samples are beta-binomial. Its
    mean m and its spread 1 / (1 + a + b) have a flat prior on a grid; averages over the posterior stay sensible where no sample
    was right, in which a fit has nothing to hold on to. The share of groups without contrast is E[p^G + (1 - p)^G].

    Args:
        right: right samples of each prompt.
        samples: samples of each prompt.
    """

    def __init__(self, right: Sequence[int], samples: int) -> None:
        mean = torch.linspace(0.005, 0.995, MEANS, dtype=torch.float64)
        spread = torch.linspace(0.01, 0.99, SPREADS, dtype=torch.float64)
        size = 1 / spread - 1  # a + b
        self._a = (mean[:, None] * size).flatten()  # [grid]
        self._b = ((1 - mean)[:, None] * size).flatten()
        often = torch.bincount(torch.tensor(right), minlength=samples + 1).double()  # [samples + 1]
        c = torch.arange(samples + 1, dtype=torch.float64)[:, None]
        logp = _log_beta(self._a + c, self._b + samples - c) - _log_beta(self._a, self._b)  # [samples + 1, grid]
        self._weight = torch.softmax((often[:, None] * logp).sum(0), 0)

    def without_contrast(self, size: int) -> Interval:
        """The expected share of groups of `size` samples that are all right or all wrong, with a 95 % credible interval."""
        none = _log_beta(self._a, self._b)
        share = torch.exp(_log_beta(self._a + size, self._b) - none) + torch.exp(_log_beta(self._a, self._b + size) - none)
        order = share.argsort()
        below = self._weight[order].cumsum(0)
        low, high = (share[order][int((below < q).sum().clamp(max=len(share) - 1))].item() for q in (0.025, 0.975))
        return Interval(float((self._weight * share).sum()), low, high)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
