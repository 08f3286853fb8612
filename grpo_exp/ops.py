"""Tensor operations that the losses share: masked sums, whitening, log-probabilities, KL estimators.

Everything takes tensors and floats and knows nothing of models or configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

KLEstimator = Literal["k1", "k2", "k3"]


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of `x` where `mask` is true: `[...] -> []`. Values outside the mask may be anything, NaN included."""
    return x.masked_fill(~mask, 0).sum()


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of `x` where `mask` is true: `[...] -> []`; 0 where the mask is empty."""
    return masked_sum(x, mask) / mask.sum().clamp(min=1)


def whiten(x: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """Zero mean and unit variance (ddof 1) over the mask, 0 outside it: `[...] -> [...]`.

    `(x - mean) / sqrt(var + eps)`, as PPO implementations do. With fewer than two values the variance is taken as 0.
    """
    n = mask.sum()
    centred = (x - masked_mean(x, mask)).masked_fill(~mask, 0)
    variance = centred.square().sum() / (n - 1).clamp(min=1)
    return centred * torch.rsqrt(variance + eps)


def kl_estimate(logp: Tensor, ref_logp: Tensor, estimator: KLEstimator) -> Tensor:
    """Per-token estimate of KL(policy || reference) on samples of the policy: `[N, T], [N, T] -> [N, T]`.

    With d = log pi - log ref (Schulman, "Approximating KL divergence", 2020):

        k1 = d               unbiased, may be negative; as a loss its gradient has mean zero
        k2 = d^2 / 2         biased; as a loss, the gradient of KL(pi || ref)
        k3 = exp(-d) - 1 + d unbiased, never negative; as a loss, the gradient of KL(ref || pi)

    `exp(d) - 1 - d`, found in tutorials, has the sign reversed and estimates chi^2(pi || ref) - KL(pi || ref).
    """
    d = logp.float() - ref_logp.float() if logp.dtype != torch.float64 else logp - ref_logp
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d.square() / 2
    return torch.expm1(-d) + d


def token_logp(logits: Tensor, tokens: Tensor, support: Tensor | None = None) -> Tensor:
    """Log-probability of each token under its row of logits, in float32 at least: `[n, V], [n] -> [n]`.

    `support` (bool, `[n, V]`): where top-p or top-k sampling kept only some tokens, the distribution is renormalised on them.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if support is not None:
        logits = logits.masked_fill(~support, float("-inf"))
    picked = logits.gather(-1, tokens[:, None]).squeeze(-1)  # [n]
    return picked - torch.logsumexp(logits, dim=-1)


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of each row's categorical distribution: `[n, V] -> [n]`."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    logp = torch.log_softmax(logits, dim=-1)
    return -(logp.exp() * logp).sum(-1)


def repeat_ngram_fraction(tokens: Sequence[object], n: int = 4) -> float:
    """Share of the n-grams of a sequence that occurred earlier in it: 0 no repetition, near 1 a loop."""
    total = len(tokens) - n + 1
    if total <= 0:
        return 0.0
    return 1 - len({tuple(tokens[i : i + n]) for i in range(total)}) / total


def pack(kept: Tensor) -> Tensor:
    """A set of tokens as bits: bool `[..., V] -> uint8 [..., ceil(V / 8)]`."""
    padded = torch.nn.functional.pad(kept, (0, -kept.shape[-1] % 8)).unflatten(-1, (-1, 8))
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=kept.device)
    bits: Tensor = (padded * weights).sum(-1, dtype=torch.uint8)
    return bits


def unpack(bits: Tensor, vocabulary: int) -> Tensor:
    """The inverse of `pack`: uint8 `[..., ceil(V / 8)] -> bool [..., V]`."""
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits[..., None] & weights).bool().flatten(-2)[..., :vocabulary]
