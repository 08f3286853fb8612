"""Engines that fail, at a place that a process of its own can import them from."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_exp.batch import Prompts, Rollout
from grpo_exp.policy import Policy
from grpo_exp.rollout.base import Sampling
from grpo_exp.rollout.torch import TorchEngine


@dataclass
class Failing(TorchEngine):
    """Raises where a prompt is of three tokens."""

    def sample(self, policy: Policy, prompts: Prompts, sampling: Sampling, rows: int) -> Rollout:
        if prompts.tokens.shape[1] == 3:
            raise ValueError("of the sampler alone")
        return super().sample(policy, prompts, sampling, rows)


@dataclass
class Greedy(TorchEngine):
    """Has memory for two rows."""

    def sample(self, policy: Policy, prompts: Prompts, sampling: Sampling, rows: int) -> Rollout:
        if rows > 2:
            raise MemoryError
        return super().sample(policy, prompts, sampling, rows)
