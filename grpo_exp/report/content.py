"""What a report shows, as one object of plain numbers and texts; the page and the pictures draw it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from grpo_exp import __version__
from grpo_exp.report import course, study
from grpo_exp.report.compare import Comparison
from grpo_exp.report.groups import groups, written
from grpo_exp.report.lines import Row, last_step
from grpo_exp.report.runs import Run, number
from grpo_exp.report.standing import Standing, value
from grpo_exp.track import wording

FINAL = ("reward/mean", "reward/group_std", "kl/mean", "kl/k3", "length/mean", "entropy/mean", "dpo/accuracy", "eval/pass@1")
"""What is shown of each run as one number besides its objective: of training, the median of the last ten steps."""
SAMPLES = 8  # shown of each side
FINDINGS = 300  # over all runs
TEXT = 1200  # characters kept of a prompt or a completion
LABEL = 300
DIFFERENCES = 200  # keys
VALUES = 12  # of a key, the most common ones


def content(result: Comparison) -> dict[str, Any]:
    """All of it, of runs in whatever state."""
    runs, by = result.runs, result.by
    varied = [_varied(runs, key) for key in by]
    shown = [_run(index, run, by, result.metric) for index, run in enumerate(runs)]
    metrics = course.add(shown, runs)
    studies = study.studies(runs)
    return {
        "title": _title(runs),
        "made": time.strftime("made on %Y-%m-%d at %H:%M"),
        "footer": f"grpo_exp {__version__}. Curves are means over neighbouring steps where there are more than can be shown; "
        "metrics.jsonl in a run's folder has all. This file needs no network.",
        "objective": {"metric": result.metric, "maximize": result.maximize},
        "varied": varied,
        "configurations": len(groups(runs, by)),
        "runs": shown,
        "metrics": metrics,
        "shares": [name for name in dict.fromkeys((*metrics, *FINAL, result.metric)) if wording.is_share(name)],
        "sentences": [_cut(text, TEXT) for text in result.sentences],
        "command": result.command,
        "table": _table(result),
        "studies": studies,
        "effects": [] if studies else _effects(shown, by),
        "findings": _findings(runs),
        "samples": _samples(result),
        "differences": _differences(runs),
    }


def _title(runs: Sequence[Run]) -> str:
    sweeps = list(dict.fromkeys(run.sweep for run in runs if run.sweep is not None))
    if len(runs) == 1:
        return _cut(str(runs[0].card.get("name") or runs[0].label), LABEL)
    return _cut(", ".join(sweeps), LABEL) if sweeps else f"{len(runs)} runs"


def _varied(runs: Sequence[Run], key: str) -> dict[str, Any]:
    """A key with its values, numbers in their order; `log` where they spread over more than a factor of 5."""
    values = [value for run in runs if run.config and (value := run.config.get(key)) is not None]
    numbers = sorted({x for value in values if (x := number(value)) is not None})
    if numbers and all(number(value) is not None for value in values):
        return {"key": key, "kind": "number", "values": numbers, "log": numbers[0] > 0 and numbers[-1] > 5 * numbers[0]}
    texts = sorted({_cut(written(value), LABEL) for value in values})
    return {"key": key, "kind": "category", "values": texts, "log": False}


def _run(index: int, run: Run, by: Sequence[str], metric: str) -> dict[str, Any]:
    final = {name: late for name in FINAL if (late := run.late(name)) is not None}
    final |= {name: interval.value for name, interval in run.after.items() if name in FINAL or name == "eval/length"}
    return {
        "index": index,
        "label": _cut(run.label, LABEL),
        "status": run.status,
        "reason": _cut(run.reason, TEXT) if run.reason else None,
        "seed": run.seed,
        "params": {key: _param(run.config[key]) for key in by if key in run.config},
        "objective": value(run, metric),
        "final": final,
        "steps": run.steps,
        "tokens": run.tokens,
        "seconds": run.seconds,
    }


def _table(result: Comparison) -> list[dict[str, Any]]:
    rows = []
    for rank, standing in enumerate(result.ranked, start=1):
        interval = standing.interval
        final = standing.final and interval is not None
        rows.append(
            {
                "rank": rank if final else None,
                "label": _cut(standing.group.label, LABEL),
                "values": {key: _param(value) for key, value in standing.group.values.items()},
                "runs": standing.seeds,
                "value": interval.value if interval else None,
                "low": interval.low if interval else None,
                "high": interval.high if interval else None,
                "kl": standing.kl,
                "length": standing.length,
                "tokens": standing.tokens,
                "seconds": standing.seconds,
                "status": standing.status,
                "verdict": _verdict(standing),
            }
        )
    return rows


def _verdict(standing: Standing) -> str:
    """In a word; the sentences say it with numbers."""
    if standing.versus is None:
        return ""
    return "worse" if standing.versus.real else "cannot be told apart"


def _effects(shown: Sequence[dict[str, Any]], by: Sequence[str]) -> list[tuple[str, float]]:
    """Main effects: for each key the difference between the highest and the lowest mean objective of its values."""
    effects = []
    for key in by:
        found: dict[str, list[float]] = {}
        for run in shown:
            if run["status"] == "finished" and run["objective"] is not None and key in run["params"]:
                found.setdefault(str(run["params"][key]), []).append(run["objective"])
        means = [fmean(values) for values in found.values()]
        if len(means) > 1:
            effects.append((key, max(means) - min(means)))
    return effects


def _findings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What health checks found in the runs, `run` being the index of each."""
    found = [(index, run, row) for index, run in enumerate(runs) for row in run.findings]
    return [
        {
            "run": index,
            "label": _cut(run.label, LABEL),
            "title": _cut(row["title"], LABEL),
            "since": number(row["since"]),
            "step": number(row.get("step")),
            "metric": _cut(str(row.get("metric", "")), LABEL),
            "text": _cut(f"{row.get('text', '')}. {row.get('why', '')}", TEXT),
            "tries": _cut(" or ".join(map(str, row.get("tries") or [])), LABEL),
        }
        for index, run, row in found[:FINDINGS]
    ]


def _samples(result: Comparison) -> list[dict[str, Any]]:
    """Samples of the best and of the worst configuration, the same items where both have them."""
    standings = result.final or [standing for standing in result.ranked if standing.used] or result.ranked
    chosen = [("Best", standings[0])] if standings else []
    if len(standings) > 1:
        chosen.append(("Worst", standings[-1]))
    sides = []
    for title, standing in chosen:
        run = (standing.used or standing.group.runs)[0]
        rows = last_step(run.folder / "eval.jsonl") or run.samples()
        if rows:
            sides.append((title if len(chosen) > 1 else "Samples", standing, run, rows))
    if not sides:
        return []
    common = set.intersection(*({str(row.get("id")) for row in rows} for _, _, _, rows in sides))
    return [
        {
            "title": f"{title}: {_cut(standing.group.label, LABEL)}",
            "note": f"{_cut(run.label, LABEL)}, step {_value(rows[0].get('step'))}",
            "rows": [_sample(row) for row in _pick(rows, common)],
        }
        for title, standing, run, rows in sides
    ]


def _pick(rows: Sequence[Row], ids: set[str]) -> list[Row]:
    """One sample an item, of items spread evenly over `ids` (over all where there are none)."""
    first: dict[str, Row] = {}
    for row in rows:
        if not ids or str(row.get("id")) in ids:
            first.setdefault(str(row.get("id")), row)
    items = list(first.values())
    return items[:: max(1, len(items) // SAMPLES)][:SAMPLES]


def _sample(row: Row) -> dict[str, Any]:
    outcome = number(row.get("outcome"))
    reference = row.get("reference")
    return {
        "prompt": _cut(_prompt(row.get("prompt")), TEXT),
        "completion": _cut(str(row.get("completion", "")), TEXT),
        "reference": _cut(str(reference), LABEL) if reference is not None else None,
        "right": None if outcome is None else outcome > 0.5,
        "reward": number(row.get("total")),
        "length": number(row.get("length")),
        "finished": row.get("finished"),
    }


def _prompt(prompt: Any) -> str:
    """A prompt as text; of a conversation, its turns."""
    if isinstance(prompt, list):
        return "\n".join(
            f"{turn.get('role')}: {turn.get('content')}" if isinstance(turn, dict) else str(turn) for turn in prompt
        )
    return str(prompt if prompt is not None else "")


def _differences(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every key of the configurations that differs: its values, each with how many runs have it."""
    configured = [run.config for run in runs if run.config]
    found = []
    for key in dict.fromkeys(key for config in configured for key in config):
        counts = Counter(written(config[key]) if key in config else "–" for config in configured)
        if len(counts) > 1:
            common = counts.most_common(VALUES)
            rest = sum(counts.values()) - sum(n for _, n in common)
            values = [(_cut(value, 100), n) for value, n in sorted(common, key=lambda pair: _natural(pair[0]))]
            more = [(f"… {len(counts) - len(common)} more", rest)] if rest else []
            found.append({"key": _cut(key, LABEL), "count": len(counts), "values": [*values, *more]})
    return found[:DIFFERENCES]


def _natural(text: str) -> tuple[bool, float, str]:
    """A key that sorts numbers by their size, and before words."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def _param(value: Any) -> Any:
    """A value that was varied: a number, None, or what one would type."""
    return value if value is None or number(value) is not None else _cut(written(value), LABEL)


def _value(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float)) or value is None else _cut(str(value), LABEL)


def _cut(text: str, most: int) -> str:
    """At most `most` characters on their lines; control characters, also those that turn the direction, as their escapes."""
    return wording.lines(wording.cut(text, most))
