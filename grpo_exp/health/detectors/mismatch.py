"""The sampler is not the policy that learns."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen
from grpo_exp.health.course import Course
from grpo_exp.health.series import began, optimizer_steps, points
from grpo_exp.options import option


@dataclass
class Mismatch(Detector):
    """The sampler gave its tokens other probabilities than the model does that learns from them, with the same weights.

    Then the samples are not the policy's, and the gradient is biased; runs collapse of it (arXiv 2510.26788). In float32 the
    gap is about 1e-6 nats, in bfloat16 with another engine about 1e-2. Medians of the steps count, since a single token of
    tiny probability may be far off in a sound run. With one optimizer step a rollout the ratio must be 1 besides; with more
    it leaves 1 by intention, and is not looked at, nor where the configuration does not say. With hardware.overlap=1
    samples are those of an older policy, so that gaps are no fault, and the ratio alone is looked at.
    """

    mean: float = option("mean gap of a token's log-probs, in nats, that is too much", above=0)
    largest: float = option("largest gap of a step, in nats, that is too much", above=0)
    ratio: float = option("with one optimizer step a rollout: how far above 1 the largest ratio is wrong", above=0)
    window: int = option("training steps that are looked at together", low=1)

    title = "the sampler's log-probs are not the model's"
    metric = "mismatch/abs_mean"
    needs = ("mismatch/abs_mean",)

    def look(self, course: Course) -> Seen | None:
        gap = {"mismatch/abs_mean": self.mean, "mismatch/abs_max": self.largest}
        limits = {} if course.option("hardware.overlap") else gap
        if optimizer_steps(course) == 1:
            limits["ratio/max"] = 1 + self.ratio
        middle = {}
        for name in limits:
            newest = course.window(name, self.window)
            if newest is not None:
                middle[name] = statistics.median(newest)
        over = [name for name, value in middle.items() if value > limits[name]]
        if not over:
            return None
        told = {"mismatch/abs_mean": "{:.3g} nats in the mean", "mismatch/abs_max": "{:.3g} nats at most"}
        gaps = " and ".join(told[name].format(value) for name, value in middle.items() if name in told)
        ratio = (
            f"; the largest ratio of the only update is {middle['ratio/max']:.3g} and should be 1"
            if "ratio/max" in over
            else ""
        )
        return Seen(
            since=min(self._since(course, name, limits[name]) for name in over),
            text=f"sampler and model differ by {gaps} in a token's log-prob{ratio}",
            why=self._why(over),
            values=middle,
            tries=self._tries(course),
        )

    def _since(self, course: Course, name: str, limit: float) -> int:
        return began(points(course, name), self.window, lambda value: value > limit, statistics.median)

    def _why(self, over: list[str]) -> str:
        if over == ["mismatch/abs_max"]:
            return "most tokens agree and some are far off: a mask, a stop token, or a token that the sampler cuts off"
        if over == ["ratio/max"]:
            return (
                "sampler and model agree, but two passes of the model do not: dropout, or arithmetic that depends on the batch"
            )
        return (
            "the sampler computes in another precision or by another engine, holds older weights, or treats temperature or "
            "padding otherwise"
        )

    def _tries(self, course: Course) -> list[str]:
        engine = course.option("rollout.name")
        tries = ["model.dtype=float32"] if course.option("model.dtype") != "float32" else []
        tries += ["rollout=torch"] if engine not in (None, "torch") else []
        weighs = course.option("algo.clip_low") is not None  # a loss of pairs has no importance weights
        return [*tries, *(["rollout.weight_max=2"] if weighs and not course.option("rollout.weight_max") else [])]
