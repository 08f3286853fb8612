"""Most of the gradient is clipped away."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen
from grpo_exp.health.course import Course
from grpo_exp.health.series import began, joined, optimizer_steps, values
from grpo_exp.options import option


@dataclass
class ClipSaturated(Detector):
    """Many tokens are outside of the bounds of the ratio, and their gradient is taken away.

    The bounds (arXiv 1707.06347, section 3) are for the few tokens that leave them late in the updates on a rollout. Where
    they hold a large share back, the later updates learn from what is left, and the policy has moved further from the samples
    than the algorithm vouches for. One ratio for a whole sample clips far more by design (arXiv 2507.18071, section 5, tells
    of two orders of magnitude), so it has its own threshold.
    """

    share: float = option("share of tokens clipped, low and high together, that is too much", above=0, high=1)
    sequence_share: float = option("the same with algo.ratio=sequence", above=0, high=1)
    window: int = option("training steps that are looked at together", low=1)

    title = "most updates are clipped away"
    metric = "clip/high"
    needs = ("clip/low", "clip/high")

    def look(self, course: Course) -> Seen | None:
        clipped = joined(course, self.needs, lambda low, high: low + high)
        limit = self.sequence_share if course.option("algo.ratio") == "sequence" else self.share
        newest = values(clipped[-self.window :])
        if len(newest) < self.window or statistics.fmean(newest) <= limit:
            return None
        share, steps = statistics.fmean(newest), optimizer_steps(course)
        many = f", with {steps} optimizer steps a rollout" if steps else ""
        return Seen(
            since=began(clipped, self.window, lambda value: value > limit),
            text=f"{share:.0%} of tokens are clipped over the last {self.window} steps{many}",
            why=self._why(steps),
            values={"clip/low + clip/high": share, **({"optimizer steps": float(steps)} if steps else {})},
            tries=self._tries(course),
        )

    def _why(self, steps: int | None) -> str:
        if steps == 1:
            return (
                "the first update's ratio is not 1: the log-probs it is compared with are not those of the policy that sampled"
            )
        return "the updates on a rollout carry the policy too far from what sampled it: too many of them, or too high a rate"

    def _tries(self, course: Course) -> list[str]:
        passes, parts = course.option("algo.updates_per_rollout"), course.option("algo.minibatch_count")
        fewer = [course.scaled("algo.updates_per_rollout", 0.5, whole=True)] if passes is None or passes > 1 else []
        fewer += [course.scaled("algo.minibatch_count", 0.5, whole=True)] if parts is not None and parts > 1 else []
        return [*fewer, course.scaled("lr", 1 / 3)]
