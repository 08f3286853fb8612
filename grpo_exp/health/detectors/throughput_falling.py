"""Steps get slower and slower."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen
from grpo_exp.health.course import Course
from grpo_exp.health.series import Points, began, joined, points
from grpo_exp.options import option

FIRST = 2
"""First steps that are passed over: compilers, caches and memory are not warm."""
PARTS = {"rollout": "sampling", "reward": "scoring", "logp": "log-probs", "update": "updates"}


@dataclass
class ThroughputFalling(Detector):
    """A token takes many times as long as it did, and so does a step.

    Both must hold. Shorter completions cost more a token, since a step has a fixed part: then the step takes no longer. Longer
    ones make a step slower, and a token too, by no more than they grew, since attention reads what was written so far. Medians
    of stretches that are long in steps and in seconds leave out a machine that is busy with something else for a moment.
    """

    factor: float = option("time a token, and time a step, over those of the first steps, that are a fall", above=1)
    window: int = option("training steps that are looked at together, at least", low=2)
    seconds: float = option("seconds that these must have taken, so that a busy moment is none", low=0)

    title = "throughput falls"
    metric = "throughput/tokens_per_s"
    needs = ("throughput/tokens_per_s", "time/total", "length/mean")

    def look(self, course: Course) -> Seen | None:
        times = points(course, "time/total")[FIRST:]
        first, newest = self._long(times), self._long(times[::-1])
        if first is None or newest is None or first + newest > len(times):
            return None
        early, late = (times[0][0], times[first - 1][0]), (times[-newest][0], times[-1][0])
        token = joined(course, self.needs[:1], lambda rate: 1 / max(rate, 1e-9))
        slower = self._over(token, early, late)
        step = self._over(times, early, late)
        longer = max(1.0, *(self._over(points(course, name), early, late) for name in ("length/mean", "length/p95")))
        if slower < self.factor * longer or step < self.factor:
            return None
        base = statistics.median(self._between(token, early))
        part, share = self._slowest(course, early, late)
        return Seen(
            since=began(token, newest, lambda one: one >= self.factor * longer * base, statistics.median),
            text=f"{1 / (base * slower):.3g} tokens a second, at first {1 / base:.3g}; a step takes {step:.2g} "
            f"times as long{f', most of it {PARTS[part]}, {share:.2g} times as long' if part else ''}",
            why=self._why(part),
            values={"slower": slower, "step": step, "longer": longer, **({f"time/{part}": share} if part else {})},
            tries=self._tries(course, part),
        )

    def _long(self, times: Points) -> int | None:
        """How many steps, from the first one given on, are long enough; None where all are not."""
        taken = 0.0
        for count, (_, seconds) in enumerate(times, 1):
            taken += seconds
            if count >= self.window and taken >= self.seconds:
                return count
        return None

    def _between(self, series: Points, steps: tuple[int, int]) -> list[float]:
        return [value for step, value in series if steps[0] <= step <= steps[1]]

    def _over(self, series: Points, early: tuple[int, int], late: tuple[int, int]) -> float:
        """The median of the newest steps over that of the first; 1 where one is not known."""
        before, now = self._between(series, early), self._between(series, late)
        return statistics.median(now) / max(statistics.median(before), 1e-9) if before and now else 1.0

    def _slowest(self, course: Course, early: tuple[int, int], late: tuple[int, int]) -> tuple[str, float]:
        """The part of a step that gained most seconds, and how many times as long it takes; no name where none is known."""
        gained = {}
        for part in PARTS:
            series = points(course, f"time/{part}")
            before, now = self._between(series, early), self._between(series, late)
            if before and now:
                gained[part] = statistics.median(now) - statistics.median(before)
        part = max(gained, key=lambda one: gained[one], default="")
        return part, self._over(points(course, f"time/{part}"), early, late)

    def _why(self, part: str) -> str:
        if part == "reward":
            return "the reward waits: a service that answers slowly, answers or programs that run into their time limit"
        return "the machine is shared, throttled or short of memory, or something that grows with each step is gone through"

    def _tries(self, course: Course, part: str) -> list[str]:
        rows = {"rollout": "rollout_rows", "logp": "update_rows", "update": "update_rows"}.get(part)
        if rows is None:
            return []
        known = isinstance(course.option(f"hardware.{rows}"), int)
        return [course.scaled(f"hardware.{rows}", 0.5, whole=True) if known else f"hardware.{rows}=16"]
