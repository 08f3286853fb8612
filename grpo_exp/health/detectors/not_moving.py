"""The policy does not move."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen
from grpo_exp.health.course import Course
from grpo_exp.health.reading import unless
from grpo_exp.health.series import points, quiet_steps, solves, values
from grpo_exp.options import option


@dataclass
class NotMoving(Detector):
    """Steps are taken and nothing changes.

    The KL to a fixed reference tells it at once: it is exactly 0 at the start and stays there only where the weights do. Where
    no KL is measured, or the reference follows the policy, it is told by a learning rate or gradients of nearly 0, or by
    groups without contrast in which the reward is flat: such a group's advantage is 0 (arXiv 2503.14476, section 3.2). That the
    loss is near 0 says nothing: with one update a rollout it always is.
    """

    kl: float = option("a KL below this, in nats a token, is none", above=0)
    lr: float = option("a learning rate below this moves nothing", above=0)
    gradient: float = option("a gradient's norm below this moves nothing", above=0)
    flat: float = option("share of groups without contrast from where on hardly any teaches", above=0, high=1)
    drift: float = option("the reward is flat where it changes by less than this share of its standard deviation", above=0)
    solved: float = option("share of right samples from where on there is nothing to learn", above=0, high=1)
    window: int = option("training steps that are looked at together, after the warm-up", low=4)

    title = "the policy does not move"
    metric = "kl/mean"
    needs = ("reward/mean", "grad/norm")

    def look(self, course: Course) -> Seen | None:
        rates = self._newest(course, "lr")
        if len(points(course, "reward/mean")) < quiet_steps(course) + self.window or solves(course, self.solved):
            return None
        if len(rates) > 1 and rates[-1] > 1.01 * rates[0]:  # still warming up
            return None
        follows = course.option("algo.reference.update") not in (None, "fixed")
        drift = [] if follows else self._newest(course, "kl/mean")
        signs = self._signs(course)
        if drift:
            still = max(drift) < self.kl
        else:
            still = bool({"lr", "gradient"} & set(signs)) or ("contrast" in signs and self._reward_is_flat(course))
        return self._seen(course, drift, signs) if still else None

    def _newest(self, course: Course, name: str) -> list[float]:
        """Values of the newest steps; fewer where the metric is not measured in each."""
        return [value for step, value in points(course, name)[-self.window :] if step > course.step - self.window]

    def _signs(self, course: Course) -> dict[str, float]:
        """What keeps the policy where it is, the surest first, with the number that shows it."""
        signs: dict[str, float] = {}
        if (rates := values(points(course, "lr"))) and max(rates) < self.lr:
            signs["lr"] = max(rates)
        if (flat := self._newest(course, "reward/zero_std_frac")) and statistics.median(flat) >= self.flat:
            signs["contrast"] = statistics.median(flat)
        if (norms := self._newest(course, "grad/norm")) and max(norms) < self.gradient:
            signs["gradient"] = max(norms)
        return signs

    def _reward_is_flat(self, course: Course) -> bool:
        rewards, spread = self._newest(course, "reward/mean"), self._newest(course, "reward/std")
        half = len(rewards) // 2
        change = abs(statistics.fmean(rewards[half:]) - statistics.fmean(rewards[:half])) if half else 0.0
        return change <= self.drift * (statistics.median(spread) if spread else 0.0)

    def _seen(self, course: Course, drift: list[float], signs: dict[str, float]) -> Seen:
        told = [f"the KL to the reference stays at or below {max(drift):.2g} nats a token"] if drift else []
        words = {"lr": "the learning rate is {:.2g}", "contrast": "{:.0%} of groups have no contrast"}
        words["gradient"] = "the gradient's norm is at most {:.2g}"
        told += [words[name].format(value) for name, value in signs.items()]
        norm = statistics.median(self._newest(course, "grad/norm") or [0.0])
        reward = points(course, "reward/mean")[-1][1]
        why, tries = self._cause(course, signs)
        return Seen(
            since=self._since(course, bool(drift), signs),
            text=f"over the last {self.window} steps {', '.join(told)}; the reward is {reward:.3g}",
            why=why,
            values={**({"kl/mean": max(drift)} if drift else {}), "grad/norm": norm, **signs},
            tries=tries,
        )

    def _since(self, course: Course, measured: bool, signs: dict[str, float]) -> int:
        if measured:
            return course.since("kl/mean", lambda kl: kl < self.kl)
        if "lr" in signs:
            return course.since("lr", lambda rate: rate < self.lr)
        if "gradient" in signs:
            return course.since("grad/norm", lambda norm: norm < self.gradient)
        return course.since("reward/zero_std_frac", lambda share: share >= self.flat)

    def _cause(self, course: Course, signs: dict[str, float]) -> tuple[str, list[str]]:
        vetted, rate = course.option("model.lr_rl"), course.option("lr")
        faster = f"lr={vetted:g}" if vetted and rate and vetted > rate else course.scaled("lr", 10)
        again = unless(course, "experience.dynamic_sampling", "true")
        if "lr" in signs:
            return "the learning rate is nearly 0", [faster]
        if "contrast" in signs:
            why = (
                "the samples of a prompt all get the same reward, so that no group says what is better: too hard, or too alike"
            )
            return why, [*again, course.scaled("G", 2, whole=True), course.scaled("temperature", 1.2)]
        if "gradient" in signs:
            why = "no gradient reaches the weights: every token is masked, every advantage is 0, or what should learn is frozen"
            masks = course.option("algo.mask_truncated")
            return why, ["algo.mask_truncated=false"] if masks else [*again, faster]
        return "the steps are too small to change the weights at their precision", [faster, "model.dtype=float32"]
