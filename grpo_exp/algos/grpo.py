"""Group Relative Policy Optimization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from grpo_exp import advantages, losses
from grpo_exp.algos.base import Algorithm
from grpo_exp.batch import LossSum, Outputs, TokenBatch
from grpo_exp.errors import ConfigError
from grpo_exp.ops import kl_estimate, masked_sum
from grpo_exp.options import option


@dataclass
class KL:
    """How the policy is held near its reference."""

    place: str = option(
        "where the KL term acts: in the loss, subtracted from the reward, or nowhere", choices=("loss", "reward", "none")
    )
    estimator: str = option("per-token estimator on samples of the policy", choices=("k1", "k2", "k3"))
    gradient: str = option(
        "gradient of the term in the loss: the estimator's own, or that of KL(pi || ref) itself",
        choices=("estimator", "unbiased"),
    )


@dataclass
class GRPO(Algorithm):
    """GRPO (DeepSeekMath, arXiv 2402.03300, equation 3): the reward's place in its group is the advantage of every token.

    Left out: process supervision (section 4.1.3) and the iterated reward model (section 4.1.4). A group whose rewards are all
    equal has advantage exactly 0 and moves nothing but the KL term.
    """

    beta: float = option("weight of the KL term (set it at the root: beta=)", low=0)
    G: int = option("samples a prompt (set it at the root: G=)", low=1)
    max_length: int = option("length that constant_length divides by, in tokens", low=1)
    clip_low: float = option("the ratio is clipped below at 1 - clip_low", low=0, high=1)
    clip_high: float = option("the ratio is clipped above at 1 + clip_high", low=0)
    aggregation: str = option("how token losses become one number", choices=("sequence_mean", "token_mean", "constant_length"))
    std: str = option("what the centred reward is divided by", choices=("group", "batch", "none"))
    std_ddof: int = option("degrees of freedom taken off in the standard deviation", low=0, high=1)
    std_eps: float = option("added to the standard deviation", low=0)
    kl: KL = option("the KL term")
    mask_truncated: bool = option("leave samples that were cut off at max_new_tokens out of the loss")
    updates_per_rollout: int = option("passes over each rollout", low=1)
    minibatch_count: int = option("optimizer steps in one pass, each on a share of the rows", low=1)

    online: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.G < 2:
            raise ConfigError(
                f"G={self.G}: the advantage is the reward's distance from the mean of its group, which needs two samples "
                "a prompt at least. Use G=2 or more, 8 being common"
            )

    @property
    def optimizer_steps(self) -> int:
        return self.updates_per_rollout * self.minibatch_count

    @property
    def minibatches(self) -> int:
        return self.minibatch_count

    @property
    def needs_old_logp(self) -> bool:
        """For a KL term in the reward too: the sampler's log-probs differ from the training forward's by rounding, and a group
        without contrast would have its standard deviation, and so its advantages, made of that."""
        return super().needs_old_logp or (self.needs_reference and self.kl.place == "reward")

    @property
    def needs_reference(self) -> bool:
        return self.beta > 0 and self.kl.place != "none"

    def credit(self, batch: TokenBatch) -> TokenBatch:
        reward = batch.reward  # [N]
        assert reward is not None
        if self.kl.place == "reward" and batch.ref_logp is not None:
            assert batch.old_logp is not None
            drift = kl_estimate(batch.old_logp, batch.ref_logp, self.kl.estimator)  # type: ignore[arg-type]  # [N, T]
            reward = reward - self.beta * drift.masked_fill(~batch.mask, 0).sum(-1)
        advantage = advantages.group_advantages(reward, batch.group, self.std, self.std_ddof, self.std_eps)  # type: ignore[arg-type]
        batch = batch.with_(advantages=advantage[:, None].expand_as(batch.tokens))
        if self.mask_truncated:
            assert batch.finished is not None
            batch = batch.with_(loss_mask=batch.loss_mask & batch.finished[:, None])
        return batch

    def loss(self, now: Outputs, batch: TokenBatch) -> LossSum:
        assert batch.advantages is not None
        logp = now.logp
        old = logp.detach() if batch.old_logp is None else batch.old_logp
        mask = batch.loss_mask
        # Masked before the exponentials: an overflow outside the mask would otherwise come back as 0 x inf in the gradient.
        ratio = torch.exp((logp - old).masked_fill(~mask, 0))  # [N, T]
        policy = losses.clipped_surrogate(ratio, batch.advantages, self.clip_low, self.clip_high)
        total = policy_sum = self._sum(policy.loss, mask)
        count = self.count(batch)
        sums = {"loss/policy": (policy_sum.detach(), count)}
        if self.needs_reference and self.kl.place == "loss":
            assert batch.ref_logp is not None
            here, ref = logp.masked_fill(~mask, 0), batch.ref_logp.masked_fill(~mask, 0)  # [N, T]
            kl = losses.kl_penalty(here, ref, self.kl.estimator, self.kl.gradient)  # type: ignore[arg-type]
            kl_sum = self._sum(kl, mask)
            total = total + self.beta * kl_sum
            sums["loss/kl"] = (kl_sum.detach(), count)
        tokens = mask.sum()
        sums["clip/low"] = (masked_sum(policy.low.float(), mask), tokens)
        sums["clip/high"] = (masked_sum(policy.high.float(), mask), tokens)
        return LossSum(total, sums, {"ratio/max": ratio.detach().masked_fill(~mask, 0).max()})

    def _sum(self, x: Tensor, mask: Tensor) -> Tensor:
        return losses.aggregate_sum(x, mask, self.aggregation, self.max_length)  # type: ignore[arg-type]

    def count(self, batch: TokenBatch) -> Tensor:
        return losses.aggregate_count(batch.loss_mask, self.aggregation)  # type: ignore[arg-type]

    def formula(self) -> str:
        scale = {"group": f" / (std_group[ddof {self.std_ddof}] + {self.std_eps:g})", "none": ""}
        advantage = "(R - mean_group R)" + scale.get(self.std, f" / (std_batch[ddof {self.std_ddof}] + {self.std_eps:g})")
        mean = {
            "sequence_mean": "mean over rows of the mean over tokens",
            "token_mean": "mean over all tokens",
            "constant_length": f"sum over tokens / {self.max_length}, mean over rows",
        }[self.aggregation]
        terms = f"-min(r A, clip(r, {1 - self.clip_low:g}, {1 + self.clip_high:g}) A)"
        if self.needs_reference and self.kl.place == "loss":
            gradient = "" if self.kl.gradient == "estimator" else ", gradient of k2"
            terms += f" + {self.beta:g} {self.kl.estimator}(pi, ref{gradient})"
        if self.needs_reference and self.kl.place == "reward":
            kl = f"{self.kl.estimator}(pi, ref)"
            advantage = advantage.replace("R", "R'") + f";  R' = R - {self.beta:g} sum over tokens of {kl}"
        rows = ", truncated rows left out" if self.mask_truncated else ""
        return f"{mean} of [{terms}];  r = pi / pi_old;  A = {advantage}{rows}"
