"""DPO learns that longer is better."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen
from grpo_exp.health.course import Course
from grpo_exp.health.series import began, joined, newest_right, points, values
from grpo_exp.options import option

MEANS = ("simpo", "ipo_mean")
"""Losses of log-probs that are means over tokens."""


@dataclass
class LengthBias(Detector):
    """Chosen completions are longer than rejected ones, and length is what is learned.

    A sum over tokens lets a longer completion move further, and DPO's policies grow longer than their pairs explain
    (arXiv 2403.19159). Right answers may need more words: where the policy samples itself, it counts only once its completions
    grow and its reward does not. With stored pairs no such samples are seen, and pairs that differ much in length count by
    themselves, unless the loss takes means over tokens.
    """

    ratio: float = option("stored pairs: length of chosen over that of rejected completions that is a bias", above=1)
    mined: float = option("pairs of the policy's own samples: the same, where its completions grow besides", above=1)
    growth: float = option("length of completions over that of the first steps, from where on they grow", above=1)
    gain: float = option("the reward has not grown where it gained less than this share of its standard deviation", low=0)
    window: int = option("training steps that are looked at together, and first steps that are compared with", low=2)

    title = "length is learned"
    metric = "length/chosen"
    needs = ("length/chosen", "length/rejected")

    def look(self, course: Course) -> Seen | None:
        longer = joined(course, self.needs, lambda chosen, rejected: chosen / max(rejected, 1.0))
        if len(longer) < self.window:
            return None
        ratio = statistics.median(values(longer[-self.window :]))
        own = bool(points(course, "reward/mean"))  # stored pairs have lengths too, of what the policy did not write
        lengths = values(points(course, "length/mean")) if own else []
        growth = 1.0
        if lengths:
            if len(lengths) < 2 * self.window:
                return None
            growth = statistics.fmean(lengths[-self.window :]) / max(1.0, statistics.fmean(lengths[: self.window]))
            biased = ratio > self.mined and growth > self.growth and not self._gained(course)
        else:
            biased = ratio > self.ratio and course.option("algo.loss_type") not in MEANS
        if not biased:
            return None
        limit = self.mined if lengths else self.ratio
        right = newest_right(course)
        told = f", and completions have {growth:.2g} times the tokens of the first steps, without a gain" if lengths else ""
        return Seen(
            since=began(longer, self.window, lambda one: one > limit, statistics.median),
            text=f"chosen completions have {ratio:.2g} times the tokens of rejected ones{told}",
            why="what tells chosen from rejected best is their length, and a sum over tokens rewards it",
            values={"ratio": ratio, "growth": growth, **({} if right is None else {"right": right})},
            tries=self._tries(course),
        )

    def _gained(self, course: Course) -> bool:
        """Whether the reward is above that of the first steps; what is not known is taken for yes."""
        rewards, spread = values(points(course, "reward/mean")), course.start("reward/std", self.window)
        if len(rewards) < 2 * self.window:
            return True
        gained = statistics.fmean(rewards[-self.window :]) - statistics.fmean(rewards[: self.window])
        return gained > self.gain * (statistics.median(spread) if spread else 0.0)

    def _tries(self, course: Course) -> list[str]:
        tries = ["algo=simpo"] if course.option("algo.loss_type") not in MEANS else []
        own = course.option("algo.pairs") != "stored" and course.option("reward.parts.length") is None
        return [*tries, *(["+reward/part@reward.parts.length=length"] if own else []), course.scaled("beta", 3)]
