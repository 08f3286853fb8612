"""Nearly all groups have equal rewards, so that nothing is learned from them."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen
from grpo_exp.health.course import Course
from grpo_exp.health.reading import first_step, mean_of, percent, scaled, unless
from grpo_exp.health.series import began, points
from grpo_exp.options import option

RIGHT, WRONG, ALIKE, UNKNOWN, LOST = "right", "wrong", "alike", "unknown", "lost"
WHY = {
    RIGHT: "the items are too easy for the model: it had nothing to learn from the start",
    WRONG: "the items are too hard for the model, or the reward does not read its answers",
    ALIKE: "there is no diversity: a low temperature, or a policy that lost its entropy, leaves the samples of a prompt alike",
    LOST: "there was contrast before: the policy has lost what it could do, as after steps that were too large",
    UNKNOWN: "the items are too easy or too hard for the policy, or the reward says too little",
}


@dataclass
class NoContrast(Detector):
    """More than a share of the groups of many steps have equal rewards: their advantages are all 0.

    DAPO (arXiv 2503.14476, section 3.2) names what is lost and samples such groups anew. Groups that are all right are no
    trouble where the run has brought them there: all right counts from the beginning alone.
    """

    flat: float = option(
        "share of the groups of these steps with equal rewards, above which there is hardly anything to learn from",
        low=0,
        high=1,
    )
    window: int = option("training steps that are looked at together", low=2)
    early: int = option("all right is told where it began within so many steps of the start; later it was learned", low=0)
    unique: float = option("share of distinct completions in a group, below which they do not differ", low=0, high=1)

    title = "groups without contrast"
    metric = "reward/zero_std_frac"
    needs = ("reward/zero_std_frac",)

    def look(self, course: Course) -> Seen | None:
        share = mean_of(course, "reward/zero_std_frac", self.window)
        if share is None or share <= self.flat:
            return None
        since = began(points(course, "reward/zero_std_frac"), self.window, lambda frac: frac > self.flat)
        kind = self._kind(course)
        early = since - first_step(course, "reward/zero_std_frac") <= self.early
        if not early and (kind == RIGHT or self._learned(course) or (kind == UNKNOWN and _rose(course, self.window))):
            return None
        names = ("reward/zero_std_frac", "reward/all_right_frac", "reward/all_wrong_frac", "text/unique_frac")
        values = {name: value for name in names if (value := mean_of(course, name, self.window)) is not None}
        words = {"reward/all_right_frac": "all right", "reward/all_wrong_frac": "all wrong"}
        split = [f"{percent(values[name])} {word}" for name, word in words.items() if name in values]
        text = f"over the last {self.window} steps {percent(share)} of the groups had equal rewards"
        if split:
            text += f" ({', '.join(split)})"
        if "text/unique_frac" in values:
            text += f"; {percent(values['text/unique_frac'])} of the completions of a group are distinct"
        if kind == WRONG and not early:
            kind = LOST
        return Seen(since, text, WHY[kind], values, self._tries(course, kind))

    def _kind(self, course: Course) -> str:
        """What most of the groups are: all right, all wrong, or neither, and then without diversity or for another reason."""
        right, wrong, unique = (
            mean_of(course, name, self.window)
            for name in ("reward/all_right_frac", "reward/all_wrong_frac", "text/unique_frac")
        )
        alike = unique is not None and unique < self.unique
        if right is not None and right > self.flat:
            return RIGHT
        if alike:
            return ALIKE
        if wrong is not None and wrong > self.flat / 2:
            return WRONG
        return RIGHT if right is not None and right > self.flat / 2 else UNKNOWN

    def _learned(self, course: Course) -> bool:
        """Whether such groups are all right at least twice as often as all wrong: those that are alike are so by right then."""
        right, wrong = (mean_of(course, f"reward/all_{name}_frac", self.window) for name in (RIGHT, WRONG))
        return right is not None and wrong is not None and right >= 2 * wrong

    def _tries(self, course: Course, kind: str) -> list[str]:
        again = unless(course, "experience.dynamic_sampling", "true")
        if kind == ALIKE:
            return [*scaled(course, "temperature", 1.3), *scaled(course, "beta", 3), *scaled(course, "lr", 1 / 3)]
        if kind == LOST:
            return [*scaled(course, "lr", 1 / 3), *scaled(course, "beta", 3)]
        if kind == RIGHT:
            rest = unless(course, "experience.skip_visits", "2")
            harder = unless(course, "data.levels", "[hard]") if course.option("data.levels") else []
            return [*harder, *again, *rest, *scaled(course, "temperature", 1.3)]
        easier = ["data.levels=[easy,medium]"] if course.option("data.levels") else []
        return [*easier, *scaled(course, "G", 2, whole=True), *again, "algo=sft"]


def _rose(course: Course, window: int) -> bool:
    """Whether the mean reward of the newest steps is above that of the first."""
    now, start = course.window("reward/mean", window), course.start("reward/mean", window)
    return bool(now and start) and sum(now or ()) > sum(start or ())
