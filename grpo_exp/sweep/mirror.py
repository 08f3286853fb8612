"""A sweep's own run in W&B: its trials, the best one, and what mattered."""

from __future__ import annotations

import json
from collections.abc import Callable

from grpo_exp.sweep import results
from grpo_exp.sweep.loop import Sweep
from grpo_exp.sweep.study import importance, own
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
    shares = {} if len(mine.metrics) > 1 else dict(importance(mine.study))
    where = summarize(mine.folder, options, read_plan(mine.folder), trials, told, shares, say)
    if line := where.get("url") or where.get("sync"):
        say(f"the sweep in W&B: {line}")
