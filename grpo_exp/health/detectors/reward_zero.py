"""No sample is right, and has not been for a while."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen, shown
from grpo_exp.health.course import NEWEST, Course
from grpo_exp.health.reading import first_step, percent, right, said, scaled
from grpo_exp.options import option
from grpo_exp.track.base import Row

EXTRACT = "reward.parts.math.extract=[tag,boxed,hash,answer_is,equation,whole,last_number]"


@dataclass
class RewardZero(Detector):
    """Every sample of many steps is wrong, or all of them have the same reward and are not right.

    With group advantages nothing is learned from that. Either the model cannot do it, or it can and the reward does not read
    its answers, which is the commoner fault with a new reward (TRL issues 2553, 5281 and Math-Verify 50: scores that were
    silently 0). What tells the two apart: wrong samples that hold their own reference as a word of its own, more often than
    they hold the reference of another item, as short answers do by chance.
    """

    window: int = option("training steps in a row without a right sample, from where on it is told", low=1)
    samples: int = option("and so many wrong samples at least, where their number is known", low=1)
    held: float = option(
        "share of wrong samples that hold their reference, beyond what chance holds, that puts the fault on the reward",
        above=0,
        high=1,
    )

    title = "no sample is right"
    metric = "reward/mean"
    needs = ("reward/mean", "reward/std")

    def look(self, course: Course) -> Seen | None:
        since = self._since(course)
        steps = sum(step >= since for step, _ in course.train["reward/mean"]) if since is not None else 0
        if since is None or steps < self.window or steps * _rows_a_step(course) < self.samples:
            return None
        wrong = [row for row in course.newest_rows(NEWEST) if not right(row)]
        own, other = _held(wrong)
        values = {"reward/mean": course.train["reward/mean"][-1][1], "steps": float(steps)}
        text = f"no sample has been right for {steps} steps; the mean reward is {values['reward/mean']:.3g}"
        if own is not None:
            values |= {"held": own, "held_by_chance": other}
            text += f"; {percent(own)} of the newest wrong samples hold their reference as a word of its own, {percent(other)} "
            text += "that of another item"
        parser = own is not None and own - other >= self.held
        why, tries = self._why(course, parser, since, own), self._tries(course, parser, since)
        return Seen(since, text, why, values, tries, _shown(course, wrong))

    def _since(self, course: Course) -> int | None:
        """Where the steps without a right sample begin; None where the newest has one, or that is not known."""
        name, bound = ("reward/all_wrong_frac", 1 - 1e-6) if course.train.get("reward/all_wrong_frac") else ("reward/std", 0.0)
        if name == "reward/std":  # of another program: a constant reward, of which nothing says that it is for right answers
            if course.train[name][-1][1] > 0 or course.train["reward/mean"][-1][1] > 0:
                return None
            return course.since(name, lambda std: std <= bound)
        return course.since(name, lambda frac: frac >= bound) if course.train[name][-1][1] >= bound else None

    def _why(self, course: Course, parser: bool, since: int, own: float | None) -> str:
        if parser:
            return (
                "the reward does not read right answers: they stand in the samples, in a form that it does not look for, or "
                "what it compares with is not what the data gives"
            )
        if since > first_step(course, "reward/mean"):
            return "there were right samples before: the policy has lost what it could do, as after steps that were too large"
        if own is None:
            return "the items are too hard for the model, or the reward does not read its answers: read the samples"
        return (
            "the items are too hard for the model: what it writes does not hold the answers, so that no parser finds them; "
            "try easier ones, a stronger model, or worked examples first"
        )

    def _tries(self, course: Course, parser: bool, since: int) -> list[str]:
        if parser:
            parts = course.option("reward.parts")
            return [EXTRACT] if parts is None or (isinstance(parts, dict) and "math" in parts) else []
        if since > first_step(course, "reward/mean"):
            return [*scaled(course, "lr", 1 / 3), *scaled(course, "beta", 3)]
        cut = course.window("length/truncated_frac", 1)
        longer = scaled(course, "max_new_tokens", 2, whole=True) if cut and cut[0] > 0.5 else []
        return [*longer, *scaled(course, "G", 2, whole=True), "algo=sft"]


def _rows_a_step(course: Course) -> float:
    """Samples a step; infinite where neither the samples nor the configuration say how many."""
    if course.samples:
        return statistics.fmean(len(rows) for _, rows in course.samples)
    prompts, samples = course.option("prompts_per_step"), course.option("G")
    return float(prompts * samples) if prompts and samples else float("inf")


def _held(wrong: Sequence[Row]) -> tuple[float | None, float]:
    """Share of wrong samples that hold their own reference, and that of the next item with another one; None without any."""
    from grpo_exp.answers.reference import holds

    rows = [row for row in wrong if isinstance(row.get("reference"), str)]
    if not rows:
        return None, 0.0
    others = list(dict.fromkeys(row["reference"] for row in rows))
    after = dict(zip(others, [*others[1:], *others[:1]], strict=True))
    own = statistics.fmean(holds(row["completion"], row["reference"]) for row in rows)
    chance = [holds(row["completion"], after[row["reference"]]) for row in rows] if len(others) > 1 else [False]
    return own, statistics.fmean(chance)


def _shown(course: Course, wrong: Sequence[Row]) -> list[Row]:
    """Wrong samples of the newest step, those first that hold their reference, with what was read in them."""
    from grpo_exp.answers.reference import holds

    newest = [row for row in wrong if row.get("step") == wrong[-1].get("step")]
    different = list({(row.get("id"), row.get("completion")): row for row in newest}.values())
    return shown(said(course, different, lambda row: holds(str(row.get("completion", "")), row.get("reference"))), "said")
