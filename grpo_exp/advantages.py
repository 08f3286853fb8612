"""Credit: from rewards to advantages, as pure functions of tensors."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

StdScale = Literal["group", "batch", "none"]


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


def contrast(x: Tensor, group: Tensor) -> Tensor:
    """True for rows whose group holds different values: `[N], [N] -> bool [N]`."""
    groups = int(group.max()) + 1
    low = torch.full((groups,), float("inf"), dtype=x.dtype, device=x.device).scatter_reduce(0, group, x, "amin")
    high = torch.full((groups,), float("-inf"), dtype=x.dtype, device=x.device).scatter_reduce(0, group, x, "amax")
    return (high > low)[group]


def group_advantages(reward: Tensor, group: Tensor, std: StdScale, ddof: int, eps: float) -> Tensor:
    """GRPO's advantage, (reward - mean of the group) / (std + eps): `[N], [N] -> [N]`.

    arXiv 2402.03300, section 4.1.2. `std="group"` divides by the group's own standard deviation, `"batch"` by that of all N
    rewards, `"none"` by nothing (Dr. GRPO, arXiv 2503.20783). With groups of two and ddof 1 the group form gives +-0.7071
    whatever the gap. A group of equal rewards gets exactly 0, rounding included.
    """
    advantage = reward - group_mean(reward, group)
    if std == "group":
        advantage = advantage / (group_std(reward, group, ddof) + eps)
    elif std == "batch":
        spread = reward.std(correction=ddof) if len(reward) > ddof else torch.zeros_like(reward[0])
        advantage = advantage / (spread + eps)
    return advantage.masked_fill(~contrast(reward, group), 0)  # last, since 0 / 0 is not 0
