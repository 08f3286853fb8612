"""Policy losses as pure functions of tensors: per-token terms, how they become one number, and what is counted on the way.

Shapes: N rows, T completion tokens. Everything returns *sums*; the loop divides once by the count over the whole optimizer
batch, so that any number of micro-batches gives the gradient of one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grpo_exp.ops import KLEstimator, kl_estimate

Aggregation = Literal["sequence_mean", "token_mean", "constant_length"]
KLGradient = Literal["estimator", "unbiased"]


class Clipped(NamedTuple):
    """A clipped surrogate, `[N, T]` each: the loss, and where the lower or upper bound took the gradient away."""

    loss: Tensor
    low: Tensor
    high: Tensor


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Clipped:
    """`-min(r A, clip(r, 1 - low, 1 + high) A)` for each token: `[N, T], [N, T] -> [N, T]`.

    PPO (arXiv 1707.06347), equation 7, with the separate upper bound of DAPO (arXiv 2503.14476, equation 10). The dual clip of
    other libraries, a further bound for negative advantages, is left out: it is not part of GRPO.
    """
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(-ratio * advantages, -bounded * advantages)
    low = (ratio < 1 - clip_low) & (advantages < 0)
    high = (ratio > 1 + clip_high) & (advantages > 0)
    return Clipped(loss, low, high)


def kl_penalty(logp: Tensor, ref_logp: Tensor, estimator: KLEstimator, gradient: KLGradient) -> Tensor:
    """KL term for the loss, for each token: `[N, T], [N, T] -> [N, T]`.

    `gradient="estimator"` differentiates the estimator itself: k1 has a gradient of mean zero, k2 that of KL(pi || ref), k3
    that of KL(ref || pi). `"unbiased"` keeps the estimator's value and takes the gradient of KL(pi || ref), which on samples of
    the policy is that of k2 (arXiv 2510.01555, section 3; arXiv 2512.21852).
    """
    value = kl_estimate(logp, ref_logp, estimator)
    if gradient == "estimator":
        return value
    through = kl_estimate(logp, ref_logp, "k2")
    return value.detach() + through - through.detach()


def aggregate_sum(x: Tensor, mask: Tensor, how: Aggregation, max_length: int) -> Tensor:
    """The numerator of an aggregation: `[N, T] -> []`.

        sequence_mean    sum over rows of the row's token mean       GRPO (arXiv 2402.03300, equation 3)
        token_mean       sum over all tokens                         DAPO (arXiv 2503.14476, equation 8)
        constant_length  sum over all tokens / max_length            Dr. GRPO (arXiv 2503.20783, section 3.2)

    A row without any token in the mask adds 0.
    """
    x = x.masked_fill(~mask, 0)
    if how == "sequence_mean":
        return (x.sum(-1) / mask.sum(-1).clamp(min=1)).sum()
    return x.sum() if how == "token_mean" else x.sum() / max_length


def aggregate_count(mask: Tensor, how: Aggregation) -> Tensor:
    """The denominator that goes with `aggregate_sum`: tokens for token_mean, otherwise rows.

    Counts of micro-batches add up to that of the whole, so a mask without any token counts 0; who divides guards against it.
    """
    return mask.sum() if how == "token_mean" else torch.tensor(mask.shape[0], device=mask.device)
