"""The policy says the same whatever it is asked, or has one answer left for each prompt."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen, shown
from grpo_exp.health.course import Course
from grpo_exp.health.reading import mean_of, percent, right, right_share, rows_of, scaled
from grpo_exp.options import option
from grpo_exp.track.base import Row

SHORT = 16
"""Characters of a completion that may be one of very few answers: where no references say how few, it is not judged."""
NARROW = 0.5
"""Distinct completions of a prompt over those of the first steps, below which they have become few."""


@dataclass
class SameCompletion(Detector):
    """Mode collapse, of two kinds: one completion for most prompts, or a single one for each prompt though it is not right.

    A task with few answers has common completions by nature. So the share of prompts that get the commonest completion is held
    against the share of the commonest reference, and a completion that is mostly right is no trouble however common it is. A
    policy that has learned its task says one thing for each prompt as well: that counts only while many are wrong.
    """

    share: float = option("share of prompts that get the same completion, from where on it is told", above=0, high=1)
    margin: float = option("and so much above the share of the commonest reference", low=0, high=1)
    prompts: int = option("different prompts among the newest samples, below which nothing is said", low=2)
    distinct: float = option("distinct completions of a prompt in a step, in the mean, below which there is one left", above=1)
    right: float = option("share of right samples from which on neither is a trouble", above=0, high=1)
    window: int = option("training steps that are looked at together, 8 at most", low=2, high=8)

    title = "the same completion"
    metric = "text/unique_frac"
    needs = ("samples",)

    def look(self, course: Course) -> Seen | None:
        steps = list(course.samples)[-self.window :]
        if len(steps) < self.window:
            return None
        return self._for_all(course, steps) or self._for_each(course, steps)

    def _for_all(self, course: Course, steps: list[tuple[int, list[Row]]]) -> Seen | None:
        """One completion for most prompts."""
        rows = rows_of(steps)
        text, share, asked = _commonest(rows)
        references = {_prompt(row): row["reference"] for row in rows if row.get("reference") is not None}
        expected = Counter(references.values()).most_common(1)[0][1] / len(references) if references else 0.0
        same = [row for row in rows if _said(row) == text]
        if asked < self.prompts or share < self.share or share < expected + self.margin:
            return None
        if (right_share(same) or 0.0) >= self.right or (not references and len(text) <= SHORT):
            return None
        held = f", where the commonest reference is that of {percent(expected)}" if references else ""
        what = f"'{text[:40]}'" if text else "the empty completion"
        return Seen(
            since=_since(steps, lambda rows: _share(rows, text) >= self.share),
            text=f"{percent(share)} of {asked} different prompts of the newest steps got {what}{held}",
            why="the policy has collapsed to the answer that pays best on the whole, or it no longer reads the prompt",
            values={"share": share, "commonest_reference": expected, "prompts": float(asked)},
            tries=self._tries(course),
            samples=shown(list({_prompt(row): row for row in same}.values())),
        )

    def _for_each(self, course: Course, steps: list[tuple[int, list[Row]]]) -> Seen | None:
        """One completion left for each prompt, and many of them wrong."""
        rows = rows_of(steps)
        now, before, share = _distinct(steps), _distinct(course.first_samples), right_share(rows)
        if now is None or before is None or share is None or share >= self.right:
            return None
        if now >= self.distinct or now >= NARROW * before:
            return None
        values = {"distinct": now, "distinct_before": before, "right": share}
        if (unique := mean_of(course, "text/unique_frac", self.window)) is not None:
            values["text/unique_frac"] = unique
        middle = (now * before) ** 0.5
        return Seen(
            since=_since(steps, lambda rows: (_distinct([(0, rows)]) or 0.0) < middle),
            text=f"the samples of a prompt are {now:.2f} different completions in the mean, where they were {before:.2f} in "
            f"the first steps, and {percent(share)} are right",
            why="the policy has lost its entropy before it was right: it tries nothing else, so that no group has contrast",
            values=values,
            tries=self._tries(course),
            samples=shown([row for row in steps[-1][1] if not right(row)]),
        )

    def _tries(self, course: Course) -> list[str]:
        return [*scaled(course, "temperature", 1.3), *scaled(course, "lr", 1 / 3), *scaled(course, "beta", 3)]


def _prompt(row: Row) -> str:
    return str(row.get("id", row.get("prompt")))


def _said(row: Row) -> str:
    return str(row.get("completion", "")).strip()


def _commonest(rows: Sequence[Row]) -> tuple[str, float, int]:
    """The completion that most prompts get, each prompt counting the same; its share of samples; how many prompts."""
    by_prompt: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        by_prompt[_prompt(row)][_said(row)] += 1
    shares: dict[str, float] = defaultdict(float)
    for said in by_prompt.values():
        for text, count in said.items():
            shares[text] += count / said.total()
    text = max(shares, key=lambda one: shares[one], default="")
    return text, shares.get(text, 0.0) / max(1, len(by_prompt)), len(by_prompt)


def _share(rows: Sequence[Row], text: str) -> float:
    return statistics.fmean(_said(row) == text for row in rows)


def _distinct(steps: Sequence[tuple[int, list[Row]]]) -> float | None:
    """Distinct completions of a prompt in a step, in the mean; None where a prompt has fewer than 4 samples in a step."""
    groups: dict[tuple[int, str], list[str]] = defaultdict(list)
    for step, rows in steps:
        for row in rows:
            groups[step, _prompt(row)].append(_said(row))
    if not groups or min(map(len, groups.values())) < 4:
        return None
    return statistics.fmean(len(set(texts)) for texts in groups.values())


def _since(steps: Sequence[tuple[int, list[Row]]], holds: Callable[[list[Row]], bool]) -> int:
    """The first step of the unbroken stretch of kept samples in which it holds; the newest where it does not there."""
    began = steps[-1][0]
    for step, rows in reversed(steps):
        if not holds(rows):
            break
        began = step
    return began
