"""What people are told of a sweep while it goes on: which trial of how many, how it ended, the best so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from grpo_exp.sweep import results
from grpo_exp.sweep.options import SearchOptions
from grpo_exp.sweep.space import Space
from grpo_exp.sweep.study import REASON, own

STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "fail"}


def headline(study: optuna.Study, space: Space, search: SearchOptions, grid: bool, number: int, values: dict[str, Any]) -> str:
    """`trial 3 (4 of 12): beta=0.01 G=4`."""
    place = sum(t.number <= number for t in own(study.get_trials(deepcopy=False)))
    wanted = [n for n in (search.n_trials, sum(1 for _ in space.points()) if grid else space.size) if n is not None]
    of = f" of {max(min(wanted), place)}" if wanted else ""
    return f"trial {number} ({place}{of}): {' '.join(space.words(values)) or 'nothing varied'}"


def verdict(study: optuna.Study, trial: FrozenTrial, metrics: Sequence[str]) -> str:
    """`trial 3: eval/pass@1 0.71; best so far 0.74 (trial 1)`, or why there is no value."""
    reason = str(trial.user_attrs.get(REASON, "no reason known"))
    if trial.state == TrialState.COMPLETE:
        told = ": " + ", ".join(f"{m} {v:.4g}" for m, v in zip(metrics, trial.values, strict=True))
        told += "".join(f", oversteps {key}" for key, over in getattr(trial, "constraints", {}).items() if over > 0)
    elif trial.state == TrialState.PRUNED:
        told = f" {reason}" if reason.startswith("pruned") else f" pruned: {reason}"
    else:
        told = f" failed: {reason}"
    return f"trial {trial.number}{told}{_best(study, metrics)}"


def _best(study: optuna.Study, metrics: Sequence[str]) -> str:
    if len(metrics) > 1:
        return ""
    best = results.best(study)
    if best is not None:
        return f"; best so far {best.value:.4g} (trial {best.number})"
    complete = any(t.state == TrialState.COMPLETE for t in own(study.get_trials(deepcopy=False)))
    return "; none keeps to its constraints so far" if complete else ""
