"""A comparison for other programs: one line a run as CSV, everything as JSON."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from grpo_exp.report.compare import Comparison
from grpo_exp.report.groups import written
from grpo_exp.report.runs import Run
from grpo_exp.report.standing import Standing, value
from grpo_exp.stats import Interval
from grpo_exp.track.files import plain
from grpo_exp.track.wording import clean

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(comparison: Comparison) -> str:
    """One line a run: where it is, its varied values, its results. `rank` is its setting's, of the finished ones."""
    ranks = {id(run): place for place, s in enumerate(comparison.final, 1) for run in s.group.runs}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    results = ("value", "low", "high", "before", "kl", "length", "tokens", "seconds", "steps")
    keys = [f"config.{key}" if key in _RESERVED else key for key in comparison.by]
    writer.writerow([*map(_cell, ("folder", "sweep", "trial", *keys, "seed", "status", "rank", "metric", *results, "reason"))])
    for run in comparison.runs:
        values = [written(run.config[key]) if key in run.config else "" for key in comparison.by]
        after, before = (found.get(comparison.metric) for found in (run.after, run.before))
        numbers = [
            value(run, comparison.metric),
            *(after[1:] if after else (None, None)),
            before.value if before else None,
            *(run.late(name) for name in ("kl/mean", "length/mean")),
            *(run.tokens, run.seconds, run.steps),
        ]
        place = [run.folder, run.sweep, run.trial, *values, run.seed, run.status, ranks.get(id(run)), comparison.metric]
        writer.writerow([_cell(x) for x in (*place, *numbers, run.reason)])
    return out.getvalue()


_RESERVED = {"folder", "sweep", "trial", "seed", "status", "rank", "metric", "value", "low", "high", "before", "reason"}


def as_json(comparison: Comparison) -> str:
    """Everything the comparison says. Numbers that are not known are null."""
    content = {
        "metric": comparison.metric,
        "direction": "maximize" if comparison.maximize else "minimize",
        "varied": comparison.by,
        "command": comparison.command,
        "sentences": comparison.sentences,
        "pairs_corrected_for": comparison.family,
        "start": comparison.start,
        "ranked": [_standing(place, s) for place, s in enumerate(comparison.ranked, 1)],
        "failures": [{**_about(run), "reason": run.reason} for run in comparison.failures],
        "not_compared": [{"reason": part.reason, "runs": [_about(run) for run in part.runs]} for part in comparison.apart],
    }
    return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def _standing(place: int, s: Standing) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rank": place if s.final else None,
        "values": s.group.values,
        "status": s.status,
        "seeds": s.seeds,
        "value": _interval(s.interval),
        "iqm": _interval(s.iqm),
        "kl": s.kl,
        "length": s.length,
        "tokens": s.tokens,
        "seconds": s.seconds,
        "runs": [{**_about(run), "objective": run.objective} for run in s.group.runs],
        "to_best": None,
    }
    if (v := s.versus) is not None:
        found["to_best"] = {
            "best_minus_this": _interval(v.difference),
            "p": v.p,
            "p_holm": v.p_holm,
            "real": v.real,
            "compares": v.test,
            "probability_of_improvement": v.improvement,
            "seeds_needed": v.seeds,
            "items_needed": v.items,
        }
    return found


def _about(run: Run) -> dict[str, Any]:
    return {"folder": str(run.folder), "seed": run.seed, "status": run.status}


def _interval(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else dict(interval._asdict())


def _cell(x: Any) -> str:
    """A cell. Text is cleaned, and what a spreadsheet would take for a formula begins with an apostrophe."""
    if x is None:
        return ""
    if isinstance(x, (int, float)):
        return repr(x)
    text = clean(x)
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.startswith(_FORMULA) else text
    return text
