"""A reward model from preference pairs: the stage before reinforcement learning with `reward=model`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grpo_exp import preferences
from grpo_exp.algos.base import Algorithm
from grpo_exp.batch import LossSum, Outputs, TokenBatch
from grpo_exp.critic import CriticOptions
from grpo_exp.options import option


@dataclass
class RewardModel(Algorithm):
    """Bradley-Terry on pairs (InstructGPT, arXiv 2203.02155, equation 1): the chosen completion's reward above the other's.

    The reward is a linear head, without bias and zero to begin with, on the state *after* the last token. A critic reads each
    token's value in the state before it, so every row is given one token more, whose own embedding no value depends on. A
    completion that was cut off is scored at its last token, without an end of sequence. Left out: several rankings of one
    prompt in one loss, and margins by how strong a preference is.
    """

    centring: float = option("weight of (r_chosen + r_rejected)^2, which holds the rewards around 0", low=0)
    head_lr_factor: float = option("the head's learning rate as a multiple of lr", above=0)

    product: ClassVar[Literal["policy", "reward_model"]] = "reward_model"

    def __post_init__(self) -> None:
        self.critic = CriticOptions(trunk="shared", lr_factor=self.head_lr_factor, warmup_steps=0, clip=0.0, coef=1.0)  # type: ignore[misc]

    @property
    def learns_from(self) -> Literal["samples", "targets", "pairs"]:
        return "pairs"

    def select(self, batch: TokenBatch) -> TokenBatch:
        """Each row with one token more at its end, whose value is the row's reward."""
        return with_end(batch)

    def loss(self, now: Outputs, batch: TokenBatch) -> LossSum:
        rewards = at_end(now, batch)  # [2 M]
        gap = preferences.difference(rewards.detach())  # [M]
        loss = preferences.bradley_terry(rewards, self.centring)  # [M]
        pairs = torch.tensor(len(gap), device=gap.device)
        length = batch.mask.sum(-1) - 1  # [2 M], without the token that was added
        sums = {
            "loss/policy": loss.detach().sum(),
            "pair/margin": gap.sum(),
            "pair/accuracy": (gap > 0).sum(),
            "reward/chosen": rewards.detach()[0::2].sum(),
            "reward/rejected": rewards.detach()[1::2].sum(),
            "length/chosen": length[0::2].sum(),
            "length/rejected": length[1::2].sum(),
        }
        return LossSum(loss.sum(), {name: (total, pairs) for name, total in sums.items()})

    def preference(self, now: Outputs, batch: TokenBatch) -> Tensor:
        return preferences.difference(at_end(now, batch))

    def count(self, batch: TokenBatch) -> Tensor:
        return torch.tensor(len(batch) // 2, device=batch.tokens.device)

    def formula(self) -> str:
        centring = f" + {self.centring:g} (r_chosen + r_rejected)^2" if self.centring else ""
        return f"mean over pairs of [-log s(r_chosen - r_rejected){centring}];  r = head(state after the last token)"


def with_end(batch: TokenBatch) -> TokenBatch:
    """The batch with one token more after each row's last, a copy of it: `[N, T] -> [N, T + 1]`."""
    length = batch.mask.sum(-1, keepdim=True)  # [N, 1]
    tokens = torch.cat([batch.tokens, batch.tokens[:, -1:]], 1)  # [N, T + 1]
    tokens = tokens.scatter(1, length, tokens.gather(1, (length - 1).clamp(min=0)))
    mask = torch.arange(tokens.shape[1], device=tokens.device) <= length
    return batch.with_(tokens=tokens, mask=mask, loss_mask=mask)


def at_end(now: Outputs, batch: TokenBatch) -> Tensor:
    """The value at each row's last token, which is the state after the completion: `[N]`."""
    assert now.values is not None
    return now.values.gather(1, batch.mask.sum(-1, keepdim=True) - 1).squeeze(1)
