"""Credit: from rewards to advantages, as pure functions of tensors."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

StdScale = Literal["group", "batch", "none"]
Baseline = Literal["group_mean", "leave_one_out", "length_weighted", "none"]


def group_mean(x: Tensor, group: Tensor) -> Tensor:
    """The mean over each row's group, given back to its rows: `[N], [N] -> [N]`."""
    count = torch.bincount(group).clamp(min=1).to(x.dtype)
    total = torch.zeros_like(count).index_add(0, group, x)
    return (total / count)[group]


def group_std(x: Tensor, group: Tensor, ddof: int) -> Tensor:
    """The standard deviation within each row's group, given back to its rows: `[N], [N] -> [N]`.

    A group of no more than `ddof` rows has none and gets 0.
    """
    count = torch.bincount(group).to(x.dtype)
    squares = torch.zeros_like(count).index_add(0, group, (x - group_mean(x, group)).square())
    return (squares / (count - ddof).clamp(min=1)).sqrt()[group]


def group_normalized(x: Tensor, group: Tensor, ddof: int, eps: float) -> Tensor:
    """(x - mean) / (std + eps) within each row's group, of its rows that are not NaN: `[N], [N] -> [N]`, 0 where x is NaN.

    GDPO's normalisation of one reward (arXiv 2601.05242). A group of equal values gets exactly 0, rounding included.
    """
    there = (~x.isnan()).nonzero().squeeze(-1)  # [n]
    result = torch.zeros_like(x)
    if len(there):
        value, own = x[there], group[there]
        distance = (value - group_mean(value, own)) / (group_std(value, own, ddof) + eps)
        result[there] = distance.masked_fill(~contrast(value, own), 0)  # last, since 0 / 0 is not 0
    return result


def contrast(x: Tensor, group: Tensor) -> Tensor:
    """True for rows whose group holds different values: `[N], [N] -> bool [N]`."""
    groups = int(group.max()) + 1
    low = torch.full((groups,), float("inf"), dtype=x.dtype, device=x.device).scatter_reduce(0, group, x, "amin")
    high = torch.full((groups,), float("-inf"), dtype=x.dtype, device=x.device).scatter_reduce(0, group, x, "amax")
    return (high > low)[group]


def baseline(reward: Tensor, group: Tensor, how: Baseline, length: Tensor | None = None) -> Tensor:
    """What is taken off each row's reward: `[N], [N] -> [N]`; `length` `[N]` in tokens, for `length_weighted` alone.

        group_mean       mean of the group                              GRPO (arXiv 2402.03300, section 4.1.2)
        leave_one_out    mean of the other rows of the group            RLOO (arXiv 2402.14740)
        length_weighted  sum of length x reward / sum of lengths        OPO (arXiv 2505.23585)
        none             0                                              REINFORCE++ (arXiv 2501.03262)

    A row alone in its group has itself for baseline, also with leave_one_out.
    """
    if how == "none":
        return torch.zeros_like(reward)
    mean = group_mean(reward, group)
    if how == "leave_one_out":
        size = torch.bincount(group)[group].to(reward.dtype)
        return mean - (reward - mean) / (size - 1).clamp(min=1)
    if how == "length_weighted":
        assert length is not None
        weight = length.to(reward.dtype)
        return group_mean(reward * weight, group) / group_mean(weight, group).clamp(min=torch.finfo(reward.dtype).tiny)
    return mean


def group_advantages(
    reward: Tensor,
    group: Tensor,
    std: StdScale,
    ddof: int,
    eps: float,
    how: Baseline = "group_mean",
    length: Tensor | None = None,
) -> Tensor:
    """(reward - baseline) / (std + eps): `[N], [N] -> [N]`.

    GRPO (arXiv 2402.03300, section 4.1.2) has the group's mean for baseline; the others are told at `baseline`. `std="group"`
    divides by the group's own standard deviation, `"batch"` by that of all N rewards, `"none"` by nothing (Dr. GRPO, arXiv
    2503.20783). With groups of two and ddof 1 the group form gives +-0.7071 whatever the gap. A group of equal rewards gets
    exactly 0, rounding included, except without a baseline, where the advantage is the reward.
    """
    advantage = reward - baseline(reward, group, how, length)
    if std == "group":
        advantage = advantage / (group_std(reward, group, ddof) + eps)
    elif std == "batch":
        spread = reward.std(correction=ddof) if len(reward) > ddof else torch.zeros_like(reward[0])
        advantage = advantage / (spread + eps)
    if how == "none":
        return advantage
    return advantage.masked_fill(~contrast(reward, group), 0)  # last, since 0 / 0 is not 0


def sum_to_end(x: Tensor, mask: Tensor) -> Tensor:
    """At each token, the sum over it and those after it: `[N, T], [N, T] -> [N, T]`, 0 outside the mask.

    A return with gamma 1: REINFORCE++ (arXiv 2501.03262) takes the KL still to come off the reward of each token.
    """
    return x.masked_fill(~mask, 0).flip(-1).cumsum(-1).flip(-1).masked_fill(~mask, 0)


def top_share(x: Tensor, mask: Tensor, share: float) -> Tensor:
    """True where `x` is among the largest values, a share of those in the mask and at least one: `[N, T] -> bool [N, T]`.

    Values equal to the last that is kept are kept too, so that the order of rows changes nothing.
    """
    values = x[mask]
    if not len(values):
        return torch.zeros_like(mask)
    kept = max(1, math.ceil(share * len(values)))
    return mask & (x >= values.sort(descending=True).values[kept - 1])


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and the returns that the critic is to predict: `[N, T]` each, 0 outside the mask.

    arXiv 1506.02438, equations 11 to 16, with V(s_t) = `values[:, t]`, the value of the state in which token t was chosen:

        delta_t  = r_t + gamma V(s_t+1) - V(s_t)
        A_t      = delta_t + gamma lam A_t+1
        return_t = A_t + V(s_t)

    A row ends at its last token, and the value after it is 0, also where the sample was cut off: what its unwritten rest would
    have been worth is left out. `lam=1` gives the sum of rewards to come minus the value, `lam=0` one step ahead.
    """
    following = running = torch.zeros_like(values[:, 0])  # [N]: V and A of the token after
    columns = []
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * following - values[:, t]
        running = torch.where(mask[:, t], delta + gamma * lam * running, 0)
        following = torch.where(mask[:, t], values[:, t], 0)
        columns.append(running)
    advantages = torch.stack(columns[::-1], 1)  # [N, T]
    return advantages, (advantages + values).masked_fill(~mask, 0)
