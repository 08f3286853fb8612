"""Proximal Policy Optimization with a critic: the baseline."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_exp import advantages, losses
from grpo_exp.algos.base import PolicyGradient
from grpo_exp.batch import LossSum, Outputs, TokenBatch
from grpo_exp.critic import CriticOptions
from grpo_exp.errors import ConfigError
from grpo_exp.kl import KL
from grpo_exp.ops import masked_sum, whiten
from grpo_exp.options import option


@dataclass
class RewardKL:
    """The KL term, which each token's reward carries."""

    estimator: str = option("per-token estimator on samples of the policy", choices=("k1", "k2", "k3"))
    target: float | None = option("KL that the weight adapts to, in nats a token; null for a fixed weight", above=0)
    horizon: float = option("steps over which a KL far off its target changes the weight by a fifth", low=1)
    report_every: int = option("with beta 0: every so many steps the KL is measured all the same; 0 for never", low=0)


@dataclass
class PPO(PolicyGradient):
    """PPO (arXiv 1707.06347, equation 7) on tokens, as for learning from human feedback (arXiv 1909.08593, arXiv 2203.02155).

    Each token costs beta times its estimate of the KL to the reference, the reward comes with the last one. A critic and GAE
    (arXiv 1506.02438) make advantages of that, so that one sample a prompt is enough.

    Left out: the pretraining loss that arXiv 2203.02155 mixes in, a bound on rewards, early stopping of the passes at a KL, and
    importance weights within GAE and in the critic's loss for replayed rows, whose policy term alone has them.
    Where all rewards are equal and beta is 0, the critic's errors are all there is to learn from; whitening makes them large.
    """

    gamma: float = option("discount of the rewards to come, for each token", low=0, high=1)
    gae_lambda: float = option("GAE's lambda: 0 trusts the critic one token ahead, 1 the rewards alone", low=0, high=1)
    whiten: bool = option("advantages get mean 0 and variance 1 over the tokens of the rollout")
    kl: RewardKL = option("the KL term, which each token's reward carries")
    missing_eos_penalty: float = option("taken off the reward of samples that were cut off at max_new_tokens", low=0)
    critic: CriticOptions = option("the critic")  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_truncated and self.missing_eos_penalty:
            raise ConfigError(
                f"algo.missing_eos_penalty={self.missing_eos_penalty:g} is for samples that algo.mask_truncated=true leaves "
                "out of the loss; use algo.missing_eos_penalty=0 or algo.mask_truncated=false"
            )

    @property
    def kl_term(self) -> KL:
        return KL(place="reward", gradient="estimator", ratio_correction=False, credit="token", **vars(self.kl))

    @property
    def needs_old_logp(self) -> bool:
        """Always: they come with the values, from one pass."""
        return True

    @property
    def needs_values(self) -> bool:
        return True

    def credit(self, batch: TokenBatch) -> TokenBatch:
        assert batch.values is not None
        advantage, returns = advantages.gae(self._rewards(batch), batch.values, batch.mask, self.gamma, self.gae_lambda)
        batch = self._without_truncated(batch)
        if self.whiten:
            advantage = whiten(advantage, batch.loss_mask)
        return batch.with_(advantages=advantage, returns=returns)

    def _rewards(self, batch: TokenBatch) -> Tensor:
        """What each token brings: minus beta times its KL, and with the last one the reward: `[N, T]`."""
        reward = batch.credited  # [N]
        if self.missing_eos_penalty:
            assert batch.finished is not None
            reward = reward - self.missing_eos_penalty * (~batch.finished).to(reward.dtype)
        rewards = torch.zeros_like(batch.tokens, dtype=reward.dtype)  # [N, T]
        if self.needs_reference:
            rewards = rewards - self.weight.value * self._drift(batch)
        last = batch.mask.sum(-1, keepdim=True) - 1  # [N, 1]
        return rewards.scatter_add(1, last, reward[:, None])

    def loss(self, now: Outputs, batch: TokenBatch) -> LossSum:
        assert batch.advantages is not None and batch.old_logp is not None and batch.returns is not None
        assert now.values is not None and batch.values is not None
        mask, count = batch.loss_mask, self.count(batch)
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
            "value/clip_frac": (masked_sum(value.clipped.float(), mask), mask.sum()),
        } | self._bounded(policy, mask)
        return LossSum(total, sums, self._maxima(ratio, mask))

    def formula(self) -> str:
        critic = self.critic
        terms = f"-min(r A, clip(r, {1 - self.clip_low:g}, {1 + self.clip_high:g}) A) + {critic.coef:g} (V - V_target)^2 / 2"
        terms += f" - {self.entropy_coef:g} entropy" if self.entropy_coef else ""
        bound = f", V kept within {critic.clip:g} of V_old" if critic.clip else ""
        penalty = f" - {self.missing_eos_penalty:g} where cut off" if self.missing_eos_penalty else ""
        kl = f" - {self.weight.symbol} {self.kl.estimator}(pi_old, ref) on each" if self.beta else ""
        parts = [
            f"{self._mean_formula()} of [{terms}]",
            "r = pi / pi_old",
            f"A = GAE(gamma {self.gamma:g}, lambda {self.gae_lambda:g}){', whitened over tokens' if self.whiten else ''}",
            f"V_target = GAE + V_old{bound}",
            f"reward = R{penalty} on the last token{kl}{', truncated rows left out' if self.mask_truncated else ''}",
            *(self.weight.formula(), self._updates_formula()),
        ]
        return ";  ".join(part for part in parts if part)
