"""The loop of a sweep: claim a trial, run it seed by seed, tell the study how it ended; until there are as many as wanted.

Several processes may run this loop on one folder. What holds it together: a trial is claimed under a lock, held by another
lock while it runs, and judged by what is in its folder, not by what a launcher returns. So whatever is killed, the next loop
finds running trials that nobody holds, and goes on with them.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from grpo_exp.errors import UNHEALTHY, ConfigError, InputError, RunError
from grpo_exp.sweep import messages, results
from grpo_exp.sweep.choices import sampler
from grpo_exp.sweep.options import SearchOptions, SweepOptions
from grpo_exp.sweep.space import Comparison, Space, identity_of
from grpo_exp.sweep.study import ATTEMPTS, REASON, lock, own
from grpo_exp.sweep.trial import aggregate

Launch = Callable[[Sequence[Sequence[str]], int], list[Exception | None]]
"""Runs jobs, given as overrides, the first with this number; returns for each None, or the error it ended with."""
Say = Callable[[str], None]
TRANSIENT = (
    *("OSError", "MemoryError", "RuntimeError", "OutOfMemoryError", "CheckpointError", "RankError", "StorageInternalError"),
)
"""Errors that may be gone at the next attempt; a bad value, a reward that raises or a NaN comes again."""
UNMEASURED = 1e9
"""How far a metric that was not measured oversteps its constraint: far, but a number that JSON has."""
LISTED = 10_000
"""A finite space of at most so many points is gone through without tries of the same point; in a larger one they are rare."""
ABOUT = ("by_seed", "tokens", "seconds")
ROOM = "Make room and give the same command again: what is done is kept, and the trial goes on from its checkpoint"


@dataclass
class Sweep:
    """One process's share in a sweep.

    Attributes:
        folder: the sweep's.
        study: the memory that all processes share.
        launch: how jobs are run.
        say: how people are told.
    """

    folder: Path
    study: optuna.Study
    space: Space
    search: SearchOptions
    options: SweepOptions
    grid: bool
    metrics: list[str]
    launch: Launch
    say: Say

    def run(self) -> None:
        """Claim and run trials until none is left.

        Raises:
            InputError: no trial can run at all.
            RunError: max_failures is reached, or the disk is full.
            Stopped: on a signal; the trial goes on when the sweep does.
        """
        try:
            self._run_all()
        except OSError as error:
            if error.errno in results.FULL:
                raise RunError(f"{error.strerror} in {self.folder}. {ROOM}") from error
            raise
        except optuna.exceptions.StorageInternalError as error:
            reason = str(error.__cause__ or error).splitlines()[0]
            raise RunError(
                f"hydra.sweeper.storage={self.search.storage} cannot be used ({reason}). Once it can, the same command goes "
                "on. hydra.sweeper.storage=null is a journal in the sweep's folder, which nobody locks for long"
            ) from error

    def _run_all(self) -> None:
        with lock(self.folder / ".locks" / "claim", wait=True):
            self._write_missed()
        while True:
            with contextlib.ExitStack() as held:
                batch = []
                for _ in range(self.search.n_jobs):
                    claimed = self._claim(held)
                    if claimed is None:
                        break
                    batch.append(claimed)
                if not batch:
                    return
                self._run(batch)
            self._check_failures()

    # ---- claiming

    def _claim(self, held: contextlib.ExitStack) -> tuple[Trial, dict[str, Any]] | None:
        """A trial that is this process's until `held` is closed: one that was left running, or a new one. None: no more."""
        with lock(self.folder / ".locks" / "claim", wait=True):
            trials = self.study.get_trials(deepcopy=False)
            for trial in own(trials):
                if trial.state == TrialState.RUNNING and held.enter_context(lock(self._lock(trial.number), wait=False)):
                    self._sign(trial.number)
                    self.study.sampler = sampler(self.search.sampler, trial.number)
                    opened = Trial(self.study, trial._trial_id)
                    return opened, self._drawn(opened)
            number = self._next(trials)
            if number is None:
                return None
            self.study.sampler = sampler(self.search.sampler, number)
            asked = self.study.ask()
            held.enter_context(lock(self._lock(asked.number), wait=True))
            self._sign(asked.number)
            return asked, self._drawn(asked)

    def _drawn(self, trial: Trial) -> dict[str, Any]:
        """The trial's values: drawn before, or now."""
        values = self._draw(self.study, trial)
        self._write(trial.number, values, "running")
        return values

    def _draw(self, study: optuna.Study, trial: Trial) -> dict[str, Any]:
        """Values from the sampler. Each has random numbers of its own, so that a trial that was left between two of them goes
        on as it would have gone on."""

        def prepare(place: int) -> None:
            _ = trial.relative_params  # those that the sampler chooses together; chosen once, before the first
            study.sampler = sampler(self.search.sampler, trial.number, place)

        return self.space.suggest(trial, prepare)

    def _repeats(self, trials: list[FrozenTrial], done: set[Any]) -> bool:
        """Whether the sampler would draw a point again that was tried, which would tell nothing new. It is asked in a copy."""
        copy = optuna.create_study(directions=self.study.directions, sampler=sampler(self.search.sampler, len(trials)))
        copy.add_trials(trials)
        return identity_of(self._draw(copy, copy.ask())) in done

    def _next(self, trials: list[FrozenTrial]) -> int | None:
        """The number of the trial that comes next; None where there are as many as wanted, or every point was tried."""
        if self.search.n_trials is not None and len(own(trials)) >= self.search.n_trials:
            return None
        waiting = [t.number for t in trials if t.state == TrialState.WAITING]
        if waiting:
            return min(waiting)
        if self.grid or (self.space.size or math.inf) <= LISTED:
            done = {identity_of(self.space.active(t.params)) for t in own(trials)}
            left = [p for p in self.space.points() if identity_of(p) not in done]
            if not left:
                return None
            if self.grid:
                self.study.enqueue_trial(left[0])
            elif self._repeats(trials, done):
                self.study.enqueue_trial(Random(len(trials)).choice(left))
        return len(trials)

    def _lock(self, number: int) -> Path:
        return self.folder / ".locks" / str(number)

    def _sign(self, number: int) -> None:
        """Note in a trial's lock which process has it, below those that had it before."""
        with contextlib.suppress(OSError), self._lock(number).open("a") as file:  # on a full disk the lock holds without
            file.write(f"{os.getpid()}\n")

    # ---- running

    def _run(self, batch: list[tuple[Trial, dict[str, Any]]]) -> None:
        """Run trials to their ends, seed after seed, and tell the study."""
        for trial, values in batch:
            self.say(messages.headline(self.study, self.space, self.search, self.grid, trial.number, values))
        waiting = list(range(len(batch)))
        for seed in self._seeds():
            pruned = [i for i in waiting if self._was_pruned(batch[i][0], seed)]
            jobs = [i for i in waiting if i not in pruned]
            errors = self._launch([self._job(*batch[i], seed) for i in jobs], batch[jobs[0]][0].number) if jobs else []
            for i, error in [*((i, None) for i in pruned), *zip(jobs, errors, strict=True)]:
                trial, values = batch[i]
                ended = self._ended(trial, values, seed, error)
                if ended.status != "finished":
                    waiting.remove(i)
                    self._tell(trial, values, ended)
        for i in waiting:
            self._tell(*batch[i], None)

    def _was_pruned(self, trial: Trial, seed: int | None) -> bool:
        """Whether a kill came between the end of a pruned job and the word to the study. Whom the pruner ended had reported."""
        ended = results.read(self._seed_folder(trial.number, seed), None)
        if ended.status != "pruned":
            return False
        reported = self.study._storage.get_trial(trial._trial_id).intermediate_values
        return bool(reported) or str(ended.reason).startswith(UNHEALTHY)

    def _ended(self, trial: Trial, values: dict[str, Any], seed: int | None, error: Exception | None) -> results.Ended:
        """How a job ended, which is run again if it failed for a reason that may pass.

        Raises:
            InputError: it cannot run, and neither could any other so far; the trial goes on once that is mended.
            RunError: the disk is full.
        """
        while True:
            if isinstance(error, InputError) and self._hopeless(error):
                raise error
            ended = results.read(self._seed_folder(trial.number, seed), error)
            if results.disk_is_full(self.folder, ended):
                raise RunError(f"trial {trial.number}: no space is left on the disk of {self.folder}. {ROOM}")
            passes = ended.status == "stopped" or (ended.status == "failed" and ended.error_type in TRANSIENT)
            if not passes or self._attempts(trial) >= self.options.retries:
                return ended
            trial.set_user_attr(ATTEMPTS, self._attempts(trial) + 1)
            self.say(f"trial {trial.number} failed: {ended.reason}; attempt {self._attempts(trial) + 1}")
            (error,) = self._launch([self._job(trial, values, seed)], trial.number)

    def _hopeless(self, error: InputError) -> bool:
        """Whether what is wrong for this trial is wrong for all: data or model are, and so is what another trial had too.

        A single point of a space may be impossible; others may not.
        """
        trials = own(self.study.get_trials(deepcopy=False))
        if any(t.state in (TrialState.COMPLETE, TrialState.PRUNED) for t in trials):
            return False
        return not isinstance(error, ConfigError) or any(t.state == TrialState.FAIL for t in trials)

    def _seeds(self) -> list[int | None]:
        return [*self.options.seeds] if self.options.seeds else [None]

    def _attempts(self, trial: Trial) -> int:
        return int(trial.user_attrs.get(ATTEMPTS, 0))

    def _launch(self, jobs: list[list[str]], number: int) -> list[Exception | None]:
        """Launch jobs; a launcher that gives up takes none of the trials with it that finished."""
        try:
            return self.launch(jobs, number)
        except Exception as error:  # joblib, submitit and ray raise each in its own way when one job is killed
            return [error] * len(jobs)

    def _job(self, trial: Trial, values: dict[str, Any], seed: int | None) -> list[str]:
        """The overrides of one job."""
        words = [*self.space.fixed, *self.space.words(values), f"hydra.sweeper.trial={trial.number}"]
        if seed is not None:
            words += [f"seed={seed}", f"hydra.sweep.subdir={trial.number}/seed-{seed}"]
        else:
            words += [f"hydra.sweep.subdir={trial.number}"]
        return words

    def _seed_folder(self, number: int, seed: int | None) -> Path:
        folder = self.folder / str(number)
        return folder if seed is None else folder / f"seed-{seed}"

    # ---- telling

    def _tell(self, trial: Trial, values: dict[str, Any], ended: results.Ended | None) -> None:
        """How a trial ended: `ended` is the job that did not finish, None where all did."""
        done = {
            s: r for s in self._seeds() if (r := results.read(self._seed_folder(trial.number, s), None)).status != "missing"
        }
        finished = [r for r in done.values() if r.status == "finished"]
        about: dict[str, Any] = {
            "by_seed": {
                str(s): r.objective if len(self.metrics) == 1 else r.values(self.metrics)
                for s, r in done.items()
                if s is not None and r.status == "finished"
            },
            "tokens": sum(r.tokens for r in done.values()),
            "seconds": round(sum(r.seconds for r in done.values()), 2),
        }
        state, objective, reason = TrialState.COMPLETE, None, None
        if ended is not None:
            state = TrialState.PRUNED if ended.status == "pruned" else TrialState.FAIL
            reason = ended.reason
        else:
            columns = [[r.values(self.metrics)[i] for r in finished] for i in range(len(self.metrics))]
            objective = [aggregate(column, self.options.aggregate) for column in columns]
            if any(map(math.isnan, objective)):
                missing = [m for m, v in zip(self.metrics, objective, strict=True) if math.isnan(v)]
                state, objective, reason = TrialState.FAIL, None, f"{', '.join(missing)}: not a number at the end of the run"
        for key, value in (about | ({REASON: reason} if reason else {})).items():
            trial.set_user_attr(key, value)
        if state == TrialState.COMPLETE:
            self._constrain(trial, finished)
        with lock(self.folder / ".locks" / "claim", wait=True):
            told = self.study.tell(trial.number, objective, state=state, skip_if_finished=True)
        self._write_finished(told)
        self.say(messages.verdict(self.study, told, self.metrics))

    def _constrain(self, trial: Trial, finished: list[results.Ended]) -> None:
        """By how much the trial oversteps each constraint; 0 or less keeps to it."""
        for text in self.search.constraints:
            comparison = Comparison.read(text, "hydra.sweeper.constraints")
            value = sum(r.late(comparison.key) for r in finished) / len(finished)
            bound = float(comparison.value)  # type: ignore[arg-type]
            over = value - bound if comparison.op.startswith("<") else bound - value
            trial.set_constraint(text, over if math.isfinite(over) else UNMEASURED)

    def _write(self, number: int, values: dict[str, Any], state: str, objective: Any = None, **about: Any) -> None:
        """The trial in its folder, for people and for the report."""
        value: dict[str, Any] = {"value": objective[0] if objective else None}
        if objective and len(objective) > 1:
            value = {"values": objective}
        results.write(
            self.folder / str(number) / "trial.json", {"number": number, "params": values, "state": state, **value, **about}
        )

    def _write_finished(self, trial: FrozenTrial) -> None:
        """A trial that ended, as the study knows it."""
        about = {key: trial.user_attrs.get(key) for key in (REASON, *ABOUT)}
        self._write(trial.number, self.space.active(trial.params), messages.STATES[trial.state], trial.values, **about)

    def _write_missed(self) -> None:
        """What the study knows and a folder does not: a kill came in between."""
        for trial in own(self.study.get_trials(deepcopy=False)):
            if trial.state.is_finished() and not results.is_told(self.folder / str(trial.number)):
                self._write_finished(trial)

    def _check_failures(self) -> None:
        failed = [t for t in own(self.study.get_trials(deepcopy=False)) if t.state == TrialState.FAIL]
        if len(failed) >= self.options.max_failures:
            raise RunError(
                f"{len(failed)} trials of the sweep failed, sweep.max_failures={self.options.max_failures}; the last: "
                f"{failed[-1].user_attrs.get(REASON, 'no reason known')}. What is done is kept in {self.folder}"
            )
