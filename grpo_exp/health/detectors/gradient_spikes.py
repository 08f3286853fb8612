"""Gradients many times their usual size, again and again."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen
from grpo_exp.health.course import Course
from grpo_exp.health.series import Points, points, values
from grpo_exp.options import option


@dataclass
class GradientSpikes(Detector):
    """The gradient's norm is many times its running median, more than once in a window.

    A single spike is common: one rare token of small probability does it, and clipping by the norm (arXiv 1211.5063) takes
    care of it. Several in short time come before runs that diverge. A run that has nearly converged has small gradients, above
    which each group that still has contrast stands out: so a spike must stand out from the run's first norms as well.
    """

    factor: float = option("a norm of so many times the running median, and the median of the first steps, is a spike", above=1)
    times: int = option("spikes within a window that are too many", low=1)
    window: int = option("training steps in which spikes are counted", low=2)
    memory: int = option("training steps before a norm whose median it is compared with, and first steps likewise", low=4)

    title = "the gradient spikes"
    metric = "grad/norm"
    needs = ("grad/norm",)

    def look(self, course: Course) -> Seen | None:
        norms = points(course, "grad/norm")
        if len(norms) <= self.memory:
            return None
        spikes = self.spikes(norms)
        if len(spikes) < self.times or spikes[-1][0] != norms[-1][0]:  # told at a spike, not afterwards
            return None
        usual = statistics.median(values(norms[-self.memory - 1 : -1]))
        most = max(values(spikes))
        clip = course.option("optim.clip_grad")
        return Seen(
            since=spikes[0][0],
            text=f"{len(spikes)} norms of the last {self.window} spike, up to {most:.3g}, not {usual:.3g}",
            why="single samples pull far harder than the rest: the rate is high for so few prompts, or advantages are uneven"
            + ("" if clip is None or clip > 0 else ", and no clipping bounds the step"),
            values={"grad/norm": most, "usual": usual, "spikes": float(len(spikes))},
            tries=[course.scaled("lr", 0.5), self._clip(clip), course.scaled("prompts_per_step", 2, whole=True)],
        )

    def spikes(self, norms: Points) -> Points:
        """The spikes among the newest `window` norms."""
        first = statistics.median(values(norms[: self.memory]))
        found = []
        for index in range(max(self.memory, len(norms) - self.window), len(norms)):
            step, norm = norms[index]
            before = statistics.median(values(norms[index - self.memory : index]))
            if norm > self.factor * max(before, first):
                found.append((step, norm))
        return found

    def _clip(self, clip: float | None) -> str:
        return f"optim.clip_grad={clip / 2:g}" if clip else "optim.clip_grad=1.0"
