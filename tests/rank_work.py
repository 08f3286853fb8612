"""What tests have several processes do: whole runs, their gradients noted, and ranks that die, hang or are sent signals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo_exp import config, earlier, kernels, run
from grpo_exp.batch import TokenBatch
from grpo_exp.command_line import read
from grpo_exp.compose import compose
from grpo_exp.hardware import prepare
from grpo_exp.learner import Learner
from grpo_exp.optim import Optimizer
from grpo_exp.policy import Policy
from grpo_exp.ranks import Ranks, given, join
from grpo_exp.rollout import shared
from grpo_exp.sharded import gathered, is_part

NOTED = "noted.pt"
BASE = [
    *("model=tiny_random", "track=quiet", "hardware.threads=1", "prompts_per_step=5", "G=4", "max_new_tokens=8", "steps=2"),
    *("data.train=12", "data.heldout=6", "eval.samples=2", "lr=1e-3", "checkpoint.export=false", "preflight.notes=false"),
    *("reward=custom", "reward.path=mine.py:score", "checkpoint.every=1", "checkpoint.keep_last=9"),
]
REWARD = """
def score(completions):
    return [sum(c.isdigit() for c in text) / 8 + len(set(text)) / 80 for text in completions]

def coarse(completions):
    return [float(len(set(text)) > 6) for text in completions]
"""


@dataclass(frozen=True)
class Runs:
    """Runs one after the other, each in a folder of its own.

    Attributes:
        words: the options of each run, by its name.
        trouble: what happens in them, the name of a function below.
        timeout: `hardware.rank_timeout`.
    """

    folder: Path
    words: dict[str, Sequence[str]]
    trouble: str | None = None
    timeout: float = 60


def work(runs: Runs) -> float | None:
    """All of the runs, as one rank or alone; the number of ranks, so that a test knows that there were so many."""
    torch.set_num_threads(1)
    count = 0
    for name, words in runs.words.items():
        stored = "data=preferences" in words  # which has no numbers of items
        composed = compose(read([*(w for w in BASE if not (stored and w.startswith("data."))), *words]))
        with join(given(os.environ), runs.timeout) as ranks:
            count, folder = ranks.count, runs.folder / name
            plain = config.resolved(composed)
            before = ranks.first_alone(lambda: earlier.find(folder, plain, set()), earlier.NOTHING)  # noqa: B023
            before = earlier.same(before, folder, ranks)
            if runs.trouble is None:
                with _noting() as noted:
                    run.train(config.build(composed), plain, set(), folder, before=before, ranks=ranks)
                if ranks.first:
                    torch.save(noted.kept, folder / NOTED)
            else:
                TROUBLE[runs.trouble](ranks)
                run.train(config.build(composed), plain, set(), folder, before=before, ranks=ranks)
    return float(count)


@dataclass(frozen=True)
class Held:
    """A run that is to be looked at as it begins."""

    folder: Path
    words: Sequence[str]


def held(run_of: Held) -> float:
    """The share of the numbers of policy, reference, critic and moments that this process holds."""
    made = config.build(compose(read([*BASE, *run_of.words])))
    with join(given(os.environ), 60) as ranks:
        policy = run.load_policy(made, prepare(made.hardware, "float32", ranks))
        if made.algo.keeps_reference:
            policy.freeze_reference()
        optimizer = Optimizer(policy, made.optim, 1e-3, 1)
        for p in (p for group in optimizer.groups.values() for p in group):
            p.grad = torch.zeros_like(p)
        optimizer.step(1, 0.0)
        models = [policy.model, policy.critic, policy._frozen]
        tensors = [p for model in models if model is not None for p in model.parameters()]
        moments = optimizer._adamw.state_dict()["state"].values()
        tensors += [x for state in moments for name, x in state.items() if name != "step"]
        own = sum(x.to_local().numel() if is_part(x) else x.numel() for x in tensors)  # type: ignore[attr-defined]
        return own / sum(x.numel() for x in tensors)


class _noting:
    """Within, the gradients that each optimizer step acts on are noted, and the advantages of each batch."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Any]] = {"gradients": [], "advantages": []}
        self._step, self._update = Optimizer.step, Learner.update

    def __enter__(self) -> _noting:
        def step(optimizer: Optimizer, *args: Any) -> Any:
            groups = [p for group in optimizer.groups.values() for p in group]
            self.kept["gradients"].append([gathered(p.grad).clone() for p in groups if p.grad is not None])
            return self._step(optimizer, *args)

        def update(learner: Learner, batch: TokenBatch, number: int) -> Any:
            if batch.advantages is not None:
                self.kept["advantages"].append(batch.advantages.clone())
            return self._update(learner, batch, number)

        Optimizer.step, Learner.update = step, update  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Optimizer.step, Learner.update = self._step, self._update  # type: ignore[method-assign]


# ---- trouble


def _at_call(number: int, owner: Any, name: str, do: Callable[[], None]) -> None:
    """Do something at the start of so many'th call of a function, counted from 1."""
    original, calls = getattr(owner, name), [0]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            do()
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def _dies(ranks: Ranks) -> None:
    """Rank 1, in the update of the second step."""
    if ranks.rank == 1:
        _at_call(2, Learner, "update", lambda: os.kill(os.getpid(), signal.SIGKILL))


def _first_dies(ranks: Ranks) -> None:
    if ranks.rank == 0:
        _at_call(2, Learner, "update", lambda: os.kill(os.getpid(), signal.SIGKILL))


def _hangs(ranks: Ranks) -> None:
    """Rank 1, which then does not answer to signals either."""
    if ranks.rank == 1:
        _at_call(2, Learner, "update", lambda: os.kill(os.getpid(), signal.SIGSTOP))


def _raises(ranks: Ranks) -> None:
    def fail() -> None:
        raise ValueError("of rank 1 alone")

    if ranks.rank == 1:
        _at_call(2, Learner, "update", fail)


def _drifts(ranks: Ranks) -> None:
    """The weights of rank 1, by one bit or so, before the second step's update."""

    def move() -> None:
        for learner in learners:
            with torch.no_grad():
                learner.policy.trainable()[0].view(-1)[0] += 1e-6

    learners: list[Learner] = []
    original = Learner.__init__

    def made(self: Learner, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        learners.append(self)

    Learner.__init__ = made  # type: ignore[method-assign]
    if ranks.rank == 1:
        _at_call(2, Learner, "update", move)


def _dies_in_a_pass(ranks: Ranks) -> None:
    """Rank 1, in the middle of its second pass with a gradient, where the other waits for its part of the weights."""
    if ranks.rank == 1:
        _at_call(5, Policy, "_hidden", lambda: os.kill(os.getpid(), signal.SIGKILL))


def _hangs_in_a_pass(ranks: Ranks) -> None:
    if ranks.rank == 1:
        _at_call(5, Policy, "_hidden", lambda: os.kill(os.getpid(), signal.SIGSTOP))


def _signal_in_sampling(ranks: Ranks) -> None:
    """Reaches rank 1 alone, before its share of the second step's samples; the first rollout is the first evaluation's."""
    if ranks.rank == 1:
        _at_call(3, shared, "_part", lambda: os.kill(os.getpid(), signal.SIGTERM))


def _signal_in_a_layer(ranks: Ranks) -> None:
    """Reaches rank 1 alone, in the middle of a layer's pass in the sampling of the second step."""
    if ranks.rank == 1:

        def arm() -> None:
            mlp = type(policies[-1].body.layers[0].mlp)
            _at_call(1, mlp, "forward", lambda: os.kill(os.getpid(), signal.SIGTERM))
            _at_call(1, kernels, "swiglu", lambda: os.kill(os.getpid(), signal.SIGTERM))

        policies: list[Policy] = []
        original = Policy.share_out

        def noted(self: Policy, *args: Any) -> None:
            original(self, *args)
            policies.append(self)

        Policy.share_out = noted  # type: ignore[method-assign]
        _at_call(3, shared, "_part", arm)


def _signal_while_waiting(ranks: Ranks) -> None:
    """Reaches rank 0 alone, while it waits in an exchange for rank 1, which takes its time to sample."""
    if ranks.rank == 1:
        _at_call(3, shared, "_part", lambda: time.sleep(3))
    if ranks.rank == 0:
        _at_call(3, shared, "_part", lambda: signal.setitimer(signal.ITIMER_REAL, 1.5))
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


def _signal_in_update(ranks: Ranks) -> None:
    """Reaches rank 1 alone, in the second step's update."""
    if ranks.rank == 1:
        _at_call(2, Learner, "update", lambda: os.kill(os.getpid(), signal.SIGTERM))


TROUBLE: dict[str, Callable[[Ranks], None]] = {
    "dies": _dies,
    "first dies": _first_dies,
    "hangs": _hangs,
    "dies in a pass": _dies_in_a_pass,
    "hangs in a pass": _hangs_in_a_pass,
    "raises": _raises,
    "drifts": _drifts,
    "signal in sampling": _signal_in_sampling,
    "signal in a layer": _signal_in_a_layer,
    "signal while waiting": _signal_while_waiting,
    "signal in update": _signal_in_update,
}
