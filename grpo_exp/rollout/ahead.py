"""A process beside the run's that samples while the policy learns.

It has the model once more and is asked for one rollout at a time: the queue between the two holds one question or one answer.
The weights that learn go through memory that both see, copied once a rollout; all else through a pipe. It remembers nothing, so
that it may be killed at any time, and it leaves signals to the run.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo_exp.batch import Example, Prompts, Rollout
from grpo_exp.child import die_with, held_back, how_it_ended
from grpo_exp.errors import GrpoError, RankError, RunError
from grpo_exp.hardware import keep_memory
from grpo_exp.memory import Rows
from grpo_exp.ranks import ALONE
from grpo_exp.rollout import shared
from grpo_exp.rollout.base import Engine, Sampling
from grpo_exp.stop import SIGNALS

if TYPE_CHECKING:
    from grpo_exp.model import ModelOptions
    from grpo_exp.policy import Policy

Weights = Mapping[str, Tensor]
ALIGNED = 64
"""Bytes that each tensor's place in the shared block is a multiple of."""
_NOT_SAMPLED_WITH = ("critic.", "reference.")


@dataclass(frozen=True)
class Recipe:
    """What the process makes its policy and its engine from.

    Attributes:
        model, seed, device, dtype: as in `Policy.load`.
        threads: CPU threads of torch.
        keep_memory: as in `HardwareOptions`.
        patience: seconds that an answer may take.
    """

    model: ModelOptions
    engine: Engine
    seed: int
    device: torch.device
    dtype: torch.dtype
    threads: int
    keep_memory: bool
    patience: float


@dataclass(frozen=True)
class _Question:
    """Prompts `[B, P]` to be sampled; the other fields are those of `Rows`."""

    tokens: Tensor
    mask: Tensor
    sampling: Sampling
    size: int
    option: str
    about: str


@dataclass(frozen=True)
class _Answer:
    """The samples, how many rows were computed at a time in the end, and what a person should know of that."""

    samples: shared.Samples
    size: int
    notes: list[str]


def sampled_with(policy: Policy) -> dict[str, Tensor]:
    """The weights that learn and that sampling depends on, by name, as they are."""
    return {name: x for name, x in policy.held().items() if not name.startswith(_NOT_SAMPLED_WITH)}


def weights_of(policy: Policy) -> dict[str, Tensor]:
    """A copy of them, on the CPU."""
    return {name: x.to("cpu", copy=True) for name, x in sampled_with(policy).items()}


class Sampler:
    """The process, as the run sees it; at the end of its context it is gone.

    Args:
        weights: of the names, shapes and dtypes that `ask` will be given.

    Raises:
        RunError: there is too little shared memory for them.
    """

    def __init__(self, recipe: Recipe, weights: Weights) -> None:
        context = multiprocessing.get_context("spawn")
        self._patience, self._asked = recipe.patience, False
        block = _Block(weights)
        self._weights = block.views()
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(recipe, block, theirs, os.getpid()), name="grpo_exp sampler", daemon=True
        )
        with held_back():
            self.process.start()
        theirs.close()

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self._pipe.close()

    def ask(self, weights: Weights, prompts: Prompts, sampling: Sampling, rows: Rows) -> None:
        """Have it sample the prompts with these weights. An answer that was not fetched is dropped."""
        if self._asked:
            self._heard()
        for name, place in self._weights.items():
            place.copy_(weights[name])
        question = _Question(prompts.tokens.cpu(), prompts.mask.cpu(), sampling, rows.size, rows.option, rows.about)
        with contextlib.suppress(OSError):  # it has ended, and `answer` says how
            self._pipe.send_bytes(pickle.dumps(question))
        self._asked = True

    def answer(self, prompts: Prompts, samples: int, pad_id: int, rows: Rows) -> Rollout:
        """The rollout that was asked for, `samples` of each of the prompts; `rows` are as few as it could compute at a time.

        Raises:
            RankError: the process has ended or does not answer.
            GrpoError: what it failed with.
        """
        answer = self._heard()
        rows.size = answer.size
        for note in answer.notes:
            rows.tell(note)
        return shared.joined(prompts, [answer.samples], samples, pad_id)

    def _heard(self) -> _Answer:
        told: _Answer | GrpoError | None = None
        wait([self._pipe, self.process.sentinel], self._patience)
        with contextlib.suppress(EOFError, OSError):
            if self._pipe.poll():
                told = pickle.loads(self._pipe.recv_bytes())
        if told is None:
            raise RankError(f"{self._fate()}, so the run has ended; it goes on from its last checkpoint")
        if isinstance(told, GrpoError):
            raise told
        self._asked = False
        return told

    def _fate(self) -> str:
        """How it ended, or that it does not answer, in words."""
        self.process.join(1)  # a pipe that is closed may be seen before the end is
        who, code = f"the sampler (process {self.process.pid})", self.process.exitcode
        if code is None:
            return f"{who} has not answered for {self._patience:g} s (hardware.rank_timeout)"
        return f"{who} {how_it_ended(code)}"


class _Block:
    """One block of shared memory for tensors of these names, shapes and dtypes."""

    def __init__(self, like: Weights) -> None:
        sizes = [-(-x.numel() * x.element_size() // ALIGNED) * ALIGNED for x in like.values()]
        starts = itertools.accumulate(sizes, initial=0)
        self._places = {name: (start, x.shape, x.dtype) for (name, x), start in zip(like.items(), starts, strict=False)}
        try:
            self._bytes = torch.empty(sum(sizes), dtype=torch.uint8).share_memory_()
        except RuntimeError as error:
            raise RunError(
                f"hardware.overlap=1: {sum(sizes) / 2**20:.0f} MiB of shared memory are needed for the weights that go to the "
                f"sampler, and there are none ({str(error).splitlines()[0]}). In a container give it more, as docker's "
                "--shm-size does, or use hardware.overlap=0"
            ) from error

    def views(self) -> dict[str, Tensor]:
        """The tensors, in the shared memory."""
        return {
            name: self._bytes[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for name, (start, shape, dtype) in self._places.items()
        }


# ---- in the process itself


def _serve(recipe: Recipe, block: _Block, pipe: Connection, parent: int) -> None:
    """Answer questions until nobody asks any more; what goes wrong is an answer too, and the last."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    die_with(parent)
    try:
        _answer_all(recipe, block.views(), pipe)
    except BrokenPipeError:
        pass  # the run has ended
    except Exception as error:
        told = _told(error)
        if told is not error:
            traceback.print_exc()
        with contextlib.suppress(OSError):
            pipe.send_bytes(pickle.dumps(told))
        sys.exit(told.exit_code)


def _answer_all(recipe: Recipe, weights: dict[str, Tensor], pipe: Connection) -> None:
    from grpo_exp.policy import Policy

    torch.set_num_threads(recipe.threads)
    if recipe.keep_memory:
        keep_memory()
    if recipe.device.index is not None:
        torch.cuda.set_device(recipe.device)
    policy = Policy.load(recipe.model, recipe.device, recipe.dtype, recipe.seed)
    while (question := _asked(pipe)) is not None:
        policy.load_state(weights)
        pipe.send_bytes(pickle.dumps(_answered(recipe.engine, policy, question)))


def _asked(pipe: Connection) -> _Question | None:
    """The next question; None where there is nobody any more who asks."""
    try:
        question: _Question = pickle.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        return None
    return question


def _answered(engine: Engine, policy: Policy, question: _Question) -> _Answer:
    notes: list[str] = []
    rows = Rows(question.size, question.option, question.about)
    rows.tell = notes.append
    count, device = len(question.tokens), policy.device
    unnamed = [Example("", "")] * count  # the run knows what it asked
    prompts = Prompts(question.tokens.to(device), question.mask.to(device), [""] * count, unnamed)
    rollout = shared.sample(engine, policy, prompts, question.sampling, rows, ALONE, "sampling")
    return _Answer(shared.Samples.of(rollout), rows.size, notes)


def _told(error: Exception) -> GrpoError:
    """An error as the run is told it, by its kind where that is one of ours."""
    if isinstance(error, GrpoError):
        return error
    text = str(error).strip() or "no message"
    return RunError(f"the sampler (process {os.getpid()}) failed: {type(error).__name__}: {text}")
