"""Supervised fine-tuning on worked targets: the stage before reinforcement learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from grpo_exp import losses
from grpo_exp.algos.base import Algorithm
from grpo_exp.batch import LossSum, Outputs, TokenBatch
from grpo_exp.options import option


@dataclass
class SFT(Algorithm):
    """Mean negative log-likelihood of the completion's tokens, the end of sequence included and the prompt left out."""

    aggregation: str = option("how token losses become one number", choices=("sequence_mean", "token_mean"))

    @property
    def learns_from(self) -> Literal["samples", "targets", "pairs"]:
        return "targets"

    def loss(self, now: Outputs, batch: TokenBatch) -> LossSum:
        total = losses.aggregate_sum(-now.logp, batch.loss_mask, self.aggregation, 1)  # type: ignore[arg-type]
        return LossSum(total)

    def count(self, batch: TokenBatch) -> Tensor:
        return losses.aggregate_count(batch.loss_mask, self.aggregation)  # type: ignore[arg-type]

    def formula(self) -> str:
        where = "all tokens" if self.aggregation == "token_mean" else "rows of the mean over tokens"
        return f"mean over {where} of -log pi(target token)"
