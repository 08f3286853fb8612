"""What the training loop asks of an algorithm: what it needs, how it gives credit, its loss, its formula in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from grpo_exp.batch import LossSum, Outputs, TokenBatch
from grpo_exp.critic import CriticOptions
from grpo_exp.metrics import Metrics
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
