"""Proximal Policy Optimization with a critic: the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from grpo_exp import advantages, losses
from grpo_exp.algos.base import Algorithm
from grpo_exp.batch import LossSum, Outputs, TokenBatch
from grpo_exp.critic import CriticOptions
from grpo_exp.errors import ConfigError
from grpo_exp.kl import KL, Weight
from grpo_exp.metrics import Metrics
from grpo_exp.ops import kl_estimate, masked_sum, whiten
from grpo_exp.options import option


@dataclass
class RewardKL:
    """The KL term, which each token's reward carries."""

    estimator: str = option("per-token estimator on samples of the policy", choices=("k1", "k2", "k3"))
    target: float | None = option("KL that the weight adapts to, in nats a token; null for a fixed weight", above=0)
    horizon: float = option("steps over which a KL far off its target changes the weight by a fifth", low=1)


@dataclass
class PPO(Algorithm):
    """PPO (arXiv 1707.06347, equation 7) on tokens, as for learning from human feedback (arXiv 1909.08593, arXiv 2203.02155).

    Each token costs beta times its estimate of the KL to the reference, the reward comes with the last one. A critic and GAE
    (arXiv 1506.02438) make advantages of that, so that one sample a prompt is enough.

    Left out: the pretraining loss that arXiv 2203.02155 mixes in, a bound on rewards and early stopping of the passes at a KL.
    Where all rewards are equal and beta is 0, the critic's errors are all there is to learn from; whitening makes them large.
    """

    beta: float = option("weight of the KL term (set it at the root: beta=)", low=0)
    G: int = option("samples a prompt, of which one is enough (set it at the root: G=)", low=1)
    max_length: int = option("length that constant_length divides by, in tokens", low=1)
    clip_low: float = option("the ratio is clipped below at 1 - clip_low", low=0, high=1)
    clip_high: float = option("the ratio is clipped above at 1 + clip_high", low=0)
    aggregation: str = option("how token losses become one number", choices=("sequence_mean", "token_mean", "constant_length"))
    gamma: float = option("discount of the rewards to come, for each token", low=0, high=1)
    gae_lambda: float = option("GAE's lambda: 0 trusts the critic one token ahead, 1 the rewards alone", low=0, high=1)
    whiten: bool = option("advantages get mean 0 and variance 1 over the tokens of the rollout")
    kl: RewardKL = option("the KL term, which each token's reward carries")
    missing_eos_penalty: float = option("taken off the reward of samples that were cut off at max_new_tokens", low=0)
    mask_truncated: bool = option("leave samples that were cut off at max_new_tokens out of the loss")
    entropy_coef: float = option("weight of the entropy bonus", low=0)
    updates_per_rollout: int = option("passes over each rollout", low=1)
    minibatch_count: int = option("optimizer steps in one pass, each on a share of the rows", low=1)
    critic: CriticOptions = option("the critic")  # type: ignore[misc]

    weighs_replay: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.mask_truncated and self.missing_eos_penalty:
            raise ConfigError(
                f"algo.missing_eos_penalty={self.missing_eos_penalty:g} is for samples that algo.mask_truncated=true leaves "
                "out of the loss; use algo.missing_eos_penalty=0 or algo.mask_truncated=false"
            )
        kl = self.kl
        self.weight = Weight(self.beta, KL("reward", kl.estimator, "estimator", False, "token", kl.target, kl.horizon, 0))

    @property
    def optimizer_steps(self) -> int:
        return self.updates_per_rollout * self.minibatch_count

    @property
    def minibatches(self) -> int:
        return self.minibatch_count

    @property
    def needs_old_logp(self) -> bool:
        """Always: they come with the values, from one pass."""
        return True

    @property
    def needs_values(self) -> bool:
        return True

    @property
    def needs_reference(self) -> bool:
        return self.beta > 0

    @property
    def entropy_gradient(self) -> bool:
        return self.entropy_coef > 0

    def credit(self, batch: TokenBatch) -> TokenBatch:
        assert batch.values is not None
        advantage, returns = advantages.gae(self._rewards(batch), batch.values, batch.mask, self.gamma, self.gae_lambda)
        mask = batch.loss_mask
        if self.mask_truncated:
            assert batch.finished is not None
            mask = mask & batch.finished[:, None]  # [N, T]
        if self.whiten:
            advantage = whiten(advantage, mask)
        return batch.with_(advantages=advantage, returns=returns, loss_mask=mask)

    def _rewards(self, batch: TokenBatch) -> Tensor:
        """What each token brings: minus beta times its KL, and with the last one the reward: `[N, T]`."""
        reward = batch.reward  # [N]
        assert reward is not None
        if self.missing_eos_penalty:
            assert batch.finished is not None
            reward = reward - self.missing_eos_penalty * (~batch.finished).to(reward.dtype)
        rewards = torch.zeros_like(batch.tokens, dtype=reward.dtype)  # [N, T]
        if batch.ref_logp is not None:
            assert batch.old_logp is not None
            drift = kl_estimate(batch.old_logp, batch.ref_logp, self.kl.estimator)  # type: ignore[arg-type]
            rewards = rewards - self.weight.value * drift.masked_fill(~batch.mask, 0)
        last = batch.mask.sum(-1, keepdim=True) - 1  # [N, 1]
        return rewards.scatter_add(1, last, reward[:, None])

    def loss(self, now: Outputs, batch: TokenBatch) -> LossSum:
        assert batch.advantages is not None and batch.old_logp is not None and batch.returns is not None
        assert now.values is not None and batch.values is not None
        mask, count, tokens = batch.loss_mask, self.count(batch), batch.loss_mask.sum()
        ratio = losses.policy_ratio(now.logp, batch.old_logp, batch.mask, mask, "token")  # [N, T]
        policy = losses.clipped_surrogate(ratio, batch.advantages, self.clip_low, self.clip_high)
        value = losses.value_loss(now.values, batch.values, batch.returns, self.critic.clip)
        policy_sum, value_sum = self._sum(losses.weighted(policy.loss, batch.weights), mask), self._sum(value.loss, mask)
        total = policy_sum + self.critic.coef * value_sum
        if self.entropy_coef:
            total = total - self.entropy_coef * self._sum(now.entropy, mask)
        sums = {
            "loss/policy": (policy_sum.detach(), count),
            "loss/value": (value_sum.detach(), count),
            "clip/low": (masked_sum(policy.low.float(), mask), tokens),
            "clip/high": (masked_sum(policy.high.float(), mask), tokens),
            "value/clip_frac": (masked_sum(value.clipped.float(), mask), tokens),
        }
        return LossSum(total, sums, {"ratio/max": ratio.detach().max()})

    def _sum(self, x: Tensor, mask: Tensor) -> Tensor:
        return losses.aggregate_sum(x, mask, self.aggregation, self.max_length)  # type: ignore[arg-type]

    def count(self, batch: TokenBatch) -> Tensor:
        return losses.aggregate_count(batch.loss_mask, self.aggregation)  # type: ignore[arg-type]

    def observe(self, metrics: Metrics) -> None:
        self.weight.observe(metrics)

    def state(self) -> dict[str, Any]:
        return self.weight.state()

    def load(self, state: dict[str, Any]) -> None:
        self.weight.load(state)

    def formula(self) -> str:
        critic = self.critic
        mean = {
            "sequence_mean": "mean over rows of the mean over tokens",
            "token_mean": "mean over all tokens",
            "constant_length": f"sum over tokens / {self.max_length}, mean over rows",
        }[self.aggregation]
        terms = f"-min(r A, clip(r, {1 - self.clip_low:g}, {1 + self.clip_high:g}) A) + {critic.coef:g} (V - V_target)^2 / 2"
        terms += f" - {self.entropy_coef:g} entropy" if self.entropy_coef else ""
        bound = f", V kept within {critic.clip:g} of V_old" if critic.clip else ""
        penalty = f" - {self.missing_eos_penalty:g} where cut off" if self.missing_eos_penalty else ""
        kl = f" - {self.weight.symbol} {self.kl.estimator}(pi_old, ref) on each" if self.beta else ""
        parts = [
            f"{mean} of [{terms}]",
            "r = pi / pi_old",
            f"A = GAE(gamma {self.gamma:g}, lambda {self.gae_lambda:g}){', whitened over tokens' if self.whiten else ''}",
            f"V_target = GAE + V_old{bound}",
            f"reward = R{penalty} on the last token{kl}{', truncated rows left out' if self.mask_truncated else ''}",
            self.weight.formula(),
        ]
        return ";  ".join(part for part in parts if part)
