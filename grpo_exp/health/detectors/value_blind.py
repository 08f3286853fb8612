"""The critic knows nothing of the returns."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen
from grpo_exp.health.course import Course
from grpo_exp.health.series import began, points, quiet_steps, solves, values
from grpo_exp.options import option


@dataclass
class ValueBlind(Detector):
    """PPO's critic explains none of the variance of the returns, though they vary.

    With an explained variance of 0 a constant would do as well, and below it the critic adds noise to the advantages. It begins
    at 0 and takes some steps; where nearly all samples are right, what varies is noise. Exactly 0 is what docs/metrics.md
    gives where the returns do not vary, and is passed over.
    """

    explained: float = option("explained variance at or below which the critic is blind", high=1)
    solved: float = option("share of right samples from where on the returns vary by chance alone", above=0, high=1)
    spread: float = option("standard deviation of the reward below which there is nothing to explain", low=0)
    after: int = option("training steps that the critic has to learn, besides those of warm-up", low=0)
    window: int = option("training steps whose median counts", low=1)

    title = "the critic is blind"
    metric = "value/explained_var"
    needs = ("value/explained_var", "reward/std")

    def look(self, course: Course) -> Seen | None:
        begins = quiet_steps(course) + self.after
        explained = [(step, value) for step, value in points(course, "value/explained_var") if step > begins and value]
        spread = course.window("reward/std", self.window)
        if len(explained) < self.window or spread is None:
            return None
        value, varies = statistics.median(values(explained[-self.window :])), statistics.median(spread)
        if value > self.explained or varies <= self.spread or solves(course, self.solved):
            return None
        return Seen(
            since=began(explained, self.window, lambda one: one <= self.explained, statistics.median),
            text=f"the critic explains {value:.3g} of the returns' variance over the last {self.window} steps, where rewards "
            f"have a standard deviation of {varies:.3g}",
            why="the critic learns too slowly to follow the policy, or cannot see in a prompt what will be right",
            values={"value/explained_var": value, "reward/std": varies},
            tries=self._tries(course),
        )

    def _tries(self, course: Course) -> list[str]:
        tries = [course.scaled("algo.critic.lr_factor", 3), f"algo.critic.warmup_steps={self.after}"]
        trunk = course.option("algo.critic.trunk")
        return [*tries, *(["algo.critic.trunk=own"] if trunk not in (None, "own") else ["algo.gae_lambda=1"])]
