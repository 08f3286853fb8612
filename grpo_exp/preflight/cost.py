"""What the run takes: memory, seconds, tokens, and money where an hour has a price."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from grpo_exp import footprint
from grpo_exp.placement import reference_place
from grpo_exp.preflight.base import Finding, Line, percent
from grpo_exp.track.wording import duration, number

if TYPE_CHECKING:
    from grpo_exp.config import Config
    from grpo_exp.policy import Policy
    from grpo_exp.preflight.rehearsal import Rehearsal
    from grpo_exp.preflight.samples import Samples

GIB = 2**30


@dataclass(frozen=True)
class Memory:
    """GiB.

    Attributes:
        needed: the most that is held at a time.
        there_is: what could be had before anything was loaded, and what the program itself holds.
        parts: what is known by the sizes of tensors: weights, gradients, the optimizer's moments, a reference's copy, and what
            the evaluation remembers of the rows that it samples at a time.
    """

    needed: float
    there_is: float
    parts: dict[str, float]


class Held(NamedTuple):
    """GiB: what there is, what is held once the model is loaded, and what was held at most."""

    there_is: float
    loaded: float
    peak: float


@dataclass(frozen=True)
class Cost:
    """What the run takes, by the steps that were timed.

    Attributes:
        step: seconds a step, the median of those timed.
        step_tokens: completion tokens a step.
        steps: as many as there will be; experience.max_tokens may end the run before `steps`.
        evaluations, evaluation: how many there will be, and seconds each.
        load: seconds until the model was there.
        wall: seconds of the run.
        notes: what was said of memory that ran out.
    """

    memory: Memory
    step: float
    step_tokens: float
    steps: int
    evaluations: int
    evaluation: float
    load: float
    wall: float
    tokens: float
    price: float
    trials: int
    notes: list[str]

    @property
    def money(self) -> float:
        return self.wall / 3600 * self.price

    def lines(self) -> list[Line]:
        evaluations = f" and {self.evaluations} evaluations of {self.evaluation:.1f} s" if self.evaluations else ""
        sweep = f"; {self.trials} trials {duration(self.trials * self.wall)}" if self.trials else ""
        many = f"; {self.trials} trials {number(self.trials * self.money)}" if self.trials else ""
        money = [("money", f"{number(self.money)} at {self.price:g} an hour{many}")] if self.price else []
        return [
            ("memory", f"{self.memory.needed:.2f} GiB needed of {self.memory.there_is:.2f} GiB"),
            ("time", f"{number(self.step)} s and {number(round(self.step_tokens))} tokens a step"),
            ("", f"{self.steps} steps{evaluations}: {duration(self.wall)}, {number(round(self.tokens))} tokens{sweep}"),
            *money,
        ]

    def findings(self, config: Config) -> Iterator[Finding]:
        options, need = config.preflight, self.memory
        assert options is not None
        rows = ["hardware.update_rows=8", "model.gradient_checkpointing=true"]
        if self.notes:
            yield Finding("warn", f"memory ran out on the way: {self.notes[0]}", rows)
        elif need.needed > options.memory * need.there_is:
            yield Finding(
                "warn",
                f"the run needs {need.needed:.2f} GiB, {percent(need.needed / need.there_is)} of the "
                f"{need.there_is:.2f} GiB that there are",
                rows,
            )


def measure(config: Config, samples: Samples | None, rehearsal: Rehearsal, asked: int, load: float, memory: Memory) -> Cost:
    """The cost by the rehearsed steps, of which the first is left out where there are others; it warms up.

    An evaluation, of `asked` rows, is taken to need as long a row as the samples did. Of pairs it is not counted: `asked` is 0.
    """
    root, options = config.root, config.preflight
    assert options is not None
    timed = rehearsal.rows[1:] or rehearsal.rows
    step = statistics.median(row["time/total"] for row in timed) if timed else math.nan
    tokens = _tokens(rehearsal)
    most = config.experience.max_tokens
    steps = min(root.steps, math.ceil(most / tokens)) if most and tokens else root.steps
    evaluations = _evaluations(config, steps) if asked else 0
    evaluation = samples.seconds * asked / len(samples.rows) if samples is not None else 0.0
    wall = load + steps * step + evaluations * evaluation
    return Cost(
        memory,
        step,
        tokens,
        steps,
        evaluations,
        evaluation,
        load,
        wall,
        steps * tokens,
        options.price,
        options.trials,
        [note for note in rehearsal.notes if "out of memory" in note],
    )


def memory(config: Config, policy: Policy, rehearsal: Rehearsal, held: Held, rows: int, tokens: int) -> Memory:
    """What is needed: by the steps that were taken, or by the evaluation, whose `rows` are each of so many `tokens` at most."""
    sizes, way = footprint.Sizes.of(policy.model), footprint.Way.of(policy)
    parts = held_by(config, sizes, way) | {"evaluation": rows * footprint.sampling(sizes, way, tokens)}
    besides = sum(parts.values()) - parts["weights"]
    needed = max(held.peak - rehearsal.held / GIB, held.loaded + besides / GIB)
    return Memory(needed, held.there_is, {name: size / GIB for name, size in parts.items()})


def held_by(config: Config, sizes: footprint.Sizes, way: footprint.Way) -> dict[str, float]:
    """Bytes that the run holds on the policy's device all along, by part."""
    critic = config.algo.critic
    here = critic is not None and config.hardware.critic == "same"
    beside = footprint.sampler(sizes, way, config.model.quantize) if config.hardware.overlap else 0.0
    return {"sampler": beside} | footprint.held(
        sizes,
        way,
        quantize=config.model.quantize,
        optimizer=config.optim.name,
        place=reference_place(config),
        moves=config.algo.moves_reference,
        remembers=config.algo.keeps_reference,
        critic=footprint.critic(sizes, critic.trunk) if critic is not None and here else 0,
    )


def _tokens(rehearsal: Rehearsal) -> float:
    """Completion tokens a step: the rows say how many there were up to then."""
    return rehearsal.rows[-1]["tokens"] / len(rehearsal.rows) if rehearsal.rows else 0.0


def _evaluations(config: Config, steps: int) -> int:
    """Before the first step, every so many, and at the end."""
    every = config.eval.every
    return config.eval.start + (math.ceil(steps / every) if every else 1)
