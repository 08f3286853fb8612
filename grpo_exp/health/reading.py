"""What detectors read off the samples of a run, and how they say it. Without torch, so that a report may look too."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from grpo_exp.health.course import Course
from grpo_exp.track.base import Row

RIGHT_ABOVE = 0.5
"""As metrics.RIGHT_ABOVE, which needs torch."""


def right(row: Row) -> bool:
    """Whether a sample counts as right."""
    return float(row.get("outcome") or 0.0) > RIGHT_ABOVE


def right_share(rows: Sequence[Row]) -> float | None:
    """Share of samples that are right; None where there are none, or none says so."""
    told = [right(row) for row in rows if "outcome" in row]
    return statistics.fmean(told) if told else None


def rows_of(steps: Iterable[tuple[int, list[Row]]]) -> list[Row]:
    """The samples of several steps."""
    return [row for _, rows in steps for row in rows]


def numbers(rows: Sequence[Row], name: str) -> list[float]:
    """The values of a field, of the rows in which it is a number."""
    return [float(row[name]) for row in rows if isinstance(row.get(name), (int, float))]


def correlation(rows: Sequence[Row], one: str, other: str) -> float | None:
    """Pearson's correlation of two fields over samples; None with fewer than 8 or where one of the two never varies."""
    pairs = [(row[one], row[other]) for row in rows if isinstance(row.get(one), (int, float)) and row.get(other) is not None]
    if len(pairs) < 8:
        return None
    try:
        return statistics.correlation(*zip(*pairs, strict=True))
    except statistics.StatisticsError:
        return None


def paid_by_length(rows: Sequence[Row]) -> float | None:
    """Correlation of length and reward among wrong samples, where nothing but length and form can earn it; None if unknown."""
    return correlation([row for row in rows if "outcome" in row and not right(row)], "length", "total")


def mean_of(course: Course, name: str, window: int) -> float | None:
    """Mean of the newest values of a training metric, None while there are fewer than `window`."""
    values = course.window(name, window)
    return statistics.fmean(values) if values else None


def first_step(course: Course, name: str) -> int:
    """The first step that a training metric is known of."""
    return course.train[name][0][0]


def best_window(values: Sequence[tuple[int, float]], count: int) -> tuple[int, float]:
    """The highest mean of `count` neighbouring values, and the step that they end at."""
    total = sum(value for _, value in values[:count])
    best = (values[count - 1][0], total / count)
    for (_, old), (step, new) in zip(values, values[count:], strict=False):
        total += new - old
        if total / count > best[1] + 1e-12:
            best = (step, total / count)
    return best


def outcome_part(course: Course) -> str | None:
    """The name of the part that says right or wrong; None where it is not known."""
    parts = course.option("reward.parts") or {}
    return next((name for name, part in parts.items() if isinstance(part, dict) and part.get("role") == "outcome"), None)


NOT_AHEAD = ("experience.dynamic_sampling", "experience.skip_visits")
"""Options that a run with hardware.overlap=1 refuses."""


def unless(course: Course, key: str, value: str) -> list[str]:
    """`key=value` as an override to try, if the run takes that option and has another value, or its options are not known."""
    if not course.config:
        return [f"{key}={value}"]
    if key in NOT_AHEAD and course.option("hardware.overlap"):
        return []
    now = course.option(key)
    word = str(now).lower() if isinstance(now, bool) else str(now)
    return [] if now is None or word == value else [f"{key}={value}"]


def scaled(course: Course, key: str, factor: float, whole: bool = False) -> list[str]:
    """The option times a factor, as an override to try; none where the run has no such option or it is 0 there."""
    return [course.scaled(key, factor, whole)] if not course.config or course.option(key) else []


def percent(share: float) -> str:
    """A share for people."""
    return f"{100 * share:.0f} %" if share in (0.0, 1.0) or 0.01 <= share <= 0.99 else f"{100 * share:.1f} %"


def said(course: Course, rows: Sequence[Row], holds: Callable[[Row], bool] | None = None, count: int = 3) -> list[Row]:
    """Samples to show, those first of which `holds` is true, with what the reward read in each where that is at hand."""
    ordered = sorted(rows, key=lambda row: not holds(row)) if holds else list(rows)
    return [{**row, "said": course.explain(row)} if course.explain else row for row in ordered[:count]]
