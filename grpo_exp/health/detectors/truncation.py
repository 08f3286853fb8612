"""Many samples are cut off at the longest length, before they could answer."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen, shown
from grpo_exp.health.course import Course
from grpo_exp.health.reading import mean_of, percent, right_share, scaled, unless
from grpo_exp.options import option

LOOPING = 0.5


@dataclass
class Truncation(Detector):
    """The share of samples that were cut off stays high.

    A sample that was cut off could not give its answer and counts as wrong, which teaches to be short rather than to be right;
    256 tokens, a common default, cut off nearly all samples of a model that reasons (TRL issue 5697). Where the share is
    falling fast, the policy is learning to end, and nothing is said.
    """

    frac: float = option("mean share of samples cut off that is too many; no step below half of it", above=0, high=1)
    window: int = option("training steps that are looked at together", low=2)
    falling: float = option("the later half of them over the earlier half, below which it is getting better by itself", above=0)

    title = "samples are cut off"
    metric = "length/truncated_frac"
    needs = ("length/truncated_frac",)

    def look(self, course: Course) -> Seen | None:
        cut = course.window("length/truncated_frac", self.window)
        if cut is None or statistics.fmean(cut) <= self.frac or min(cut) <= self.frac / 2:
            return None
        half = self.window // 2
        earlier, later = statistics.fmean(cut[:half]), statistics.fmean(cut[-half:])
        if later < self.falling * earlier:
            return None
        most = course.option("max_new_tokens")
        text = f"{percent(later)} of the samples are cut off at " + (f"max_new_tokens={most}" if most else "the longest length")
        values = {"length/truncated_frac": later}
        unfinished = [row for row in course.newest_rows() if row.get("finished") is False]
        share = right_share(unfinished)
        if share is not None:
            values["right_among_cut"] = share
            text += f"; {percent(share)} of those of the newest step are right"
        loops = mean_of(course, "text/repetition", half)
        if loops is not None:
            values["text/repetition"] = loops
        looping = loops is not None and loops > LOOPING
        why = "max_new_tokens is too small for what the model writes, so that many samples do not come to their end"
        if looping:
            why = f"the samples go round in loops ({percent(loops or 0)} of 4-grams repeated): more tokens alone would not help"
        return Seen(
            since=course.since("length/truncated_frac", lambda x: x > self.frac / 2),
            text=text,
            why=why,
            values=values,
            tries=self._tries(course, looping),
            samples=shown(unfinished),
        )

    def _tries(self, course: Course, looping: bool) -> list[str]:
        masked = unless(course, "algo.mask_truncated", "true")
        parts = course.option("reward.parts") or {}
        if looping:
            return [*masked, *([] if "repetition" in parts else ["+reward/part@reward.parts.repetition=repetition"])]
        return [*scaled(course, "max_new_tokens", 2, whole=True), *masked]
