"""What a job of a sweep does: it tells its trial each evaluation, and ends when it is pruned. Whoever launched it, and where.

All it needs is in the sweep's folder: `sweep.json` says where the study is and which pruner judges.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import optuna
from optuna.trial import Trial

from grpo_exp.errors import DataError, Pruned
from grpo_exp.stats import iqm
from grpo_exp.sweep.choices import pruner
from grpo_exp.sweep.study import load_study
from grpo_exp.track.files import read_object
from grpo_exp.track.wording import is_number

PLAN_FILE = "sweep.json"
PLAN: dict[str, Any] = {
    "aggregate": str,
    "study_name": str,
    "metrics": list,
    "pruner": dict,
    "seeds": (list, NoneType),
    "storage": (str, NoneType),
}
"""What a trial needs to know of its sweep."""


def read_plan(folder: Path) -> dict[str, Any]:
    """The sweep's own description.

    Raises:
        DataError: it is not there or cannot be read.
    """
    plan = read_object(folder / PLAN_FILE)
    missing = [key for key, kind in PLAN.items() if not isinstance(plan.get(key, ...), kind)]
    if missing:
        raise DataError(f"{folder / PLAN_FILE}: no {', '.join(missing)}, or of another kind; give the sweep's command again")
    return plan


def aggregate(values: list[float], how: str) -> float:
    """One number for the seeds' objectives: their mean, or the mean of their middle half (the interquartile mean)."""
    return float(iqm(np.asarray(values)) if how == "iqm" else np.mean(values))


class Reporter:
    """The hook of a run that belongs to a trial; called with (step, objective) after each evaluation.

    A trial of several seeds trains one after the other. Its step counts on through them, and what it reports is the mean of
    the seeds done and of the one that runs, so that it can be stopped in the middle of a seed or after any. The signed-rank
    test compares seed by seed instead: there each seed is one report.
    """

    def __init__(self, sweep: Path, number: int, seed: int, steps: int, storage: str | None = None) -> None:
        """`storage` is where the study is, which sweep.json says without a password in it."""
        plan = read_plan(sweep)
        plan["storage"] = storage or plan["storage"]
        self.steps, self.how = steps, plan["aggregate"]
        self.seeds: list[int] = plan["seeds"] or [seed]
        if seed not in self.seeds:
            raise DataError(f"{sweep / PLAN_FILE}: its seeds are {self.seeds}, without {seed}; give the sweep's command again")
        self.place = self.seeds.index(seed)
        self.silent = len(plan["metrics"]) > 1 or plan["pruner"].get("name") == "none"
        self.by_seed = plan["pruner"].get("name") == "wilcoxon"
        self.done = [_objective(sweep / str(number) / f"seed-{s}") for s in self.seeds[: self.place]]
        if self.silent:
            return
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = load_study(sweep, plan, pruner(plan["pruner"]))
        self.trial = Trial(study, study._storage.get_trial_id_from_study_id_trial_number(study._study_id, number))

    def __call__(self, step: int, objective: float) -> None:
        """Report.

        Raises:
            Pruned: the trial is not worth going on with.
        """
        if self.silent or step == 0 or math.isnan(objective):  # before the first step all trials are the same
            return
        if self.by_seed:
            if step < self.steps:
                return
            told, value = self.place, objective
        else:
            told, value = self.place * self.steps + step, aggregate([*self.done, objective], self.how)
        known = self.trial.storage.get_trial(self.trial._trial_id).intermediate_values
        if math.isnan(value) or told < max(known, default=0):  # a run that goes on from its checkpoint was judged there before
            return
        if told not in known:
            self.trial.report(value, told)
        last = self.place + 1 == len(self.seeds) and step >= self.steps
        if not last and self.trial.should_prune():
            where = f"step {step}" + (f" of seed {self.seeds[self.place]}" if len(self.seeds) > 1 else "")
            raise Pruned(objective, f"pruned at {where} with {objective:.4g}")


def _objective(folder: Path) -> float:
    """What an earlier seed came to; NaN where that was no number."""
    objective = read_object(folder / "run.json").get("objective")
    return float(objective) if is_number(objective) else math.nan
