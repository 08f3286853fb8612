"""The learning rate has broken the policy."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen, shown
from grpo_exp.health.course import Course
from grpo_exp.health.series import points, values
from grpo_exp.options import option
from grpo_exp.track.base import Row

TAIL, FEWEST = 200, 8
"""Characters at the end of a completion that are looked at; fewer than so many, or words, are too few to tell."""
LONGEST = 16
"""Characters of the longest repeated piece."""
NEWEST = 3
"""Steps whose mean is the reward of now, or of before."""


@dataclass
class LearningRateHigh(Detector):
    """The reward has collapsed, and the samples are one token over and over, or a spike of the gradient came just before.

    A policy that a step threw out of what it knew gives nearly all of its probability to one token. Its samples have no
    contrast, so no gradient brings it back, and the reward stays at its lowest. A run that never was better is not meant:
    that is a model that cannot do the task.
    """

    monotony: float = option(
        "share of a completion that repeats one word or piece, from where on it says nothing", above=0, high=1
    )
    samples: float = option("share of the newest samples that say nothing, from where on the policy is broken", above=0, high=1)
    fall: float = option("share of the reward, above its lowest, that must be lost from its best", above=0, high=1)
    spread: float = option("the same loss in standard deviations of the reward", above=0)
    factor: float = option("a gradient's norm of so many times the median before it is a spike", above=1)
    flat: float = option("share of groups without contrast after a spike, from where on nothing is left", above=0, high=1)
    window: int = option("training steps back to where a spike may be", low=2)

    title = "the learning rate broke the policy"
    metric = "reward/mean"
    needs = ("reward/mean", "samples")

    def look(self, course: Course) -> Seen | None:
        rewards = points(course, "reward/mean")
        if len(rewards) <= NEWEST:
            return None
        numbers = values(rewards)
        now = statistics.fmean(numbers[-NEWEST:])
        best = self._best(numbers[:-NEWEST])
        lowest = min(numbers)
        deviation = max(values(points(course, "reward/std")), default=0.0)
        if best - now < max(self.fall * (best - lowest), self.spread * deviation) or best <= lowest:
            return None
        broken = [row for row in course.newest_rows() if monotony(str(row.get("completion", ""))) >= self.monotony]
        says_nothing = len(broken) / max(1, len(course.newest_rows()))
        since = course.since("reward/mean", lambda reward: reward < (best + lowest) / 2)
        spike = self._spike(course, since)
        if says_nothing < self.samples and spike is None:
            return None
        return self._seen(course, since, (best, now), says_nothing, spike, broken or course.newest_rows())

    def _best(self, numbers: list[float]) -> float:
        """The best mean of NEWEST steps; at the start, which may be all there is, also of fewer."""
        return max(statistics.fmean(numbers[max(0, end - NEWEST) : end]) for end in range(1, len(numbers) + 1))

    def _spike(self, course: Course, since: int) -> tuple[int, float] | None:
        """The largest spike in the steps up to the fall, where the samples since have no contrast."""
        flat, norms = course.window("reward/zero_std_frac", NEWEST), points(course, "grad/norm")
        if flat is None or statistics.fmean(flat) < self.flat:
            return None
        quiet = [norm for step, norm in norms if step < since - self.window] or values(norms[:NEWEST])
        near = [(step, norm) for step, norm in norms if since - self.window <= step <= since]
        spikes = [(step, norm) for step, norm in near if norm > self.factor * statistics.median(quiet)]
        return max(spikes, key=lambda one: one[1], default=None)

    def _seen(
        self,
        course: Course,
        since: int,
        fall: tuple[float, float],
        says_nothing: float,
        spike: tuple[int, float] | None,
        rows: list[Row],
    ) -> Seen:
        text = f"the reward fell from {fall[0]:.3g} to {fall[1]:.3g}"
        if says_nothing >= self.samples:
            text += f", and {says_nothing:.0%} of the newest samples repeat one token"
        if spike is not None:
            text += f", after a gradient of norm {spike[1]:.3g} in step {spike[0]}"
        rate = course.train.get("lr")
        return Seen(
            since=since,
            text=text + (f"; the learning rate is {rate[-1][1]:.3g}" if rate else ""),
            why="steps were so large that the policy left what it knew; samples without contrast do not bring it back",
            values={
                "best": fall[0],
                "reward/mean": fall[1],
                "repeating": says_nothing,
                **({"grad/norm": spike[1]} if spike else {}),
            },
            tries=self._tries(course),
            samples=shown(rows),
        )

    def _tries(self, course: Course) -> list[str]:
        vetted, rate = course.option("model.lr_rl"), course.option("lr")
        lower = f"lr={vetted:g}" if vetted and rate and rate > 2 * vetted else course.scaled("lr", 1 / 10)
        clip = course.option("optim.clip_grad")
        return [lower, "optim.warmup_steps=20", *(["optim.clip_grad=1.0"] if clip is not None and not 0 < clip <= 1 else [])]


def monotony(text: str) -> float:
    """How much of a text is one word, or one piece of up to LONGEST characters, over and over: 0 to 1, 0 for a short text."""
    tail = text[-TAIL:].strip()
    words = tail.split()
    often = Counter(words).most_common(1)[0][1] / len(words) if len(words) >= FEWEST else 0.0
    if len(tail) < FEWEST:
        return often
    pieces = range(1, min(LONGEST, len(tail) // 4) + 1)
    return max(often, *(sum(a == b for a, b in zip(tail, tail[size:], strict=False)) / (len(tail) - size) for size in pieces))
