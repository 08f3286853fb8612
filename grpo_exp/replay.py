"""Groups of earlier steps, kept on the CPU, to be learned from again."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_exp.advantages import contrast
from grpo_exp.batch import TokenBatch, concatenate
from grpo_exp.errors import CheckpointError, ConfigError
from grpo_exp.options import option


@dataclass
class ReplayOptions:
    """Groups of earlier steps in the batch, with importance weights (arXiv 2110.00641, section 3)."""

    groups: int = option("groups of earlier steps that each step learns from besides its own; 0 for none", low=0)
    capacity: int = option("keep this many newest groups", low=1)
    weight_max: float = option("importance weights of their tokens are cut off at this", above=0)

    def __post_init__(self) -> None:
        if self.groups > self.capacity:
            raise ConfigError(
                f"experience.replay.groups={self.groups}: no more than the groups that are kept can be learned from again, "
                f"and experience.replay.capacity={self.capacity}. Raise the capacity, to several steps' groups at best"
            )


class Replay:
    """The newest groups whose outcomes differ, each with the step it was sampled at.

    A step's choice is uniform over what is kept, without replacement, and decided by the key and the step alone. So a group
    comes back until `capacity` newer ones have pushed it out. Left out: priorities.

    Args:
        options: how many to keep and to give back.
        key: (seed, stream), the name of the random numbers.
    """

    def __init__(self, options: ReplayOptions, key: tuple[int, int]) -> None:
        self.options, self.key = options, key
        self._groups: deque[tuple[int, TokenBatch]] = deque(maxlen=options.capacity)

    def __len__(self) -> int:
        return len(self._groups)

    def draw(self, step: int, device: torch.device | str) -> TokenBatch | None:
        """Up to `groups` of the kept groups, oldest first, with the `age` of their rows; None while nothing is kept."""
        count = min(self.options.groups, len(self._groups))
        if count == 0:
            return None
        seed = int(np.random.SeedSequence((*self.key, step)).generate_state(1)[0])
        order = torch.randperm(len(self._groups), generator=torch.Generator().manual_seed(seed))
        chosen = [self._groups[i] for i in sorted(order[:count].tolist())]
        aged = [group.with_(age=torch.full_like(group.group, step - sampled)) for sampled, group in chosen]
        return concatenate(aged).to(device)

    def add(self, batch: TokenBatch, step: int) -> None:
        """Keep the groups of a step's rollout whose outcomes differ, rows as they were sampled: no credit yet."""
        assert batch.outcome is not None and batch.behaviour_logp is not None
        different = contrast(batch.outcome, batch.group)
        for group in batch.group[different].unique().tolist():
            rows = (batch.group == group).nonzero().squeeze(-1)
            self._groups.append((step, batch.rows(rows).to("cpu")))

    def forget(self, which: Callable[[TokenBatch], bool]) -> None:
        """Leave out kept groups, such as those of a run with other options."""
        self._groups = deque(((step, group) for step, group in self._groups if not which(group)), self.options.capacity)

    def state(self) -> dict[str, Any]:
        """The steps of the kept groups, as JSON values; `tensors` has the rest."""
        return {"steps": [step for step, _ in self._groups]}

    def tensors(self) -> dict[str, Tensor]:
        """The rows of the kept groups, by group and field."""
        return {
            f"{place}.{field.name}": value
            for place, (_, group) in enumerate(self._groups)
            for field in dataclasses.fields(group)
            if (value := getattr(group, field.name)) is not None
        }

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Put back what `state` and `tensors` returned.

        Raises:
            CheckpointError: they do not belong together.
        """
        fields: list[dict[str, Tensor]] = [{} for _ in state["steps"]]
        try:
            for name, value in tensors.items():
                place, _, field = name.partition(".")
                fields[int(place)][field] = value
            groups = [TokenBatch(**found) for found in fields]
        except (IndexError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"the checkpoint's replayed groups are damaged ({error}); use an earlier checkpoint"
            ) from error
        self._groups = deque(zip(state["steps"], groups, strict=True), maxlen=self.options.capacity)
