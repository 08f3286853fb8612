"""A sweep's own run in W&B: its trials, the best one, and what mattered."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from typing import Any

import optuna

from grpo_exp.sweep import results
from grpo_exp.sweep.loop import Sweep
from grpo_exp.sweep.study import own
from grpo_exp.sweep.trial import read_plan
from grpo_exp.track import TrackOptions
from grpo_exp.track.sweep import summarize


def send(mine: Sweep, options: TrackOptions, say: Callable[[str], None]) -> None:
    """Send it, or keep it for `wandb sync`; a sweep of one trial has nothing to compare and is left out."""
    finished = [t for t in own(mine.study.get_trials(deepcopy=False)) if t.state.is_finished()]
    if options.wandb == "off" or len(finished) < 2:
        return
    trials = [json.loads((mine.folder / str(t.number) / "trial.json").read_text(encoding="utf-8")) for t in finished]
    best = results.best(mine.study) if len(mine.metrics) == 1 else None
    told = None if best is None else next(trial for trial in trials if trial["number"] == best.number)
    own_group = dataclasses.replace(options, group=options.group or mine.folder.name)
    where = summarize(mine.folder, own_group, read_plan(mine.folder), trials, told, importance(mine.study), say)
    if line := where.get("url") or where.get("sync"):
        say(f"the sweep in W&B: {line}")


def importance(study: optuna.Study) -> dict[str, Any]:
    """Share of what sets the best trials apart, by searched key (PED-ANOVA, arXiv 2304.10255); none below four trials."""
    done = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len(study.directions) > 1 or len(done) < 4:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            return dict(optuna.importance.get_param_importances(study))
        except (ValueError, RuntimeError):  # nothing varied, or all values are equal
            return {}
