"""Completions grow many times over, and not because longer ones are right."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen, shown
from grpo_exp.health.course import NEWEST, Course
from grpo_exp.health.reading import correlation, mean_of, paid_by_length, right_share, rows_of, scaled, unless
from grpo_exp.options import option


@dataclass
class LengthBlowup(Detector):
    """The mean length has grown many times over its start, or towards max_new_tokens.

    A policy that learns to reason grows longer too (arXiv 2501.12948, figure 3), so growth that came with more right samples is
    well, unless length itself is paid: among wrong samples, where only length and form can earn anything, it goes with the
    reward. Without that, wrong samples that are much longer than right ones point at a loss that divides by each row's own
    length and so punishes long wrong ones less (arXiv 2503.20783, section 3.1).
    """

    growth: float = option("mean length over that of the first steps, from where on it is told", above=1)
    near: float = option("share of max_new_tokens that a mean length above it is said to run into", above=0, high=1)
    near_growth: float = option("growth that is enough for that", above=1)
    floor: float = option("a mean length of so many tokens is short however much it has grown", low=0)
    worth: float = option("rise in the share of right samples that is worth a growth, unless length is paid", above=0, high=1)
    paid: float = option("correlation of length and reward among wrong samples, from where on length is paid", above=0, high=1)
    window: int = option("training steps that are looked at together", low=2)

    title = "completions grow"
    metric = "length/mean"
    needs = ("length/mean",)

    def look(self, course: Course) -> Seen | None:
        start, now = course.start("length/mean", self.window), mean_of(course, "length/mean", self.window)
        if start is None or now is None or now < self.floor:
            return None
        before = statistics.fmean(start)
        most = course.option("max_new_tokens")
        into = isinstance(most, (int, float)) and now > self.near * most and now > self.near_growth * before
        if now < self.growth * before and not into:
            return None
        newest = course.newest_rows(NEWEST)
        pays = paid_by_length(newest)
        paid = pays is not None and pays >= self.paid
        then, there = right_share(rows_of(course.first_samples)), right_share(newest)
        if then is not None and there is not None and there - then >= self.worth and not paid:
            return None
        values = {"length/mean": now, "before": before}
        text = f"completions have {now:.4g} tokens in the mean, {now / before:.3g} times the {before:.4g} of the first steps"
        text += f", with max_new_tokens={most:g}" if into and most else ""
        if then is not None and there is not None:
            values |= {"right": there, "right_before": then}
            text += f", while the share of right samples went from {100 * then:.0f} to {100 * there:.0f} %"
        together = {"of all samples": correlation(newest, "length", "total"), "of wrong ones": pays}
        known = {of: r for of, r in together.items() if r is not None}
        if known:
            values |= {f"correlation {of}": r for of, r in known.items()}
            text += "; length and reward " + ", ".join(f"{of} correlate by {r:.2f}" for of, r in known.items())
        bias = self._bias(course, values)
        longest = sorted(newest, key=lambda row: -float(row.get("length") or 0))
        return Seen(
            since=course.since("length/mean", lambda x: x > (before * now) ** 0.5),
            text=text,
            why=_why(paid, bias),
            values=values,
            tries=self._tries(course, paid, bias),
            samples=shown([row for row in longest if row.get("outcome", 0) <= 0.5] or longest),
        )

    def _bias(self, course: Course, values: dict[str, float]) -> bool:
        """Whether wrong samples are much longer than right ones."""
        wrong, right = (mean_of(course, f"length/{name}", 1) for name in ("wrong", "right"))
        if wrong is None or right is None:
            return False
        values |= {"length/wrong": wrong, "length/right": right}
        return wrong > 1.5 * right

    def _tries(self, course: Course, paid: bool, bias: bool) -> list[str]:
        parts = course.option("reward.parts") or {}
        shaping = [name for name, part in parts.items() if isinstance(part, dict) and part.get("kind") not in _HARMLESS]
        shaping = [name for name in shaping if parts[name].get("role") == "shaping"]
        less = [word for name in shaping for word in scaled(course, f"reward.parts.{name}.weight", 0.3)] if paid else []
        penalty = [] if "length" in parts else ["+reward/part@reward.parts.length=length"]
        loss = unless(course, "algo.aggregation", "constant_length") if bias or not paid else []
        return [*less, *penalty, *loss, *scaled(course, "beta", 3)]


_HARMLESS = ("length", "format", "repetition", "language")


def _why(paid: bool, bias: bool) -> str:
    if paid:
        return "the reward pays for length: longer samples earn more also where they are wrong"
    if bias:
        return (
            "wrong samples are the long ones: with a loss that divides by each row's own length a long wrong sample costs less "
            "than a short one"
        )
    return "nothing holds the length, and it has not made more samples right: loops, padding, or a reward that counts words"
