"""The training loop alone, on a toy policy and a batch that is always the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from toy_policy import batch, examples, policy

from grpo_exp.algos.base import Algorithm
from grpo_exp.batch import LossSum, Outputs, TokenBatch
from grpo_exp.checkpoint import CheckpointOptions, Checkpoints
from grpo_exp.experience import Experience
from grpo_exp.health.monitor import Monitor
from grpo_exp.memory import Rows
from grpo_exp.optim import OptimOptions
from grpo_exp.preflight.rehearsal import Notebook
from grpo_exp.stop import StopSignals
from grpo_exp.train import Trainer

Row = dict[str, Any]


def options(**changes: Any) -> OptimOptions:
    """AdamW without anything that could be left out."""
    values: Row = {
        "weight_decay": 0.0,
        "beta1": 0.9,
        "beta2": 0.99,
        "eps": 1e-8,
        "name": "adamw",
        "clip_grad": 0.0,
        "warmup_steps": 0,
    }
    return OptimOptions(**(values | {"schedule": "constant", "min_ratio": 0.0, "max_skips": 0} | changes))


@dataclass
class Recording(Algorithm):
    """Takes 3 passes in 2 parts, notes the rows it was given, and has a loss that is easily differentiated."""

    passes: int = 3
    parts: int = 2
    factor: float = 1.0

    def __post_init__(self) -> None:
        self.seen: list[list[int]] = []
        self.counts: list[int] = []

    @property
    def optimizer_steps(self) -> int:
        return self.passes * self.parts

    @property
    def minibatches(self) -> int:
        return self.parts

    def loss(self, now: Outputs, batch: TokenBatch) -> LossSum:
        assert batch.advantages is not None
        self.seen.append(batch.advantages[:, 0].long().tolist())
        return LossSum(
            self.factor * now.logp.sum(),
            {"x": (batch.advantages[:, 0].sum(), torch.tensor(len(batch)))},
            {"y": batch.advantages.max()},
        )

    def count(self, batch: TokenBatch) -> torch.Tensor:
        self.counts.append(len(batch))
        return torch.tensor(len(batch))


class Source:
    """Gives the same batch in every step."""

    examples = examples("12+7=?", "3+4=?", "what is 100-1")  # what the batch is made of

    def __init__(self, made: TokenBatch) -> None:
        self.made = made

    def draw(self, step: int) -> Experience:
        return Experience(self.made, None, {})

    def state(self) -> Row:
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        return {}

    def load(self, state: Row, tensors: dict[str, torch.Tensor]) -> None: ...


def loop(
    folder: Path,
    algorithm: Algorithm,
    optim: OptimOptions,
    update_rows: int = 2,
    steps: int = 2,
    lr: float = 0.01,
    every: int = 0,
) -> tuple[Trainer, Notebook]:
    """The training loop on six rows that are always the same; `every` so many steps it writes a checkpoint."""
    model = policy("llama")
    made = batch(model)
    made = made.with_(advantages=torch.arange(6.0)[:, None].expand_as(made.tokens))  # the row's number
    tracker = Notebook()
    trainer = Trainer(
        model,
        algorithm,
        Source(made),
        None,
        tracker,
        Checkpoints(folder, CheckpointOptions(every, 9, False, False), True),
        optim,
        lr=lr,
        steps=steps,
        max_tokens=0,
        seed=0,
        temperature=1.0,
        rows={"update_rows": Rows(update_rows)},
        objective="eval/pass@1",
        hook=lambda step, value: None,
        stop=StopSignals(),
        monitor=Monitor({}),
    )
    return trainer, tracker
