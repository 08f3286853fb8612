"""From what Hydra composed to a sweep that runs: options checked, space read, study opened, processes started."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict
from optuna.trial import TrialState

from grpo_exp import config as configuration
from grpo_exp.errors import ConfigError, Pruned, RunError
from grpo_exp.schema import make, names, refuse_unknown
from grpo_exp.sweep import choices, mirror, results, workers
from grpo_exp.sweep.loop import LISTED, Launch, Sweep
from grpo_exp.sweep.options import SearchOptions, SweepOptions
from grpo_exp.sweep.space import Comparison, Space
from grpo_exp.sweep.study import IMPORTED, load_study, lock, open_study, own
from grpo_exp.sweep.trial import PLAN_FILE, read_plan
from grpo_exp.track import TrackOptions
from grpo_exp.track.redact import redact, without_secrets
from grpo_exp.track.wording import lines

IGNORED = ("hydra", "sweep", "sweeps", "track", "name")
"""Sections that may change while a sweep goes on: they do not touch what is measured."""


def sweep(config: DictConfig, context: HydraContext, launcher: Any, arguments: Sequence[str]) -> float | None:
    """Run a sweep to its end, or as far as it gets; returns the best objective.

    Raises:
        InputError: an option is wrong, the folder holds another sweep, or another process sweeps in it.
        RunError: too many trials failed.
        Stopped: on a signal.
    """
    options, search, space = read_options(config, arguments)
    folder = Path(str(config.hydra.sweep.dir)).absolute()
    with open_dict(config):
        config.hydra.sweep.dir = str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    held = folder / ".locks" / "sweep"
    with lock(held, wait=False) as alone:
        if not alone and not options.join:
            raise ConfigError(
                f"another process, {held.read_text()}, sweeps in {folder}. Wait for it, choose another folder with "
                "hydra.sweep.dir=, or add sweep.join=true to work alongside"
            )
        if alone:
            with contextlib.suppress(OSError):  # on a full disk the lock holds without
                held.write_text(f"{os.getpid()} on {platform.node()}")
        mine = _prepare(config, context, launcher, folder, options, search, space)
        if options.workers > 1:
            workers.run(mine, options.workers)
        else:
            mine.run()
    if not alone:
        return None  # who helped leaves the last word to whom it helped
    mirror.send(mine, make(TrackOptions, OmegaConf.to_container(config.track, resolve=True), "track"), _say)
    return _end(mine)


def read_options(config: DictConfig, arguments: Sequence[str]) -> tuple[SweepOptions, SearchOptions, Space]:
    """The options of a sweep, checked, and its space.

    Raises:
        ConfigError: one is wrong.
    """
    given = configuration.resolved(config.hydra.sweeper)
    listed = given.pop("enqueue", [])  # a list of mappings, which a dataclass cannot have
    node: dict[str, Any] = {str(k): v for k, v in given.items() if k not in ("_target_", "_recursive_", "trial")}
    refuse_unknown(node, names(SearchOptions), "hydra.sweeper")
    options = make(SweepOptions, configuration.resolved(config.sweep), "sweep")
    search = make(SearchOptions, node, "hydra.sweeper")
    search.enqueue = read_points(listed)
    space = Space.read(arguments, search.params, search.conditions)
    if "seed" in space.distributions and options.seeds is not None:
        raise ConfigError(f"seed is searched and sweep.seeds={options.seeds}: seeds belong to a trial, so drop one of the two")
    name = choices.check_sampler(search.sampler)
    choices.pruner(search.pruner)
    for text in search.constraints:
        comparison = Comparison.read(text, "hydra.sweeper.constraints")
        if comparison.op not in ("<=", ">=") or not isinstance(comparison.value, (int, float)):
            raise ConfigError(f"hydra.sweeper.constraints={text!r}: expected METRIC <= NUMBER or METRIC >= NUMBER")
    for i, point in enumerate(search.enqueue):
        space.check(point, f"hydra.sweeper.enqueue[{i}]")
    if is_grid(name, search, space):
        if space.size is None:
            raise ConfigError(
                "hydra/sweeper/sampler=grid: an interval has no list of values; use choice(...) or another sampler"
            )
        if space.size > LISTED:
            raise ConfigError(
                f"{', '.join(space.distributions)}: a grid of {space.size:,} points, {LISTED:,} at most. Give fewer values, or "
                "let a sampler look at some of them: hydra/sweeper/sampler=tpe hydra.sweeper.n_trials=20"
            )
    elif search.n_trials is None:
        raise ConfigError(
            "hydra.sweeper.n_trials has no value: say how many trials are wanted in all, such as hydra.sweeper.n_trials=20"
        )
    return options, search, space


def read_points(listed: Any) -> list[dict[str, Any]]:
    """The points of hydra.sweeper.enqueue.

    Raises:
        ConfigError: it is no list of mappings.
    """
    if not isinstance(listed, list) or not all(isinstance(point, dict) for point in listed):
        raise ConfigError(f"hydra.sweeper.enqueue={listed!r}: expected values by key, such as [{{beta: 0.04, G: 8}}]")
    return [{str(key): value for key, value in point.items()} for point in listed]


def is_grid(name: str, search: SearchOptions, space: Space) -> bool:
    """Whether the points are gone through one by one; `auto` does so where it can be done and no number of trials is given."""
    return name == "grid" or (name == "auto" and space.size is not None and search.n_trials is None)


def _prepare(
    config: DictConfig,
    context: HydraContext,
    launcher: Any,
    folder: Path,
    options: SweepOptions,
    search: SearchOptions,
    space: Space,
) -> Sweep:
    """The sweep with its study, its plan written down and its first points queued."""
    base = _base(config, context, space)
    metrics = search.metrics or [base["objective"]["metric"]]
    given = search.direction if search.direction is not None else base["objective"]["direction"]
    directions = given if isinstance(given, list) else [given]
    grid = is_grid(choices.check_sampler(search.sampler), search, space)
    if not grid and search.sampler.get("name") == "auto":
        search.sampler = {"name": "tpe", "seed": search.sampler.get("seed")}
    study_name = search.study_name or folder.name
    plan = {
        "space": space.described(),
        "metrics": metrics,
        "directions": directions,
        "seeds": options.seeds,
        "aggregate": options.aggregate,
        "constraints": search.constraints,
        "base": {key: value for key, value in base.items() if key not in IGNORED},
    }
    with lock(folder / ".locks" / "claim", wait=True):
        study = open_study(folder, search.storage, study_name, directions, choices.pruner(search.pruner), plan)
        for point in search.enqueue:
            study.enqueue_trial(point, skip_if_exists=True)
        if search.from_sweep:
            _take_over(study, Path(search.from_sweep), space)
        about = {
            **{key: plan[key] for key in ("space", "metrics", "directions", "seeds", "aggregate", "constraints")},
            "name": folder.name,
            "fixed": [without_secrets(word) for word in space.fixed],
            "sampler": {"name": "grid"} if grid else search.sampler,
            "pruner": search.pruner,
            "n_trials": search.n_trials,
            "study_name": study_name,
            "storage": redact(search.storage),
        }
        results.write(folder / PLAN_FILE, about)
    return Sweep(folder, study, space, search, options, grid, metrics, _launch(launcher), _say)


def _base(config: DictConfig, context: HydraContext, space: Space) -> dict[str, Any]:
    """The configuration that all trials share, without what is searched; what follows from that is as at the first point."""
    composed = context.config_loader.load_sweep_config(config, [*space.fixed, *space.words(space.corners()[0])])
    with open_dict(composed):
        del composed["hydra"]
    plain: dict[str, Any] = redact(configuration.resolved(composed))
    for key in space.distributions:
        _drop(plain, key.lstrip("+").split("."))
    return plain


def _drop(values: Any, path: list[str]) -> None:
    """Remove a key; one that a group option brings is not there under its group's name."""
    for name in path[:-1]:
        values = values.get(name) if isinstance(values, dict) else None
    if isinstance(values, dict):
        values.pop(path[-1], None)


def _take_over(study: Any, folder: Path, space: Space) -> None:
    """Add the complete trials of an earlier sweep that lie in this one's space, once; they do not count as trials of this one.

    Raises:
        InputError: there is no sweep in that folder.
    """
    import optuna

    plan = read_plan(folder)
    known = {t.user_attrs.get(IMPORTED) for t in study.get_trials(deepcopy=False)}
    earlier = load_study(folder, plan)
    for trial in earlier.get_trials(deepcopy=False):
        mark = f"{folder.name}/{trial.number}"
        if trial.state != TrialState.COMPLETE or mark in known:
            continue
        try:
            values = space.check(trial.params, str(folder))
        except ConfigError:
            continue
        distributions = {key: space.distributions[key] for key in values}
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(values), distributions=distributions, values=trial.values, user_attrs={IMPORTED: mark}
            )
        )


def _launch(launcher: Any) -> Launch:
    """Hydra's launcher, each job's error as text. How the jobs ended is read from their folders."""

    def launch(jobs: Sequence[Sequence[str]], number: int) -> list[Exception | None]:
        returned = launcher.launch([list(job) for job in jobs], initial_job_idx=number)
        return [_error(job) for job in returned]

    return launch


def _error(job: JobReturn) -> Exception | None:
    error = None if job.status == JobStatus.COMPLETED else job._return_value
    return None if isinstance(error, Pruned) else error


def _say(text: str) -> None:
    """A line of the sweep's own; where the stream is closed (`| head`) or on a full disk it is lost, and the sweep goes on."""
    with contextlib.suppress(OSError):
        print(lines(without_secrets(text)), flush=True)


def _end(mine: Sweep) -> float | None:
    """Tell what the sweep came to.

    Raises:
        RunError: points of a grid failed, which somebody asked for one by one, or all trials did.
    """
    from grpo_exp.report.command import command
    from grpo_exp.report.runs import find

    trials = own(mine.study.get_trials(deepcopy=False))
    states = [t.state for t in trials]
    counts = {
        "complete": states.count(TrialState.COMPLETE),
        "pruned": states.count(TrialState.PRUNED),
        "failed": states.count(TrialState.FAIL),
        "still running in another process": states.count(TrialState.RUNNING),
    }
    told = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    _say(f"\n{len(trials)} trial{'s' * (len(trials) != 1)}: {told or 'none'}")
    value = None
    if len(mine.metrics) == 1 and (best := results.best(mine.study)) is not None:
        value = best.value
        runs = find([mine.folder / str(best.number)])
        _say(f"best: trial {best.number} with {mine.metrics[0]} {value:.4g}")
        if line := runs and command(runs[0], with_seed=len(runs) == 1):
            _say(f"  {line}")
    _say(f"compare them: python -m grpo_exp report {os.path.relpath(mine.folder)}")
    failed = [str(t.number) for t in trials if t.state == TrialState.FAIL]
    if failed and (mine.grid or len(failed) == len(trials)):
        raise RunError(
            f"{len(failed)} of {len(trials)} trials failed: {', '.join(failed)}; the lines above and trial.json in "
            "their folders say why, error.txt there says where"
        )
    return value
