"""A run, begun: in this process, in processes of its own, or as one of those that a launcher started."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from grpo_exp import config as configuration
from grpo_exp import earlier, remedy
from grpo_exp.compose import register
from grpo_exp.errors import ConfigError, RankError, RolledBack
from grpo_exp.ranks import Place, Ranks, given, join

if TYPE_CHECKING:
    from grpo_exp.config import Config
    from grpo_exp.earlier import Earlier

Hook = Callable[[int, float], None]


@dataclass(frozen=True)
class InSweep:
    """Which trial of a sweep a run is; `storage` is where the sweep's study is kept, None for its folder."""

    number: int
    folder: Path
    storage: str | None


@dataclass(frozen=True)
class Trial:
    """The trial of a sweep that a run is: its number, and what tells the sweep how it is doing, raising Pruned to end it."""

    number: int
    hook: Hook


@dataclass(frozen=True)
class Job:
    """A run, as each of its processes can begin it.

    Attributes:
        composed: the configuration as Hydra made it.
        words: the overrides, for the run card.
        sweep: the trial that the run is; None outside of a sweep.
        tracked: options of `track` that a sweep sets.
        back_to, force: as in `run.go_on`.
    """

    composed: DictConfig
    folder: Path
    words: Sequence[str]
    sweep: InSweep | None = None
    tracked: dict[str, str] = field(default_factory=dict)
    back_to: int | None = None
    force: bool = False


def begin(job: Job, config: Config) -> float | None:
    """Run it: in this process, in processes of its own, or as one of those that a launcher started.

    Raises: as `run`; ConfigError where the options do not go with several processes.
    """
    from grpo_exp import processes, record

    place, wanted = given(os.environ), config.hardware.processes
    _check(config, place)
    if place is None and wanted > 1:
        try:
            return processes.run(start, job, wanted, config.hardware.rank_timeout)
        except RankError as error:
            record.lost(job.folder, error)
            raise
    for name, value in job.tracked.items():
        setattr(config.track, name, value)
    with join(place, config.hardware.rank_timeout, config.hardware.device != "cpu") as ranks:
        return _begin(job, config, ranks)


def _check(config: Config, place: Place | None) -> None:
    """Raise ConfigError where the options do not go with several processes."""
    from grpo_exp import overlap

    count = config.hardware.processes if place is None else place.count
    overlap.check_alone(config, count)
    if count > 1 and config.rollout.among == "none" and (config.algo.online or not configuration.measures_pairs(config)):
        raise ConfigError(
            f"rollout={config.rollout.kind} samples in this process, and the run has {count} (hardware.processes, or those of "
            "torchrun or srun). Use a server (rollout.url=), rollout=torch, or one process"
        )


def start(job: Job) -> float | None:
    """The same in a process that knows nothing but the job."""
    register()
    return begin(job, configuration.build(job.composed))


def _begin(job: Job, config: Config, ranks: Ranks) -> float | None:
    """What each rank does. Where the health checks of the run send it back, it goes on from there.

    The first one's folder is that of all, since names have the time in them; and it alone looks at what is in it.
    """
    from grpo_exp.run import train

    folder, back_to, force = ranks.from_first(lambda: job.folder), job.back_to, job.force
    while True:
        changed = ranks.from_first(lambda: remedy.changed(job.composed, folder))
        now = job.composed if changed is None else changed
        mine = config if changed is None else replace(configuration.build(now), track=config.track)
        plain, secrets = configuration.anchored(configuration.resolved(now)), configuration.secret_values(now)
        for section in configuration.BEFORE_A_RUN:  # how trials are run is no part of what is run
            plain.pop(section, None)
        find = partial(_find, folder, plain, secrets, back_to, force)
        before = earlier.same(ranks.first_alone(find, earlier.NOTHING), folder, ranks)
        if before.finished:
            return ranks.from_first(partial(_nothing_to_do, folder, before))
        hook: Hook = unwatched
        if sweep := job.sweep:
            hook = ranks.first_alone(lambda: _hook(sweep, config), hook)
        trial = Trial(sweep.number, hook) if sweep else None
        try:
            return train(mine, plain, secrets, folder, job.words, trial, before, ranks)
        except RolledBack:
            back_to, force = None, False  # run.json says where to


def _find(folder: Path, plain: dict[str, Any], secrets: set[str], back_to: int | None, force: bool) -> Earlier:
    """What is in the folder, to be gone on with from where the health checks sent the run back to, if they did."""
    waiting = remedy.pending(folder)
    return earlier.find(folder, plain, secrets, back_to if waiting is None else waiting, force or waiting is not None)


def _nothing_to_do(folder: Path, before: Earlier) -> float | None:
    """Say that a run is finished; returns its objective."""
    objective = before.card["objective"]
    print(f"{folder}: finished before, objective {objective}; nothing to do")
    return None if objective is None else float(objective)


def unwatched(step: int, objective: float) -> None:
    """The hook of a run that no sweep watches."""


def _hook(sweep: InSweep, config: Config) -> Hook:
    """What tells a sweep how the run is doing; it raises Pruned to end the run."""
    from grpo_exp.sweep.trial import Reporter

    return Reporter(sweep.folder, sweep.number, config.root.seed, config.root.steps, sweep.storage)
