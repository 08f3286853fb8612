"""Sweeps whose jobs take no time: a launcher that writes what a run would leave behind, and reports as a run would.

Run as a program it is a sweep of its own process, to be killed: `python fake_jobs.py FOLDER N_TRIALS SECONDS [TROUBLE]`.
TROUBLE is `die=NUMBER`, whose trial kills its process, `input`, where every job raises an InputError, `crash`, `workers=N`,
or `together=N`, whose first job waits until so many processes have begun one.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna

from grpo_exp.errors import DataError, GrpoError, Pruned
from grpo_exp.sweep import choices, results, workers
from grpo_exp.sweep.loop import Sweep
from grpo_exp.sweep.options import SearchOptions, SweepOptions
from grpo_exp.sweep.space import Space
from grpo_exp.sweep.study import open_study, storage
from grpo_exp.sweep.trial import PLAN_FILE, Reporter

STEPS = 4
Objective = Callable[[dict[str, Any], int], float]


def quality(values: dict[str, Any], seed: int) -> float:
    """Best at beta 0.01, a little better with more G, and a little different for each seed."""
    return 1 - abs(math.log10(float(values.get("beta", 0.01))) + 2) / 4 + int(values.get("G", 4)) / 1000 + seed / 10_000


def options(**changes: Any) -> SweepOptions:
    values: dict[str, Any] = {"seeds": None, "aggregate": "mean", "workers": 1, "retries": 1, "max_failures": 10, "join": False}
    return SweepOptions(**(values | changes))


def search(**changes: Any) -> SearchOptions:
    values: dict[str, Any] = {
        "params": {},
        "n_trials": None,
        "direction": None,
        "metrics": None,
        "constraints": [],
        "conditions": {},
        "enqueue": [],
        "from_sweep": None,
        "storage": None,
        "study_name": None,
        "n_jobs": 1,
        "sampler": {"name": "tpe", "seed": 0, "n_startup_trials": 3},
        "pruner": {"name": "none"},
    }
    merged = values | changes
    points = merged.pop("enqueue")
    made = SearchOptions(**merged)
    made.enqueue = points
    return made


class Jobs:
    """The launcher. It keeps what it was given, and may be told to misbehave on some calls."""

    def __init__(self, folder: Path, objective: Objective = quality, seconds: float = 0.0) -> None:
        self.folder, self.objective, self.seconds = folder, objective, seconds
        self.calls: list[list[str]] = []
        self.misbehave: dict[int, Callable[[Path], Exception | None]] = {}

    def __call__(self, jobs: Sequence[Sequence[str]], number: int) -> list[Exception | None]:
        return [self.one(list(words)) for words in jobs]

    def one(self, words: list[str]) -> Exception | None:
        self.calls.append(words)
        values = dict(word.split("=", 1) for word in words)
        folder = self.folder / values.pop("hydra.sweep.subdir")
        number, seed = int(values.pop("hydra.sweeper.trial")), int(values.get("seed", 0))
        folder.mkdir(parents=True, exist_ok=True)
        if "finished" in (folder / "run.json").read_text() if (folder / "run.json").exists() else False:
            return None  # as a real run: nothing to do
        results.write(folder / "run.json", {"status": "running"})
        if (trouble := self.misbehave.get(len(self.calls))) is not None:
            return trouble(folder)
        time.sleep(self.seconds)
        value = self.objective(values, seed)
        card: dict[str, Any] = {"status": "finished", "objective": value, "tokens": 10, "wall_seconds": 0.5}
        report = Reporter(self.folder, number, seed, STEPS)
        rows = []
        for step in range(STEPS + 1):
            rows.append({"kind": "train", "step": step, "kl/median": value})
            rows.append({"kind": "eval", "step": step, "eval/pass@1": value * step / STEPS, "eval/length": 10 * value})
            try:
                report(step, value * step / STEPS)
            except Pruned as error:
                card |= {"status": "pruned", "objective": error.objective, "reason": str(error)}
                break
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        results.write(folder / "run.json", card)
        return None


def sweep(
    folder: Path,
    words: Sequence[str] = ("beta=tag(log,interval(0.0001,1))", "G=choice(2,4,8)"),
    *,
    jobs: Jobs | None = None,
    grid: bool = False,
    how: SweepOptions | None = None,
    say: Callable[[str], None] = lambda text: None,
    **changes: Any,
) -> Sweep:
    """A sweep in this folder, its jobs fake."""
    wanted, made = search(**changes), how or options()
    folder.mkdir(parents=True, exist_ok=True)
    space = Space.read(words, wanted.params, wanted.conditions)
    metrics = wanted.metrics or ["eval/pass@1"]
    directions = wanted.direction if isinstance(wanted.direction, list) else [wanted.direction or "maximize"]
    plan = {"space": space.described(), "metrics": metrics, "directions": directions, "seeds": made.seeds}
    study = open_study(folder, wanted.storage, "fake", directions, choices.pruner(wanted.pruner), plan)
    for point in wanted.enqueue:
        study.enqueue_trial(point, skip_if_exists=True)
    about = {**plan, "aggregate": made.aggregate, "pruner": wanted.pruner, "study_name": "fake", "storage": wanted.storage}
    results.write(folder / PLAN_FILE, about)
    return Sweep(folder, study, space, wanted, made, grid, metrics, jobs or Jobs(folder), say)


def table(folder: Path) -> list[tuple[Any, ...]]:
    """What a sweep came to: number, values, state and objective of each trial, from the study."""
    study = optuna.load_study(study_name="fake", storage=storage(folder, None))
    return [(t.number, dict(t.params), t.state.name, t.value) for t in study.get_trials(deepcopy=False)]


class Troubled(Jobs):
    """Jobs as TROUBLE wants them."""

    def __init__(self, folder: Path, seconds: float, trouble: str) -> None:
        super().__init__(folder, seconds=seconds)
        self.trouble = trouble

    def one(self, words: list[str]) -> Exception | None:
        if self.trouble == "input":
            return DataError("data.file=x.jsonl: no such file")
        if self.trouble == "crash":
            raise KeyboardInterrupt("as an error of the program, it passes every handler")
        if self.trouble.startswith("together="):
            self.meet(int(self.trouble.partition("=")[2]))
        if f"hydra.sweeper.trial={self.trouble.removeprefix('die=')}" in words:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().one(words)

    def meet(self, count: int, seconds: float = 60) -> None:
        (self.folder / f".began-{os.getpid()}").touch()
        end = time.monotonic() + seconds
        while len(list(self.folder.glob(".began-*"))) < count and time.monotonic() < end:
            time.sleep(0.01)


def main(where: Path, trials: int, pause: float, trouble: str = "") -> int:
    """As grpo_exp.__main__ does with errors."""
    made = sweep(where, jobs=Troubled(where, pause, trouble), n_trials=trials, how=options(seeds=[0, 1]), say=_say)
    try:
        if trouble.startswith("workers="):
            workers.run(made, int(trouble.partition("=")[2]), [sys.executable, __file__, *sys.argv[1:4]])
        else:
            made.run()
    except GrpoError as error:
        sys.stderr.write(f"grpo_exp: {error}\n")
        return error.exit_code
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:]))
