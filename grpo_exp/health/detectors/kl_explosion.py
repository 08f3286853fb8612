"""The policy runs away from its reference."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen
from grpo_exp.health.course import Course
from grpo_exp.options import option


@dataclass
class KlExplosion(Detector):
    """The median of the per-token KL is large, or its mean has grown many times over within a window or above what is small.

    The median counts because a few enormous tokens make a mean large without harm; growth counts because a run that is about to
    break shows it before the level is high. A KL that the reward pays for is none: where a task is far from what the model did,
    learning it takes the policy far away. So both count only where the reward does not rise above what it was, or where the KL
    was large before the first update, when it must be 0: then the reference is not what the run began with.
    """

    median: float = option("median KL of a token, in nats, that is too far from the reference", above=0)
    growth: float = option("the mean KL of a window over that of the window before, from where on it runs away", above=1)
    floor: float = option(
        "a mean KL below this, in nats a token, is small however fast it grows; one above growth times this is large", above=0
    )
    window: int = option("training steps that are looked at together", low=2)

    title = "the KL explodes"
    metric = "kl/mean"
    needs = ("kl/mean",)

    def look(self, course: Course) -> Seen | None:
        now, earlier = course.within("kl/mean", self.window), course.within("kl/mean", self.window, before=self.window)
        if not now:
            return None
        mean, middle = statistics.fmean(now), course.within("kl/median", self.window)
        typical = statistics.fmean(middle or now)  # another program's run may have no median
        before = statistics.fmean(earlier) if earlier else 0.0
        grows = bool(earlier) and mean > self.floor and mean > self.growth * before
        high = statistics.median(now) > self.growth * self.floor  # of steps: one with enormous tokens makes none
        if (typical <= self.median and not grows and not high) or self._pays(course):
            return None
        text = f"the KL to the reference is {mean:.3g} nats a token in the mean"
        text += f" and {typical:.3g} in the median" if middle else ""
        if grows:
            text += f"; over the {self.window} steps before it was {before:.3g}"
        return Seen(
            since=course.since("kl/mean", lambda kl: kl > min(self.floor, mean / 2)),
            text=text,
            why="the steps are too large for what holds the policy to its reference: the learning rate is high, or beta is low",
            values={"kl/mean": mean, "before": before, **({"kl/median": typical} if middle else {})},
            tries=[course.scaled("lr", 1 / 3), course.scaled("beta", 3)],
        )

    def _pays(self, course: Course) -> bool:
        """Whether the reward of the newest steps is above that of the first, and not below that of the steps before; not where
        the KL was large from the start, which no reward has paid for."""
        if (kl := course.train["kl/mean"][0]) and kl[0] <= 1 and kl[1] > self.floor:
            return False
        now, before = course.within("reward/mean", self.window), course.within("reward/mean", self.window, before=self.window)
        first = course.start("reward/mean", 1)
        if not now or not before or first is None:
            return False
        mean = statistics.fmean(now)
        return mean > first[0] and mean >= statistics.fmean(before)
