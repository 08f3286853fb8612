"""The optimizer: AdamW, the learning rate over the run, clipping, and steps that are not taken."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from grpo_exp import bits, sharded
from grpo_exp.metrics import Metrics
from grpo_exp.options import option
from grpo_exp.policy import Policy


@dataclass
class OptimOptions:
    """AdamW (arXiv 1711.05101) and the learning rate over the run; the peak rate is the root option lr."""

    name: str = option(
        "adamw, or adamw_8bit: its two moments in int8 by blocks (arXiv 2110.02861), by bitsandbytes",
        choices=("adamw", "adamw_8bit"),
    )
    weight_decay: float = option("decoupled weight decay", low=0)
    beta1: float = option("decay of the mean of gradients", low=0, high=0.999999)  # AdamW refuses 1
    beta2: float = option("decay of the mean of squared gradients", low=0, high=0.999999)
    eps: float = option("added to the root of the latter", above=0)
    clip_grad: float = option("the gradient's norm is clipped at this; 0 for no clipping", low=0)
    warmup_steps: int = option("the rate rises linearly over this many steps", low=0)
    schedule: str = option("the rate after warm-up, over the run", choices=("constant", "linear", "cosine"))
    min_ratio: float = option("where linear and cosine end, as a share of lr", low=0, high=1)
    max_skips: int = option(
        "optimizer steps in a row that may be skipped since loss or gradient is not finite; one more ends the run", low=0
    )

    def rate(self, lr: float, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return lr * (step + 1) / self.warmup_steps
        left = 1 - (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        shape = {"constant": 1.0, "linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2}[self.schedule]
        return lr * (self.min_ratio + (1 - self.min_ratio) * shape)


class Optimizer:
    """Policy and critic learn side by side, each with its own learning rate and its own clipping.

    Attributes:
        skipped: steps in a row that were not taken, up to now.
        fault: what was not finite in the last of these.
    """

    def __init__(self, policy: Policy, options: OptimOptions, lr: float, steps: int) -> None:
        self.options, self.lr, self.steps = options, lr, steps
        self.skipped, self.fault = 0, ""
        self.critic = policy.critic and policy.critic.options
        self.parameters = policy.trainable()
        self.groups = {"grad/norm": self.parameters}
        if policy.critic is not None:
            self.groups["value/grad_norm"] = policy.critic.trainable()
        # fused: one pass over each weight instead of a dozen, a third of the time on a CPU
        kind = bits.adamw_8bit() if options.name == "adamw_8bit" else partial(torch.optim.AdamW, fused=True)
        self._adamw = kind(
            [{"params": group} for group in self.groups.values()],
            lr=lr,
            betas=(options.beta1, options.beta2),
            eps=options.eps,
            weight_decay=options.weight_decay,
        )

    def set_rate(self, step: int) -> float:
        """Set the learning rates of a step, counted from 1; returns the policy's."""
        rate = self.options.rate(self.lr, step - 1, self.steps)
        factors = [1.0, *([self.critic.lr_factor] if self.critic else [])]
        for group, factor in zip(self._adamw.param_groups, factors, strict=True):
            group["lr"] = rate * factor
        return rate

    def clear(self) -> None:
        """Forget all gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def step(self, step: int, loss: float) -> Metrics | None:
        """Clip the gradients, those of policy and critic each by their own norm, and let them act; the norms before clipping.

        None where the loss or a norm is not finite: then weights and optimizer stay as they are, to the bit.
        """
        limit = self.options.clip_grad or math.inf
        clip = torch.nn.utils.clip_grad_norm_
        norms = {name: float(sharded.gathered(clip(group, limit))) for name, group in self.groups.items()}
        measured = {"loss/total": loss, **norms}
        if not all(map(math.isfinite, measured.values())):
            self.clear()
            self.skipped += 1
            self.fault = ", ".join(f"{name} {value:g}" for name, value in measured.items())
            return None
        self.skipped = 0
        if self.critic and step <= self.critic.warmup_steps:
            for parameter in self.parameters:
                parameter.grad = None  # which AdamW passes over, weight decay included
        self._adamw.step()
        return norms

    def state(self, keep: bool = True) -> dict[str, Any]:
        """AdamW's own state, for a checkpoint; `skipped` belongs to the progress. All ranks must ask, and those that do not
        `keep` it get nothing of parameters that are shared out."""
        return sharded.gathered_state(self._adamw.state_dict(), keep)

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned, but for what the options say."""
        options = [{key: group[key] for key in ("betas", "eps", "weight_decay")} for group in self._adamw.param_groups]
        parameters = [p for group in self.groups.values() for p in group]
        self._adamw.load_state_dict(sharded.parts_of_state(state, parameters))
        for group, own in zip(self._adamw.param_groups, options, strict=True):
            group.update(own)
