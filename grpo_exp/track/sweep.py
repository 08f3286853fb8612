"""A sweep as a W&B run of its own, beside its trials: one row a trial, the best one and what mattered in the summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_exp.track.base import Row, TrackOptions, Warn
from grpo_exp.track.wandb import WandbTracker


def summarize(
    folder: Path,
    options: TrackOptions,
    plan: Row,
    trials: Sequence[Row],
    best: Row | None,
    importance: Mapping[str, float],
    warn: Warn,
) -> Row:
    """Send a sweep to W&B, or keep it in its folder for `wandb sync`.

    Args:
        folder: the sweep's; its name is the group.
        options: of the runs; `group` and `job_type` are the sweep's own.
        plan: what becomes the run's config: space, metrics, sampler and so on.
        trials: number, params, state, value of each, as in trial.json.
        best: the best of them, None where there is none.
        importance: share of the objective's variance by searched key.
        warn: called with one line for a person.

    Returns:
        where the run is, as in the run card; empty with track.wandb=off.

    Raises:
        ConfigError: track.wandb=online without a login.
    """
    own = dataclasses.replace(options, group=options.group or folder.name, job_type="sweep", id=None, sample_rows_kept=0)
    tracker = WandbTracker(own, folder, warn)
    card: dict[str, Any] = {"name": f"{folder.name} (sweep)", "goal": {"metric": plan.get("metrics")}}
    tracker.start(card, plan)
    for trial in trials:
        values = trial.get("values") or ([] if trial.get("value") is None else [trial["value"]])
        told = {f"value/{metric}": value for metric, value in zip(plan["metrics"], values, strict=False)}
        tracker.metrics({"step": trial["number"], "state": trial["state"], **trial["params"], **told})
    found = {f"importance/{key}": share for key, share in importance.items()}
    if best is not None:
        found |= {"best/trial": best["number"], "best/value": best["value"]}
        found |= {f"best/{key}": value for key, value in best["params"].items()}
    tracker.summarize(found)
    tracker.finish({**card, "status": "finished", "objective": None if best is None else best["value"]})
    where: Row = card.get("wandb") or {}
    return where
