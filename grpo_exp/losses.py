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
RatioLevel = Literal["token", "sequence"]


class Clipped(NamedTuple):
    """A surrogate, `[N, T]` each: the loss, and where a lower or an upper bound took the gradient away or held the weight."""

    loss: Tensor
    low: Tensor
    high: Tensor


def policy_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor, loss_mask: Tensor, level: RatioLevel) -> Tensor:
    """pi / pi_old for each token: `[N, T], [N, T] -> [N, T]`, 1 outside the loss mask.

        token     exp(log pi - log pi_old)                                       PPO (arXiv 1707.06347, section 3)
        sequence  exp(mean over the row's tokens of log pi - log pi_old)         GSPO (arXiv 2507.18071, equation 7)

    Left out: GSPO-token (equations 13 and 14), which has the same gradient where all tokens of a row have one advantage. A row
    without tokens has ratio 1.
    """
    # Masked before the exponential: an overflow outside the mask would otherwise come back as 0 x inf in the gradient.
    log_ratio = (logp - old_logp).masked_fill(~mask, 0)
    if level == "sequence":
        mean = log_ratio.sum(-1) / mask.sum(-1).clamp(min=1)  # [N]
        log_ratio = mean[:, None].expand_as(log_ratio)
    return torch.exp(log_ratio.masked_fill(~loss_mask, 0))


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Clipped:
    """`-min(r A, clip(r, 1 - low, 1 + high) A)` for each token: `[N, T], [N, T] -> [N, T]`.

    PPO (arXiv 1707.06347), equation 7, with the separate upper bound of DAPO (arXiv 2503.14476, equation 10). `dual_clip` = c
    bounds the objective below by `c A` where A is negative, so that a large ratio has no gradient there either (arXiv
    1912.09729); it is no part of GRPO, and verl has it always on.
    """
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(-ratio * advantages, -bounded * advantages)
    low = (ratio < 1 - clip_low) & (advantages < 0)
    high = (ratio > 1 + clip_high) & (advantages > 0)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
        high = high | ((ratio > dual_clip) & (advantages < 0))
    return Clipped(loss, low, high)


def cispo(logp: Tensor, ratio: Tensor, advantages: Tensor, clip_low: float | None, clip_high: float) -> Clipped:
    """`-sg(clip(r, 1 - low, 1 + high)) A log pi` for each token: `[N, T], [N, T], [N, T] -> [N, T]`.

    MiniMax-M1 (arXiv 2506.13585, equations 4 and 5). The weight has no gradient (sg) and no token is dropped, whatever its
    ratio. The paper says that the lower bound was not used: `clip_low=None` is that form, TRL's; with a number it is verl's.
    The value of the loss means nothing by itself, only its gradient does.
    """
    weight = ratio.detach().clamp(min=None if clip_low is None else 1 - clip_low, max=1 + clip_high)
    low = torch.zeros_like(ratio, dtype=torch.bool) if clip_low is None else ratio < 1 - clip_low
    return Clipped(-weight * advantages * logp, low, ratio > 1 + clip_high)


def sapo(ratio: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float) -> Clipped:
    """`-4 / tau sigmoid(tau (r - 1)) A` for each token: `[N, T], [N, T] -> [N, T]`.

    SAPO (arXiv 2511.20347): instead of a bound, a gate that lets the gradient fade with the distance of the ratio from 1, at
    temperature `tau_pos` where A is positive and `tau_neg` elsewhere. At r = 1 the gradient is that of `-r A` and the value
    `-2 / tau A`. Nothing is clipped.
    """
    tau = torch.where(advantages > 0, tau_pos, tau_neg).to(ratio.dtype)
    nothing = torch.zeros_like(ratio, dtype=torch.bool)
    return Clipped(-torch.sigmoid(tau * (ratio - 1)) * 4 / tau * advantages, nothing, nothing)


def kl_penalty(
    logp: Tensor, ref_logp: Tensor, estimator: KLEstimator, gradient: KLGradient, ratio: Tensor | None = None
) -> Tensor:
    """KL term for the loss, for each token: `[N, T], [N, T] -> [N, T]`.

    `gradient="estimator"` differentiates the estimator itself: k1 has a gradient of mean zero, k2 that of KL(pi || ref), k3
    that of KL(ref || pi). `"unbiased"` keeps the estimator's value and takes the gradient of KL(pi || ref), which on samples of
    the policy is that of k2 (arXiv 2510.01555, section 3; arXiv 2512.21852).

    With `ratio`, pi / pi_old token by token, the term is multiplied by it, for samples of an older policy (DeepSeek-V3.2, arXiv
    2512.02556, section 3.1). The gradient goes through the ratio too, and so k1 and k3 get that of KL(pi || ref), even where
    the ratio is 1; with `"unbiased"` the ratio is a weight without gradient, to the same end.
    """
    value = kl_estimate(logp, ref_logp, estimator)
    if gradient == "estimator":
        return value if ratio is None else ratio * value
    through = kl_estimate(logp, ref_logp, "k2")
    value = value.detach() + through - through.detach()
    return value if ratio is None else ratio.detach() * value


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


def importance_weights(old_logp: Tensor, behaviour_logp: Tensor, mask: Tensor, limit: Tensor) -> Tensor:
    """`min(pi_old / pi_behaviour, limit)` for rows whose limit is not 0, exactly 1 elsewhere: `[N, T] x 3, [N] -> [N, T]`.

    The weight of the decoupled objective (arXiv 2110.00641, section 3), whose ratio is taken to the policy before the update
    and not to the one that sampled: `w min(r A, clip(r) A)` with r = pi / pi_old. Each token has its own weight; how often the
    tokens before it are written by either policy is left out. The limit, which that paper does not have, trades variance for
    bias, as in arXiv 1802.01561, section 4. Rows of this step were sampled by pi_old itself, up to what a sampler rounds
    otherwise than the training forward; where that counts they have a limit too (truncated importance sampling, as in "Your
    efficient RL framework secretly brings you off-policy RL training", Yao et al. 2025).
    """
    weighed = mask & (limit > 0)[:, None]  # [N, T]
    ratio = torch.exp((old_logp - behaviour_logp).masked_fill(~weighed, 0))
    return torch.minimum(ratio, limit[:, None].to(ratio.dtype)).masked_fill(~weighed, 1)


def weighted(x: Tensor, weights: Tensor | None) -> Tensor:
    """Terms of a loss, each with the importance weight of its token where there are such: `[N, T] -> [N, T]`."""
    return x if weights is None else weights * x


class ValueLoss(NamedTuple):
    """The critic's loss, `[N, T]` each: the loss, and where the bound took the gradient away."""

    loss: Tensor
    clipped: Tensor


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> ValueLoss:
    """`max((V - R)^2, (V_old + clamp(V - V_old, -clip, clip) - R)^2) / 2` for each token: `[N, T] x 3 -> [N, T]`.

    The squared error of PPO (arXiv 1707.06347, equation 9), with the clipped values of its authors' code, which the paper does
    not mention (arXiv 2005.12729 does). `clip=0` leaves the plain squared error.
    """
    plain = (values - returns).square()
    if not clip:
        return ValueLoss(plain / 2, torch.zeros_like(plain, dtype=torch.bool))
    bounded = old_values + (values - old_values).clamp(-clip, clip)
    bound = (bounded - returns).square()
    # Within the bound the two differ by rounding alone.
    held = ((values - old_values).abs() > clip) & (bound > plain)
    return ValueLoss(torch.maximum(plain, bound) / 2, held)
