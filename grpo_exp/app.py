"""Hydra's part: one run, or the jobs of a sweep, from the words of a command line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from grpo_exp.command_line import ROOT, Request, options, parse, read
from grpo_exp.compose import compose, explain, is_sweep, opened, register, sweep_config, whole, without_hydra
from grpo_exp.errors import ConfigError, GrpoError, InputError, RunError, Stopped, Unhealthy
from grpo_exp.ranks import given
from grpo_exp.track.wording import said

if TYPE_CHECKING:
    from grpo_exp.config import Config


class _Ended(BaseException):
    """Carries an error past Hydra, which would print it in its own way, or go on with the next job of a sweep."""

    def __init__(self, error: GrpoError) -> None:
        super().__init__(error)
        self.error = error


def launch(words: list[str]) -> int:
    """Run Hydra on the command line's words.

    Everything that can be checked without data and model is checked before Hydra makes a folder, in a sweep for each of its
    values.

    Raises:
        InputError: the words do not compose, or a value is wrong.
        RunError: the run failed, or some runs of the sweep did.
        Stopped: on a signal.
    """
    register()
    request = read(words)
    sweep = is_sweep(request)
    if sweep and given(os.environ) is not None:
        raise InputError(
            "a sweep starts the processes of its runs itself: give its command once, without torchrun, accelerate or srun -n, "
            "and hardware.processes=N"
        )
    plain = request.trains and not sweep and not request.flags  # other commands are Hydra's to read
    composed = whole(request) if plain else None
    jobs = _Jobs(check(request, composed) if request.trains else None)

    def job(composed: DictConfig) -> float | None:
        return jobs.run(composed)

    before, sys.argv = sys.argv, [sys.argv[0], *request.overrides, *request.flags]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here instead of being printed and ending the process
    try:
        if composed is not None:
            _run(composed, job)
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*Running Hydra app with --multirun", UserWarning)
                hydra.main(version_base="1.3", config_path=str(ROOT / "conf"), config_name="config")(job)()
    except _Ended as ended:
        raise ended.error from ended.error.__cause__
    except GrpoError:
        raise
    except OSError as error:
        raise InputError(
            f"{error.filename or 'a folder'} cannot be used ({error.strerror or error}); set hydra.run.dir= or hydra.sweep.dir="
        ) from error
    except Exception as error:  # Hydra lets AssertionError, KeyError and the like out on odd words
        if jobs.count:
            raise
        raise ConfigError(explain(error, request)) from error
    finally:
        sys.argv = before
    jobs.report()
    return 0


def _run(composed: DictConfig, job: Callable[[DictConfig], float | None]) -> None:
    """Hydra's run of what is composed; left to itself it would compose the same twice more, 0.3 s of a core each."""
    with opened() as hydra:
        hydra.config_loader.load_configuration = lambda **_: composed  # type: ignore[method-assign]
        hydra.run("config", job, [])


def check(request: Request, composed: DictConfig | None = None) -> Config | None:
    """Build the configuration of the run, or of as many jobs of the sweep as show each value once; the run's is returned.
    `composed` is the run's with Hydra's node, where that was done.

    Raises:
        ConfigError: one message for the first thing that is wrong.
    """
    from grpo_exp.config import build

    if not is_sweep(request):
        named = next((w for w in request.overrides if w.startswith("sweeps=") and w not in ("sweeps=null", "sweeps=")), None)
        if named:
            raise ConfigError(
                f"{named}: the file asks for no sweep. Its first line must be '# @package _global_', and it must set "
                "hydra.mode: MULTIRUN and hydra.sweeper.params"
            )
        return build(compose(request) if composed is None else without_hydra(composed))
    for job in sweep_jobs(request):
        build(compose(job))
    return None


def sweep_jobs(request: Request) -> list[Request]:
    """Jobs of a sweep that have each value of a list, or the ends of an interval, at least once; for another sweeper than this
    project's own, what is fixed.

    Raises:
        ConfigError: the sweep does not compose, or an option of it is wrong.
    """
    composed = sweep_config(request)
    fixed = [word for word in request.overrides if parse(word).is_hydra_override()]
    task = [word for word in request.overrides if word not in fixed]
    if not str(composed.hydra.sweeper.get("_target_", "")).endswith("grpo_exp_sweeper.OptunaSweeper"):
        return [request.with_words(fixed + [word for word in task if not parse(word).is_sweep_override()])]
    from grpo_exp.sweep.sweeper import read_options

    _, search, space = read_options(composed, task)
    jobs = [[*fixed, *space.fixed, *space.words(point)] for point in space.corners()]
    jobs += [[*jobs[0], f"objective.metric={metric}"] for metric in search.metrics or []]
    return [request.with_words(words) for words in jobs]


class _Jobs:
    """What Hydra calls once a job: the only one of a run, or each of a sweep.

    In a sweep a failed run is reported, and the next one starts. Wrong input and signals end a sweep.
    """

    def __init__(self, checked: Config | None) -> None:
        self.checked, self.count, self.failed = checked, 0, list[str]()

    def run(self, composed: DictConfig) -> float | None:
        from grpo_exp.run import run

        self.count += 1
        settings = HydraConfig.get()
        watched = settings.mode == RunMode.MULTIRUN and settings.sweeper.get("trial") is not None
        try:
            return run(composed, self.checked)
        except (Stopped, Unhealthy) as error:
            raise _Ended(error) from error
        except InputError as error:
            if watched:  # one point of a space may be impossible; the sweep notes it and goes on
                raise
            raise _Ended(error) from error
        except RunError as error:
            if settings.mode == RunMode.RUN:
                raise _Ended(error) from error
            if watched:
                raise
            self.failed.append(str(settings.job.num))
            told = said(f"run {settings.job.num} ({settings.job.override_dirname}) failed: {error}")
            sys.stderr.write(f"grpo_exp: {told}\n")
            if not str(settings.sweeper.get("_target_", "")).endswith(".BasicSweeper"):
                raise  # a sweeper that learns from results is told
            return None

    def report(self) -> None:
        """Raise RunError if runs of a sweep failed."""
        if self.failed:
            raise RunError(
                f"{len(self.failed)} of {self.count} runs failed: {', '.join(self.failed)}; see error.txt in their folders"
            )


__all__ = ["ROOT", "check", "compose", "launch", "options"]
