"""What the training loop asks of an algorithm: what it needs, how it gives credit, its loss, its formula in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from grpo_exp import losses
from grpo_exp.batch import LossSum, Outputs, TokenBatch
from grpo_exp.critic import CriticOptions
from grpo_exp.kl import KL, Weight
from grpo_exp.metrics import Metrics
from grpo_exp.ops import kl_estimate, masked_sum
from grpo_exp.options import option


@dataclass
class Algorithm:
    """An algorithm, built from its YAML: the options are its fields."""

    name: str = option("name of this variant, for the run card and W&B")
    kind: str = option("which algorithm: the name of a file in grpo_exp/algos")

    product: ClassVar[Literal["policy", "reward_model"]] = "policy"
    """What is trained: a policy that answers prompts, or a model that scores answers; evaluation and export follow it."""
    weighs_replay: ClassVar[bool] = False
    """True where the loss multiplies by `batch.weights`, and so may be given rows of earlier steps."""
    critic: ClassVar[CriticOptions | None] = None
    """The critic that is trained beside the policy; most algorithms have none."""

    @property
    def learns_from(self) -> Literal["samples", "targets", "pairs"]:
        """What a batch is made of: samples of the policy, stored worked targets, or stored preference pairs."""
        return "samples"

    @property
    def online(self) -> bool:
        """True where batches are sampled from the policy, False where they are stored examples."""
        return self.learns_from == "samples"

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps taken on one batch."""
        return 1

    @property
    def minibatches(self) -> int:
        """Parts that each pass over a batch is cut into, one optimizer step each."""
        return 1

    @property
    def needs_old_logp(self) -> bool:
        """True where the policy's own log-probs before the first update are wanted in the batch."""
        return self.optimizer_steps > 1

    @property
    def needs_reference(self) -> bool:
        """True where the reference's log-probs are wanted in the batch."""
        return False

    def wants_reference(self, step: int) -> bool:
        """True where the reference's log-probs are computed in a step, counted from 1: for the loss, or to report the KL."""
        return self.needs_reference

    @property
    def keeps_reference(self) -> bool:
        """True where the reference is wanted in any step, and so must be remembered."""
        return self.needs_reference

    @property
    def moves_reference(self) -> bool:
        """True where the reference follows the policy, and so is part of a checkpoint."""
        return False

    def reference_shift(self, step: int) -> float:
        """Share of the way to the policy that the reference goes after a step; 0 where it stays, 1 makes it a copy."""
        return 0.0

    @property
    def needs_entropy(self) -> bool:
        """True where the policy's entropies before the first update are wanted in the batch."""
        return False

    @property
    def needs_values(self) -> bool:
        """True where the critic's values before the first update are wanted in the batch."""
        return False

    @property
    def entropy_gradient(self) -> bool:
        """True where the loss differentiates the entropy."""
        return False

    def select(self, batch: TokenBatch) -> TokenBatch:
        """The rows to learn from, before any log-probs are computed; none at all skips the update."""
        return batch

    def credit(self, batch: TokenBatch) -> TokenBatch:
        """The batch with what the loss needs besides log-probs, over all rows of the rollout at once."""
        return batch

    def loss(self, now: Outputs, batch: TokenBatch) -> LossSum:
        """The loss of some rows as a sum; `now` is what the policy says of them."""
        raise NotImplementedError

    def idle(self, batch: TokenBatch) -> Tensor:
        """Rows whose loss has no gradient, so that a look at them is enough: bool `[N]`."""
        return torch.zeros(len(batch), dtype=torch.bool, device=batch.tokens.device)

    def count(self, batch: TokenBatch) -> Tensor:
        """What the sum over all micro-batches of one optimizer step is divided by; 0 where nothing is in the loss."""
        raise NotImplementedError

    def measured(self) -> Metrics:
        """What `select` and `credit` measured in this step, for the log."""
        return {}

    def preference(self, now: Outputs, batch: TokenBatch) -> Tensor:
        """How much the chosen completion of each pair is preferred: `[M]`, above 0 where it is. For what learns from pairs."""
        raise NotImplementedError

    def observe(self, metrics: Metrics) -> str | None:
        """Told the metrics of each training step after it, for coefficients that adapt; a text it returns is a warning."""
        return None

    def state(self) -> dict[str, Any]:
        """What changes while training, as JSON values, for a checkpoint."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned."""

    def formula(self) -> str:
        """The loss as it is computed with these options, so that two runs can be compared by eye."""
        raise NotImplementedError


@dataclass
class PolicyGradient(Algorithm):
    """What GRPO and PPO share: passes over a rollout, what is left out of the loss, how tokens add up, a KL term's weight."""

    beta: float = option("weight of the KL term (set it at the root: beta=)", low=0)
    G: int = option("samples a prompt (set it at the root: G=)", low=1)
    max_length: int = option("length that constant_length divides by, in tokens", low=1)
    clip_low: float = option("the ratio is clipped below at 1 - clip_low", low=0, high=1)
    clip_high: float = option("the ratio is clipped above at 1 + clip_high", low=0)
    aggregation: str = option("how token losses become one number", choices=("sequence_mean", "token_mean", "constant_length"))
    mask_truncated: bool = option("leave samples that were cut off at max_new_tokens out of the loss")
    entropy_coef: float = option("weight of the entropy bonus; 0 for none", low=0)
    updates_per_rollout: int = option("passes over each rollout", low=1)
    minibatch_count: int = option("optimizer steps in one pass, each on a share of the rows", low=1)

    weighs_replay: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.weight = Weight(self.beta, self.kl_term)

    @property
    def kl_term(self) -> KL:
        """Where the KL acts, and how it is measured."""
        raise NotImplementedError

    # ---- what the loop asks

    @property
    def optimizer_steps(self) -> int:
        return self.updates_per_rollout * self.minibatch_count

    @property
    def minibatches(self) -> int:
        return self.minibatch_count

    @property
    def needs_reference(self) -> bool:
        return self.beta > 0 and self.kl_term.place != "none"

    @property
    def keeps_reference(self) -> bool:
        return self.needs_reference or self.kl_term.report_every > 0

    def wants_reference(self, step: int) -> bool:
        return self.needs_reference or (self.kl_term.report_every > 0 and step % self.kl_term.report_every == 0)

    @property
    def entropy_gradient(self) -> bool:
        return self.entropy_coef > 0

    def count(self, batch: TokenBatch) -> Tensor:
        return losses.aggregate_count(batch.loss_mask, self.aggregation)  # type: ignore[arg-type]

    def observe(self, metrics: Metrics) -> None:
        self.weight.observe(metrics)

    def state(self) -> dict[str, Any]:
        return self.weight.state()

    def load(self, state: dict[str, Any]) -> None:
        self.weight.load(state)

    # ---- parts of credit, loss and formula

    def _without_truncated(self, batch: TokenBatch) -> TokenBatch:
        """Rows that were cut off out of the loss, where that is wanted."""
        if not self.mask_truncated:
            return batch
        assert batch.finished is not None
        return batch.with_(loss_mask=batch.loss_mask & batch.finished[:, None])

    def _drift(self, batch: TokenBatch) -> Tensor:
        """KL estimate of each token under the policy before the update, 0 outside the mask: `[N, T]`."""
        assert batch.old_logp is not None and batch.ref_logp is not None
        drift = kl_estimate(batch.old_logp, batch.ref_logp, self.kl_term.estimator)  # type: ignore[arg-type]
        return drift.masked_fill(~batch.mask, 0)

    def _sum(self, x: Tensor, mask: Tensor) -> Tensor:
        return losses.aggregate_sum(x, mask, self.aggregation, self.max_length)  # type: ignore[arg-type]

    def _bounded(self, policy: losses.Clipped, mask: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """How many tokens the bounds of the ratio held."""
        tokens = mask.sum()
        return {
            "clip/low": (masked_sum(policy.low.float(), mask), tokens),
            "clip/high": (masked_sum(policy.high.float(), mask), tokens),
        }

    def _maxima(self, ratio: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """The largest ratio, and the KL's weight where that changes."""
        beta = {} if self.kl_term.target is None else {"kl/beta": torch.tensor(self.weight.value)}
        return {"ratio/max": ratio.detach().masked_fill(~mask, 0).max(), **beta}

    def _mean_formula(self) -> str:
        """The aggregation in words."""
        return {
            "sequence_mean": "mean over rows of the mean over tokens",
            "token_mean": "mean over all tokens",
            "constant_length": f"sum over tokens / {self.max_length}, mean over rows",
        }[self.aggregation]

    def _updates_formula(self) -> str:
        """How often a rollout is learned from; empty for once."""
        return f"{self.updates_per_rollout} x {self.minibatch_count} updates a rollout" if self.optimizer_steps > 1 else ""
