"""The policy always says the same, and it is not right."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen, shown
from grpo_exp.health.course import Course
from grpo_exp.health.series import newest_right, optimizer_steps, solves
from grpo_exp.options import option


@dataclass
class EntropyCollapse(Detector):
    """The entropy has fallen to a small share of what it was, below a floor, while the task is not solved and gains nothing.

    Reward is bought with entropy (arXiv 2505.22617 finds R = -a exp(H) + b), so a run that still gains, or that has solved its
    task, loses it by right. Where it is spent and the reward is not good, the samples of a prompt are all alike, no group has
    contrast, and nothing is left to learn from.
    """

    share: float = option("entropy over that of the first steps, below which it has collapsed", above=0, high=1)
    floor: float = option("an entropy above this, in nats a token, is enough however much it fell", above=0)
    solved: float = option("share of right samples from where on it may be lost", above=0, high=1)
    gain: float = option("the run still gains where a window's reward is above the one before by this share of its std", low=0)
    window: int = option("training steps that are looked at together, and first steps that are compared with", low=2)

    title = "the entropy collapses"
    metric = "entropy/mean"
    needs = ("entropy/mean", "reward/mean")

    def look(self, course: Course) -> Seen | None:
        start, now = course.start("entropy/mean", self.window), course.window("entropy/mean", 2 * self.window)
        if start is None or now is None:
            return None
        before, entropy = statistics.median(start), statistics.median(now[self.window :])
        limit = min(self.floor, self.share * before)
        if entropy >= limit or solves(course, self.solved) or self._gains(course):
            return None
        right = newest_right(course)
        told = "" if right is None else f", while {right:.0%} of samples are right"
        return Seen(
            since=course.since("entropy/mean", lambda value: value < limit),
            text=f"the entropy is {entropy:.3g} nats a token, {entropy / before:.2g} times the {before:.3g} at the start{told}",
            why="the policy is sharpened faster than it learns: the rate is high, or no KL or entropy term holds it",
            values={"entropy/mean": entropy, "start": before, **({} if right is None else {"right": right})},
            tries=self._tries(course),
            samples=shown(course.newest_rows()),
        )

    def _gains(self, course: Course) -> bool:
        rewards, spread = course.window("reward/mean", 2 * self.window), course.window("reward/std", self.window)
        if rewards is None:
            return True
        gained = statistics.fmean(rewards[self.window :]) - statistics.fmean(rewards[: self.window])
        return gained > self.gain * (statistics.median(spread) if spread else 0.0)

    def _tries(self, course: Course) -> list[str]:
        tries = [course.scaled("lr", 1 / 3)]
        if (bonus := course.option("algo.entropy_coef")) is not None:
            tries.append(course.scaled("algo.entropy_coef", 3) if bonus else "algo.entropy_coef=0.003")
        low = (course.option("algo.clip_high") or 1.0) < 0.28 and (optimizer_steps(course) or 1) > 1  # with one the ratio is 1
        tries += ["algo.clip_high=0.28"] if low and course.option("algo.ratio") != "sequence" else []
        return [*tries, course.scaled("beta", 3)] if course.option("beta") else tries
