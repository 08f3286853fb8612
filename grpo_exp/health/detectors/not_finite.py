"""NaN or infinity where there must be a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grpo_exp.health.base import Detector, Seen
from grpo_exp.health.course import Course
from grpo_exp.health.series import points
from grpo_exp.options import option


@dataclass
class NotFinite(Detector):
    """A training metric that always is a number is none, or an optimizer step was not taken for it.

    In metrics.jsonl NaN is null, and null stands as well where there is nothing to average, such as the mean of a reward part
    that applied to no row: so only metrics count that are numbers in every sound step. There is none that it needs: a loss
    that is NaN from the first step on is a curve without a point.
    """

    times: int = option("training steps with such values, or with optimizer steps not taken, that are too many", low=1)

    title = "a loss or a gradient is not finite"
    metric = "grad/skipped"
    needs = ()

    always: ClassVar[tuple[str, ...]] = (
        *("loss/", "grad/", "kl/", "clip/", "adv/", "ratio/", "logp/", "dpo/", "mismatch/", "entropy/", "value/"),
        *("reward/mean", "reward/std", "reward/group_std"),
    )
    """Names, or beginnings of names, of metrics that a training step has as a number or not at all."""

    def look(self, course: Course) -> Seen | None:
        steps: dict[int, list[str]] = {}
        for step, name in course.not_finite:
            if name.startswith(self.always):
                steps.setdefault(step, []).append(name)
        skipped = {step: count for step, count in points(course, "grad/skipped") if count > 0}
        troubled = sorted({*steps, *skipped})
        if len(troubled) < self.times:
            return None
        names = sorted({name for found in steps.values() for name in found})
        told = [f"{', '.join(names[:6])} not finite"] if names else []
        told += [f"{sum(skipped.values()):.0f} optimizer steps not taken"] if skipped else []
        return Seen(
            since=troubled[0],
            text=f"{' and '.join(told)}, first in step {troubled[0]}, in {len(troubled)} of the steps up to {course.step}",
            why=self._why(names),
            values={"grad/skipped": sum(skipped.values()), "steps": float(len(troubled))},
            tries=[course.scaled("lr", 1 / 3), "model.dtype=float32", course.scaled("optim.clip_grad", 0.5)],
        )

    def _why(self, names: list[str]) -> str:
        if any(name.startswith("reward/") for name in names):
            return "a reward part gave a value that is no number, and advantages made of it are none"
        return "the weights or the log-probs left the range of their precision: the learning rate is high, or the precision low"
