"""What a detector is, and what it finds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from grpo_exp.health.course import Course
from grpo_exp.options import option
from grpo_exp.track.base import Row

ACTIONS = ("off", "note", "warn", "stop", "rollback")
"""off: it does not look; note, warn: it is told; stop: the run ends with a checkpoint, in a sweep as a pruned trial; rollback:
the run goes back to the last checkpoint from before the trouble, with another lr or beta."""
SHOWN = 3
"""Samples shown with a finding."""


@dataclass(frozen=True)
class Seen:
    """What a detector saw.

    Attributes:
        since: the step it began at.
        text: what is seen, with its numbers, in a sentence without a full stop.
        why: what most likely causes it, in a sentence.
        values: the evidence: metrics, or what was computed from samples, by name.
        tries: overrides to try, each for itself, as words of a command line.
        samples: rows of samples.jsonl that show it, at most SHOWN, with what else is worth knowing of them.
    """

    since: int
    text: str
    why: str
    values: dict[str, float]
    tries: list[str] = field(default_factory=list)
    samples: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class Finding:
    """What is told of it, once a run.

    Attributes:
        detector: its name.
        action: one of ACTIONS.
        title: a few words.
        metric: the curve in which it shows.
        step: where it was found.
    """

    detector: str
    action: str
    title: str
    metric: str
    step: int
    seen: Seen

    def row(self) -> Row:
        """A line of health.jsonl."""
        seen = self.seen
        return {
            "step": self.step,
            "detector": self.detector,
            "action": self.action,
            "since": seen.since,
            "title": self.title,
            "text": seen.text,
            "why": seen.why,
            "tries": seen.tries,
            "metric": self.metric,
            "values": seen.values,
            "samples": seen.samples[:SHOWN],
        }


@dataclass
class Detector(ABC):
    """One kind of trouble. Its options are its thresholds; it keeps no state, so that a run that goes on, and one that is
    looked at when it is over, show the same findings at the same steps.

    Attributes:
        title: the trouble in a few words, such as `the KL explodes`.
        metric: the curve in which it shows.
        needs: the metrics without which it sees nothing, `samples` for samples; a run that has none of them is not looked at.
    """

    action: str = option("what is done where it finds something", choices=ACTIONS)

    title: ClassVar[str]
    metric: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]

    @abstractmethod
    def look(self, course: Course) -> Seen | None:
        """What is wrong at the newest step, or None. Called after each training step, and each evaluation that follows one."""

    def missing(self, course: Course) -> list[str]:
        """What the detector needs and the run does not show."""
        return [
            name
            for name in self.needs
            if not (course.samples if name == "samples" else course.train.get(name) or course.evals.get(name))
        ]


def shown(rows: list[Row], *more: str) -> list[Row]:
    """What of samples is kept in a finding: prompt, completion, rewards, and the fields named besides."""
    keys = ("step", "id", "prompt", "completion", "reference", "outcome", "total", "length", "finished", *more)
    parts = [key for row in rows[:1] for key in row if key.startswith("reward/")]
    return [{key: row[key] for key in (*keys, *parts) if key in row} for row in rows[:SHOWN]]
