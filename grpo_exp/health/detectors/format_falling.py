"""The asked form is lost, or never learned."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen, shown
from grpo_exp.health.course import Course
from grpo_exp.health.reading import RIGHT_ABOVE, best_window, first_step, mean_of, percent, scaled
from grpo_exp.options import option

PART = "reward/part/format"


@dataclass
class FormatFalling(Detector):
    """The share of samples in the asked form falls from its best, or is still low after many steps.

    A form that is lost is often the first sign that a policy breaks: it shows before the reward falls where the outcome is read
    in other forms too. One that is never found cannot be learned either, since no sample is paid for it: a few worked examples
    (algo=sft) teach it in minutes. A rate that is still low and rising is left alone.
    """

    drop: float = option("fall of the rate below its best, from where on it is told", above=0, high=1)
    floor: float = option("a rate that has never been above this is not being learned", low=0, high=1)
    patience: int = option("training steps that it has for that", low=1)
    window: int = option("training steps that are looked at together", low=2)

    title = "the format is not kept"
    metric = "format/rate"
    needs = ("format/rate",)

    def look(self, course: Course) -> Seen | None:
        now = mean_of(course, "format/rate", self.window)
        if now is None:
            return None
        values = course.train["format/rate"]
        at, best = best_window(values, self.window)
        missing = [row for row in course.newest_rows() if (row.get(PART) or 0.0) <= RIGHT_ABOVE]
        weight = scaled(course, "reward.parts.format.weight", 3)
        told = {"format/rate": now, "best": best}
        if best - now >= self.drop:
            return Seen(
                since=course.since("format/rate", lambda x: x < best - self.drop / 2),
                text=f"{percent(now)} of the samples keep the asked form, after {percent(best)} up to step {at}",
                why="the form is worth too little beside the other parts, or the policy is breaking: see KL and samples",
                values=told,
                tries=[*weight, *scaled(course, "lr", 1 / 3), *scaled(course, "beta", 3)],
                samples=shown(missing),
            )
        start = statistics.fmean(value for _, value in values[: self.window])
        if len(values) < self.patience or best > self.floor or now > start + self.floor / 2:
            return None
        return Seen(
            since=first_step(course, "format/rate"),
            text=f"after {len(values)} steps {percent(now)} of the samples keep the asked form, at best {percent(best)} did",
            why="hardly a sample keeps the form by chance, so that there is none to learn from; or no prompt asks for it",
            values=told,
            tries=["algo=sft", *weight],
            samples=shown(missing),
        )
