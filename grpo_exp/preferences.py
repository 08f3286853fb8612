"""Preference pairs as pure mathematics: which samples make a pair, and the losses of pairs.

Shapes: N = 2 M rows, row 2 m the chosen and row 2 m + 1 the rejected completion of pair m; T completion tokens. The losses
give one value for each pair; their sum is divided once, by the number of pairs in the optimizer batch.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

PairLoss = Literal["sigmoid", "robust", "hinge", "ipo", "ipo_mean", "simpo"]


def best_and_worst(reward: Tensor, group: Tensor, margin: float) -> Tensor:
    """The rows of the best and the worst sample of each group, alternating: `[N], [N] -> long [2 M]`.

    A group gives no pair where the gap between the two rewards is not greater than `margin`; with margin 0 these are the groups
    whose rewards are all equal, single rows included. Among equal samples the first is taken, so the choice is the same in
    every run.
    """
    rows = []
    for index in group.unique().tolist():
        members = (group == index).nonzero().squeeze(-1)  # [G]
        own = reward[members]
        if own.max() - own.min() > margin:
            rows += [members[(own == own.max()).nonzero()[0, 0]], members[(own == own.min()).nonzero()[0, 0]]]
    return torch.stack(rows) if rows else group.new_zeros(0)


def row_logp(logp: Tensor, mask: Tensor, mean: bool = False) -> Tensor:
    """Log-probability of each row's completion, or its mean over the row's tokens: `[N, T] -> [N]`; 0 for an empty row."""
    total = logp.masked_fill(~mask, 0).sum(-1)
    return total / mask.sum(-1).clamp(min=1) if mean else total


def difference(rows: Tensor) -> Tensor:
    """Chosen minus rejected: `[2 M] -> [M]`."""
    return rows[0::2] - rows[1::2]


def over_tokens(kind: PairLoss) -> bool:
    """Whether a loss takes means over a row's tokens instead of sums."""
    return kind in ("ipo_mean", "simpo")


def needs_reference(kind: PairLoss) -> bool:
    """Whether a loss compares the policy with a reference."""
    return kind != "simpo"


def pair_loss(h: Tensor, kind: PairLoss, beta: float, smoothing: float = 0.0, gamma: float = 0.0) -> Tensor:
    """The loss of each pair: `[M] -> [M]`.

    h is the chosen row's log(pi / ref) minus the rejected one's, summed over tokens; for ipo_mean a mean over each row's
    tokens; for simpo the same mean of log pi alone. s is the sigmoid, e is `smoothing`, the share of labels that are wrong.

        sigmoid   -(1 - e) log s(beta h) - e log s(-beta h)                  DPO (arXiv 2305.18290, equation 7); cDPO with e
        robust    [-(1 - e) log s(beta h) + e log s(-beta h)] / (1 - 2 e)    rDPO (arXiv 2403.00409), unbiased by noise
        hinge     max(0, 1 - beta h)                                         SLiC's hinge on log-ratios (RSO, arXiv 2309.06657)
        ipo       (h - 1 / (2 beta))^2                                       IPO (arXiv 2310.12036, equation 17), beta its tau
        ipo_mean  the same with means over tokens                            as TRL has it: 1 / (2 beta) is then a gap a token
        simpo     -log s(beta h - gamma)                                     SimPO (arXiv 2405.14734, equation 6)

    With e = 0 robust is sigmoid. At the start, where the policy is the reference, h is 0 whatever the pair: log 2 for sigmoid.
    Left out: weights for single pairs, and a likelihood term on the chosen row.
    """
    if kind == "hinge":
        return (1 - beta * h).clamp(min=0)
    if kind in ("ipo", "ipo_mean"):
        return (h - 1 / (2 * beta)).square()
    if kind == "simpo":
        return -logsigmoid(beta * h - gamma)
    right, wrong = -(1 - smoothing) * logsigmoid(beta * h), -smoothing * logsigmoid(-beta * h)
    return right + wrong if kind == "sigmoid" else (right - wrong) / (1 - 2 * smoothing)


def bradley_terry(rewards: Tensor, centring: float = 0.0) -> Tensor:
    """Loss of a reward model for each pair: `[2 M] -> [M]`.

    -log s(r_chosen - r_rejected) (InstructGPT, arXiv 2203.02155, equation 1, for pairs instead of rankings of K). Only the
    difference has a meaning; `centring` x (r_chosen + r_rejected)^2 holds the rewards around 0 (arXiv 2312.09244).
    """
    return -logsigmoid(difference(rewards)) + centring * (rewards[0::2] + rewards[1::2]).square()
