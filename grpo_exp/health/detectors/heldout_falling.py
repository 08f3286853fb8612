"""What is trained on gets better while what counts does not: reward hacking, or learning by heart."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen, shown
from grpo_exp.health.course import Course
from grpo_exp.health.reading import mean_of, numbers, outcome_part, percent, right, right_share, rows_of, scaled
from grpo_exp.options import option
from grpo_exp.track.base import Row

EVAL, GAP, PART = "eval/pass@1", "gap/train_minus_eval", "reward/part/"
FULL = 0.9


@dataclass
class HeldoutFalling(Detector):
    """Three ways in which training leaves what it is for.

    Held-out pass@1 is below its best by more than the two intervals explain while the training reward has risen since then
    (Goodhart's law, measured for reward models in arXiv 2210.10760). Or training samples are right far more often than
    held-out ones, and the gap has grown: learned by heart. Or the training reward has risen while the share of right training
    samples has fallen, or after long has not risen at all: a shaping part earns what the outcome does not.
    """

    drop: float = option("fall of pass@1 below its best that counts, where a run gives no intervals", above=0, high=1)
    gap: float = option("train minus eval share of right samples that is large", above=0, high=1)
    gap_growth: float = option("and so much larger than it has been", above=0, high=1)
    rise: float = option("rise of the training reward that counts, in standard deviations of the first steps' rewards", above=0)
    patience: int = option("training steps that the outcome has to rise together with the reward", low=1)
    window: int = option("training steps that are looked at together", low=2)

    title = "training gains what does not count"
    metric = "eval/pass@1"
    needs = ("reward/mean",)

    def look(self, course: Course) -> Seen | None:
        return self._falls(course) or self._by_heart(course) or self._unpaid(course)

    # ---- held-out falls while the reward rises

    def _falls(self, course: Course) -> Seen | None:
        values = course.evals.get(EVAL, [])
        if len(values) < 2 or values[-1][0] < course.step:  # looked at with each evaluation
            return None
        at, best = max(values[:-1], key=lambda one: (one[1], one[0]))
        low, high = dict(course.evals.get(f"{EVAL}_low", [])), dict(course.evals.get(f"{EVAL}_high", []))
        floor = low.get(at, best - self.drop)
        if high.get(values[-1][0], values[-1][1]) >= floor:
            return None
        rises = {name: self._rise(course, name, at) for name in self._rewards(course)}
        rising = {name: rise for name, rise in rises.items() if rise is not None and rise > 0}
        if not rising:
            return None
        name = max(rising, key=lambda one: rising[one])
        now = values[-1][1]
        return Seen(
            since=course.since(EVAL, lambda x: x < floor, evals=True),
            text=f"pass@1 on held-out items is {now:.3g}, below its best of {best:.3g} at step {at} by more than their "
            f"intervals explain, while {name} has risen by {rising[name]:.3g}",
            why=f"{name} pays for something else than being right" if name.startswith(PART) else _learned_by_heart(course),
            values={EVAL: now, "best": best, **rising},
            tries=self._tries(course, name, at),
            samples=_earned_more(course),
        )

    def _rewards(self, course: Course) -> list[str]:
        """The training reward and its shaping parts."""
        own = f"{PART}{outcome_part(course)}"
        return ["reward/mean", *(name for name in course.train if name.startswith(PART) and name != own)]

    def _rise(self, course: Course, name: str, at: int) -> float | None:
        """The newest window of a reward minus that which ends at a step, where it is more than noise; else None."""
        then = [value for step, value in course.train.get(name, []) if step <= at][-self.window :]
        then = then or [value for _, value in course.train.get(name, [])[: self.window]]
        now = mean_of(course, name, self.window)
        spread = course.start("reward/std", self.window)
        if now is None or not then:
            return None
        rise = now - statistics.fmean(then)
        return rise if rise > self.rise * (statistics.fmean(spread) if spread else 0.0) else None

    # ---- learned by heart

    def _by_heart(self, course: Course) -> Seen | None:
        values = course.evals.get(GAP, [])
        if len(values) < 2 or values[-1][0] < course.step:
            return None
        at, least = min(values[:-1], key=lambda one: (one[1], -one[0]))
        gap = values[-1][1]
        if gap < self.gap or gap - least < self.gap_growth:
            return None
        now = course.evals[EVAL][-1][1] if course.evals.get(EVAL) else None
        told = f"; pass@1 on held-out items is {now:.3g}" if now is not None else ""
        return Seen(
            since=course.since(GAP, lambda x: x > (self.gap + least) / 2, evals=True),
            text=f"training samples are right by {gap:.3g} more often than held-out ones, after {least:.3g} at step {at}{told}",
            why=_learned_by_heart(course),
            values={GAP: gap, "least": least} | ({EVAL: now} if now is not None else {}),
            tries=self._tries(course, "reward/mean", at),
            samples=_earned_more(course),
        )

    # ---- the reward rises, the outcome does not

    def _unpaid(self, course: Course) -> Seen | None:
        values = course.train["reward/mean"]
        first, newest = rows_of(course.first_samples), rows_of(list(course.samples)[-self.window :])
        before, now = right_share(first), right_share(newest)
        if len(values) < 3 * self.window or before is None or now is None or not (totals := numbers(first, "total")):
            return None
        spread = statistics.pstdev(totals)
        gained = statistics.fmean(numbers(newest, "total")) - statistics.fmean(totals)
        noise = _noise(first, before) + _noise(newest, now)
        falls = now < before - noise and gained > self.rise * spread
        stays = now <= before and now < FULL and len(values) >= self.patience and gained > spread
        if gained <= 0 or not (falls or stays):
            return None
        parts = _part_rises(first, newest, outcome_part(course))
        name = max(parts, key=lambda one: parts[one], default="reward/mean")
        start = statistics.fmean(value for _, value in values[: self.window])
        middle = start + gained / 2
        return Seen(
            since=course.since("reward/mean", lambda x: x > middle),
            text=f"the reward of training samples has risen by {gained:.3g}, most in {name}, while the share of right ones "
            f"went from {percent(before)} to {percent(now)}",
            why=f"{name} earns what the outcome does not: it pays for something else than being right",
            values={"gained": gained, "right": now, "right_before": before, **parts},
            tries=self._tries(course, name, None),
            samples=_earned_more(course),
        )

    def _tries(self, course: Course, name: str, best: int | None) -> list[str]:
        if name.startswith(PART):
            part = name.removeprefix(PART)
            return [*scaled(course, f"reward.parts.{part}.weight", 0.3), *scaled(course, "beta", 3)]
        fewer = [f"steps={best}"] if best else []
        more = scaled(course, "data.train", 4, whole=True) if isinstance(course.option("data.train"), int) else []
        return [*more, *fewer, *scaled(course, "beta", 3), *scaled(course, "lr", 1 / 3)]


def _learned_by_heart(course: Course) -> str:
    items = course.option("data.train")
    few = f" (data.train={items})" if isinstance(items, int) else ""
    return f"the training items{few} are learned by heart, or the reward can be had without being right in general"


def _noise(rows: Sequence[Row], share: float) -> float:
    """Half the width of a 95 % interval of a share of right samples, items being what is drawn: samples of one agree."""
    return 1.96 * math.sqrt(max(share * (1 - share), 0.01) / max(1, len({row.get("id") for row in rows})))


def _part_rises(first: Sequence[Row], newest: Sequence[Row], outcome: str | None) -> dict[str, float]:
    """How much each part but the outcome has risen, from the first samples to the newest."""
    rises = {}
    for name in (key for key in newest[0] if key.startswith(PART) and key != f"{PART}{outcome}"):
        then, now = numbers(first, name), numbers(newest, name)
        if then and now and (rise := statistics.fmean(now) - statistics.fmean(then)) > 0:
            rises[name] = rise
    return rises


def _earned_more(course: Course) -> list[Row]:
    """Wrong samples of items whose reward rose and whose outcome did not, with the item's reward before; else the wrong ones
    that earn most."""
    then: dict[str, list[Row]] = defaultdict(list)
    for row in rows_of(course.first_samples):
        then[str(row.get("id"))].append(row)
    wrong = sorted((row for row in course.newest_rows(8) if not right(row)), key=lambda row: -float(row.get("total") or 0.0))
    different = list({str(row.get("id")): row for row in reversed(wrong)}.values())[::-1]  # the dearest of each item
    risen = []
    for row in different:
        before = then.get(str(row.get("id")), [])
        earned = numbers(before, "total")
        if earned and float(row.get("total") or 0.0) > statistics.fmean(earned):
            risen.append({**row, "total_before": statistics.fmean(earned), "right_before": right_share(before)})
    return shown(risen or different, "total_before", "right_before")
