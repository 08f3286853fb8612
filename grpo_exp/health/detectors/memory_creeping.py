"""Memory grows with each step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from grpo_exp.health.base import Detector, Seen
from grpo_exp.health.course import Course
from grpo_exp.health.series import points, stretches, values
from grpo_exp.options import option


@dataclass
class MemoryCreeping(Detector):
    """The most memory held so far still rises in the later half of the run, in each part of it.

    It is a maximum, so it never falls, and in a sound run it rises in a few leaps: at the first steps, the first evaluation, a
    batch of the longest completions. A leak rises all the time. Where completions grow as much, they explain it.
    """

    growth: float = option("rise over the later half of the run, as a share, that is too much", above=0)
    least: float = option("the same in GiB", above=0)
    parts: int = option("parts of the later half, in each of which it must rise", low=2)
    even: float = option("share of an equal rise that each part must have at least", above=0, high=1)
    steps: int = option("training steps that there must be", low=10)

    title = "memory grows"
    metric = "memory/peak_gib"
    needs = ("memory/peak_gib",)

    def look(self, course: Course) -> Seen | None:
        held = points(course, "memory/peak_gib")
        if len(held) < max(self.steps, 2 * (self.parts + 1)):
            return None
        later = held[len(held) // 2 :]
        start, now = later[0][1], later[-1][1]
        rise = now - start
        if rise < max(self.least, self.growth * start) or not self._steady(values(later), rise):
            return None
        if rise / start <= self._longer(course, later[0][0]):
            return None
        by_step = rise / (later[-1][0] - later[0][0])
        left = f", and {by_step * (course.steps - course.step):.3g} GiB more by the end" if course.steps else ""
        return Seen(
            since=self._since(held, by_step),
            text=f"it rose from {start:.3g} to {now:.3g} GiB since step {later[0][0]}, {1000 * by_step:.3g} GiB a 1000 steps"
            + left,
            why="something is kept with each step, such as texts in a reward, or freed memory is not given back",
            values={"memory/peak_gib": now, "half-way": start, "GiB a step": by_step},
            tries=["hardware.keep_memory=false", "track.sample_rows_kept=0", "checkpoint.every=10"],
        )

    def _steady(self, numbers: list[float], rise: float) -> bool:
        edges = [numbers[round(index * (len(numbers) - 1) / self.parts)] for index in range(self.parts + 1)]
        return all(late - early >= self.even * rise / self.parts for early, late in pairwise(edges))

    def _longer(self, course: Course, since: int) -> float:
        """By what share completions grew in the same steps; 0 where it is not known, or where they did not."""
        lengths = [value for step, value in points(course, "length/p95") if step >= since]
        if len(lengths) < 2 * self.parts:
            return 0.0
        parts = stretches(lengths, self.parts)
        whole = self.parts / (self.parts - 1)  # means of parts lie nearer to each other than the ends do
        return max(0.0, (parts[-1] / max(parts[0], 1.0) - 1) * whole)

    def _since(self, held: list[tuple[int, float]], by_step: float) -> int:
        """The earliest step from which on memory never lay above the line that it now rises by, but for one rise of a part."""
        (last, now), since = held[-1], held[-1][0]
        margin = by_step * (len(held) // 2) / self.parts
        for step, value in reversed(held):
            if abs(value - (now - by_step * (last - step))) > margin:
                break
            since = step
        return since
