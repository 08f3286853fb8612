"""The critic: what it is made of, as options, and as a module that reads values from hidden states."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grpo_exp.options import option


@dataclass
class CriticOptions:
    """A head that says how much reward is still to come, and what its hidden states come from."""

    trunk: str = option(
        "own: a model of its own that starts as the policy does (with LoRA an adapter of its own on the same base); "
        "shared: the policy's, which the value loss moves too; detached: the policy's, which the value loss does not move",
        choices=("own", "shared", "detached"),
    )
    lr_factor: float = option("its learning rate as a multiple of lr", above=0)
    warmup_steps: int = option("first steps in which it alone learns", low=0)
    clip: float = option("values are clipped this far from those before the update; 0 for no clipping", low=0)
    coef: float = option("weight of the value loss", above=0)


class Critic(nn.Module):
    """A linear head without bias on hidden states, at zero to begin with, so that its first values are exactly 0.

    Attributes:
        trunk: the decoder of its own; None where the policy's hidden states are read.
        head: float32 `[1, H]`.
    """

    def __init__(self, options: CriticOptions, decoder: nn.Module, width: int, device: torch.device) -> None:
        super().__init__()
        self.options = options
        self.trunk = own_copy(decoder).to(device) if options.trunk == "own" else None
        self.head = nn.Linear(width, 1, bias=False, device=device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """Values in float32, whatever the dtype of the hidden states: `[n, H] -> [n]`."""
        if self.options.trunk == "detached":
            hidden = hidden.detach()
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self.head(hidden.float()).squeeze(-1)
        return values

    def trainable(self) -> list[nn.Parameter]:
        """The parameters that learn."""
        return [p for p in self.parameters() if p.requires_grad]


def own_copy(decoder: nn.Module) -> nn.Module:
    """A copy that shares the tensors of all frozen parameters and has those that learn for itself.

    Two sets of weights in two modules, not two adapters in one: nothing is switched between the forward and the backward pass,
    which recomputes layers under gradient checkpointing and would find the wrong adapter on.
    """
    frozen = {id(p): p for p in decoder.parameters() if not p.requires_grad}
    return copy.deepcopy(decoder, dict(frozen))
