"""The first steps of a run, taken and undone: everything is then as it was, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from grpo_exp.errors import GrpoError, NumericsError, OutOfMemoryError
from grpo_exp.track.base import Tracker

if TYPE_CHECKING:
    from grpo_exp.train import Trainer

Row = dict[str, Any]


class Notebook(Tracker):
    """Keeps what a run would record."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.notes: list[str] = []

    def metrics(self, row: Row) -> None:
        self.rows.append(row)

    def note(self, text: str, level: str = "note") -> None:
        self.notes.append(text)


@dataclass(frozen=True)
class Rehearsal:
    """What steps came to.

    Attributes:
        rows: one for each, as in metrics.jsonl.
        held: bytes that undoing them took, and that no run takes.
        error: what ended them early, where it is the run's own: memory, or numbers that are not finite.
    """

    rows: list[Row]
    held: int
    notes: list[str] = field(default_factory=list)
    error: GrpoError | None = None


def rehearse(trainer: Trainer, notebook: Notebook, steps: int) -> Rehearsal:
    """Take the first `steps` steps of a run that has not begun, and undo them. `notebook` is the trainer's tracker."""
    error: GrpoError | None = None
    if trainer.algorithm.keeps_reference:
        trainer.policy.freeze_reference(trainer.algorithm.moves_reference)
    with undone(trainer) as held:
        try:
            for step in range(1, steps + 1):
                trainer.step(step)
        except (OutOfMemoryError, NumericsError) as found:
            error = found
    return Rehearsal(notebook.rows, held, notebook.notes, error)


@contextmanager
def undone(trainer: Trainer) -> Iterator[int]:
    """Whatever steps are taken within, weights, optimizer, order of prompts, what algorithm and reward remember, and random
    numbers are afterwards as before; yields the bytes that are held for it."""
    policy, optimizer, source, algorithm = trainer.policy, trainer.optimizer, trainer.source, trainer.algorithm
    weights = {name: x.clone() for name, x in policy.state().items()}
    moments, skipped = copy.deepcopy(optimizer.state()), optimizer.skipped
    place = copy.deepcopy(source.state()), {name: x.clone() for name, x in source.tensors().items()}
    adapted, counted = copy.deepcopy(algorithm.state()), (trainer.tokens, list(trainer.train_outcomes))
    random = torch.get_rng_state()
    devices = _random_of_devices()
    try:
        yield sum(x.numel() * x.element_size() for x in weights.values())
    finally:
        policy.load_state(weights)
        optimizer.clear()
        optimizer.load(moments)
        optimizer.skipped = skipped
        source.load(*place)
        algorithm.load(adapted)
        trainer.tokens = counted[0]
        trainer.train_outcomes.clear()
        trainer.train_outcomes.extend(counted[1])
        torch.set_rng_state(random)
        for device, state in enumerate(devices):
            torch.cuda.set_rng_state(state, device)


def _random_of_devices() -> Sequence[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ()
