"""Samples go round in loops."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen, shown
from grpo_exp.health.course import Course
from grpo_exp.health.reading import mean_of, percent, scaled
from grpo_exp.options import option
from grpo_exp.track.base import Row

WORDS = 8


@dataclass
class Repetition(Detector):
    """The share of repeated 4-grams is high, and higher than when the run began.

    Long working repeats itself to a degree, and a base model that loops from the start is cured by training as often as not: so
    what counts is a level together with a rise over the first steps. It is what a policy falls into whose reward pays for
    length, or that has moved far from its reference (the repetition penalty of arXiv 2502.03373 is against it).
    """

    level: float = option("share of repeated 4-grams that is high", above=0, high=1)
    rise: float = option("and so much above that of the first steps", above=0, high=1)
    window: int = option("training steps that are looked at together", low=2)

    title = "samples repeat themselves"
    metric = "text/repetition"
    needs = ("text/repetition",)

    def look(self, course: Course) -> Seen | None:
        now, start = mean_of(course, "text/repetition", self.window), course.start("text/repetition", self.window)
        if now is None or start is None:
            return None
        before = statistics.fmean(start)
        if now <= self.level or now - before <= self.rise:
            return None
        middle = (before + now) / 2
        parts = course.option("reward.parts") or {}
        part = [] if "repetition" in parts else ["+reward/part@reward.parts.repetition=repetition"]
        return Seen(
            since=course.since("text/repetition", lambda x: x > middle),
            text=f"{percent(now)} of the 4-grams of a sample occurred in it before; in the first steps {percent(before)} did",
            why="the policy falls into loops: the reward pays for length or for how often something is said, or the steps are "
            "too large for what holds it to its reference",
            values={"text/repetition": now, "before": before},
            tries=[*part, *scaled(course, "lr", 1 / 3), *scaled(course, "beta", 3)],
            samples=shown(_worst(course.newest_rows())),
        )


def _worst(rows: list[Row]) -> list[Row]:
    """Samples by how much of them is repeated, the worst first: by words, or by characters where there are few words."""
    from grpo_exp.ops import repeat_ngram_fraction  # which imports torch: for a run that has the trouble alone

    def share(row: Row) -> float:
        text = str(row.get("completion", ""))
        words = text.split()
        return repeat_ngram_fraction(words if len(words) >= WORDS else list(text))

    return sorted(rows, key=share, reverse=True)
