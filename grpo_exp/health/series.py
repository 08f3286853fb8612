"""What detectors read off curves: joined metrics, stretches, where something began, whether the task is solved. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

from grpo_exp.health.course import Course
from grpo_exp.health.reading import right_share

Points = list[tuple[int, float]]
"""(step, value), oldest first."""
Middle = Callable[[Sequence[float]], float]


def points(course: Course, name: str) -> Points:
    """A training metric as it is kept; empty where there is none."""
    return course.train.get(name) or []


def joined(course: Course, names: Sequence[str], together: Callable[..., float]) -> Points:
    """A value out of several metrics, at the steps that have them all."""
    first, *rest = (dict(points(course, name)) for name in names)
    there = [step for step in first if all(step in other for other in rest)]
    return [(step, together(first[step], *(other[step] for other in rest))) for step in there]


def values(series: Points) -> list[float]:
    return [value for _, value in series]


def began(series: Points, window: int, holds: Callable[[float], bool], middle: Middle = statistics.fmean) -> int:
    """The step at which a trouble began that is told by the middle of a window: the first value for which it holds, in the
    earliest of the unbroken row of windows up to now in whose middle it holds."""
    start = max(0, len(series) - window)
    while start > 0 and holds(middle(values(series[start - 1 : start - 1 + window]))):
        start -= 1
    return next((step for step, value in series[start:] if holds(value)), series[start][0])


def stretches(numbers: Sequence[float], count: int) -> list[float]:
    """Means of so many stretches of equal length, in order; there must be as many numbers."""
    edges = [round(index * len(numbers) / count) for index in range(count + 1)]
    return [statistics.fmean(numbers[low:high]) for low, high in pairwise(edges)]


def falling(numbers: Sequence[float]) -> float:
    """Share of the pairs of numbers whose later one is smaller: 1 where each is below all before it, 0.5 where there is no
    trend (Kendall's tau, brought to 0 to 1)."""
    pairs = [(early, late) for index, early in enumerate(numbers) for late in numbers[index + 1 :]]
    return sum(late < early for early, late in pairs) / len(pairs)


def newest_right(course: Course, steps: int = 4) -> float | None:
    """Share of right samples: by their outcomes in the newest steps; without samples, the share of groups that are all right,
    which is less, or the newest `eval/pass@1`; None where nothing tells."""
    if (share := right_share(course.newest_rows(steps))) is not None:
        return share
    if groups := points(course, "reward/all_right_frac")[-steps:]:
        return statistics.fmean(values(groups))
    evaluations = course.evals.get("eval/pass@1")
    return evaluations[-1][1] if evaluations else None


def solves(course: Course, right: float) -> bool:
    """Whether so large a share of samples is right, so that little is left to learn; False where nothing tells."""
    share = newest_right(course)
    return share is not None and share >= right


def optimizer_steps(course: Course) -> int | None:
    """Optimizer steps on each rollout; None where the configuration does not tell."""
    passes, parts = course.option("algo.updates_per_rollout"), course.option("algo.minibatch_count")
    return int(passes) * int(parts) if passes and parts else None


def quiet_steps(course: Course) -> int:
    """First steps in which the policy hardly moves by intention: warm-up of the rate, and those of the critic alone."""
    return int(course.option("optim.warmup_steps") or 0) + int(course.option("algo.critic.warmup_steps") or 0)
