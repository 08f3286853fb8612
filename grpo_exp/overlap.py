"""`hardware.overlap`: the next rollout is sampled in another process while the policy learns from the last.

One step off policy (arXiv 2410.18252), with the decoupled objective (arXiv 2110.00641, section 3): ratios and clipping are
taken to the policy before the update, whose log-probs are recomputed, and each token's terms are weighted by
min(pi_old / pi_behaviour, C) (arXiv 1802.01561, section 4). Left out: more than one step ahead, and weights that change in the
middle of a rollout, which no run could repeat.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from grpo_exp.batch import Prompts, Rollout
from grpo_exp.errors import ConfigError
from grpo_exp.experience import AHEAD, Online
from grpo_exp.rollout.ahead import Recipe, Sampler, sampled_with, weights_of

if TYPE_CHECKING:
    from grpo_exp.config import Config
    from grpo_exp.hardware import Machine
    from grpo_exp.policy import Policy

WEIGHT_MAX = 2.0
"""Where importance weights are cut off if `rollout.weight_max` does not say."""


def check(config: Config) -> None:
    """Refuse what does not go with sampling ahead.

    Raises:
        ConfigError: naming the options and the way out.
    """
    if not config.hardware.overlap:
        return
    word, off = "hardware.overlap=1", "Use hardware.overlap=0"
    algorithm, experience = config.algo, config.experience
    check_alone(config, config.hardware.processes)
    if not algorithm.online:
        raise ConfigError(f"{word}: algo={algorithm.name} learns from stored examples, and samples nothing. {off}")
    if not algorithm.weighs_replay:
        raise ConfigError(
            f"{word}: samples are those of the policy one step before, and the loss of algo={algorithm.name} has no importance "
            f"weights for them. {off}"
        )
    if config.rollout.among != "each":
        raise ConfigError(
            f"{word}: rollout={config.rollout.kind} has its own copy of the weights, and sampling from an older one while the "
            f"policy learns is not built for it. {off}, or rollout=torch"
        )
    if experience.dynamic_sampling:
        raise ConfigError(
            f"{word}: experience.dynamic_sampling=true asks further prompts by the outcomes of the first, which are not known "
            f"when the next rollout is asked for. Use experience.dynamic_sampling=false, or hardware.overlap=0"
        )
    if experience.skip_visits:
        raise ConfigError(
            f"{word}: by experience.skip_visits={experience.skip_visits} outcomes decide which prompts come next, and they are "
            "not known when the next rollout is asked for. Use experience.skip_visits=0, or hardware.overlap=0"
        )


def check_alone(config: Config, count: int) -> None:
    """Raise ConfigError where a run of `count` processes is to sample ahead."""
    if config.hardware.overlap and count > 1:
        raise ConfigError(
            f"hardware.overlap=1: this run has {count} processes (hardware.processes, or those of torchrun or srun), which "
            "share out each rollout. Use one process, or hardware.overlap=0"
        )


def weight_max(config: Config) -> float:
    """Where the importance weights of this step's tokens are cut off."""
    return config.rollout.weight_max or WEIGHT_MAX


def formula(config: Config) -> str:
    """What sampling adds to the algorithm's own formula; empty where that is nothing."""
    if not config.hardware.overlap:
        return config.rollout.formula()
    weight = f"min(pi_old / pi_behaviour, {weight_max(config):g})"
    return f"sampled by the policy one step before, each token's terms times {weight}"


def kept_bytes(config: Config, policy: Policy) -> int:
    """What it adds to each checkpoint."""
    return sum(x.numel() * x.element_size() for x in sampled_with(policy).values()) if config.hardware.overlap else 0


@contextlib.contextmanager
def sampler(config: Config, machine: Machine, policy: Policy) -> Iterator[Sampler | None]:
    """The process that samples ahead, where there is to be one."""
    if machine.ahead is None:
        yield None
        return
    hardware = config.hardware
    recipe = Recipe(
        config.model,
        config.rollout,
        config.root.seed,
        machine.ahead,
        machine.dtype,
        machine.threads,
        hardware.keep_memory,
        hardware.rank_timeout,
    )
    with Sampler(recipe, weights_of(policy)) as made:
        yield made


@dataclass(frozen=True)
class _Pending:
    """What was asked for and is not there yet; `before` is where the order of prompts was."""

    indices: list[int]
    prompts: Prompts
    before: dict[str, Any]


class Ahead(Online):
    """The same, but that a step's rollout is asked for in the step before, when that one's own is there.

    So it is sampled with the weights before that step's update, whatever takes how long: every rollout but the first is one
    step old, and a run repeats bit for bit. A checkpoint does not wait for a rollout on its way. It holds the weights that this
    is sampled with, and a run that goes on asks for it again. After the last step there is nothing to ask for; the weights are
    kept all the same, for a run that is made longer.
    """

    behind = 1

    def __init__(self, *args: Any, sampler: Sampler, last: int, weight_max: float) -> None:
        super().__init__(*args)
        self.sampler, self.last, self.weight_max = sampler, last, weight_max
        self._weights: dict[str, Tensor] | None = None  # of the rollout that comes next; None before the first
        self._pending: _Pending | None = None

    def _sample(self, step: int, count: int, asked: int) -> tuple[Sequence[int], Rollout]:
        if self._weights is None:
            self._weights = weights_of(self.policy)
        pending = self._pending or self._ask(step, count, self._weights)
        rollout = self.sampler.answer(pending.prompts, self.sampling.samples, self.policy.pad_id, self.rows)
        self._weights, self._pending = weights_of(self.policy), None
        if step < self.last:
            self._ask(step + 1, count, self._weights)
        return pending.indices, rollout

    def _ask(self, step: int, count: int, weights: dict[str, Tensor]) -> _Pending:
        before = self.order.state()
        indices, prompts, sampling = self._next(step, count, asked=0)
        self.sampler.ask(weights, prompts, sampling, self.rows)
        self._pending = _Pending(indices, prompts, before)
        return self._pending

    def state(self) -> dict[str, Any]:
        """With the order of prompts as it was before those that are being sampled were taken."""
        return super().state() | ({} if self._pending is None else {"order": self._pending.before})

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {AHEAD + name: x for name, x in (self._weights or {}).items()}

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().load(state, tensors)
        self._weights = {name.removeprefix(AHEAD): x for name, x in tensors.items() if name.startswith(AHEAD)} or None
        self._pending = None
