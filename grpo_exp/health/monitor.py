"""Listens to a run as a tracker does, and asks the detectors. It costs no sample and no forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from grpo_exp.health.base import Detector, Finding
from grpo_exp.health.course import Course
from grpo_exp.track.base import Row, Tracker
from grpo_exp.track.files import read_jsonl


class Monitor(Tracker):
    """Feeds a `Course` and asks every detector about it; each finding is told once.

    Args:
        detectors: those that look, by name; none for a run that nobody watches.
        folder: of the run, from whose files the course so far is read where the run goes on; None where it never does.
        explain: as in `Course`.
    """

    def __init__(
        self, detectors: Mapping[str, Detector], folder: Path | None = None, explain: Callable[[Row], str] | None = None
    ) -> None:
        self.detectors = {name: one for name, one in detectors.items() if one.action != "off"}
        self.folder, self.explain = folder, explain
        self.course = Course()
        self.found: dict[str, Row] = {}

    @property
    def may_roll_back(self) -> bool:
        """Whether some finding would send the run back, to its start if need be."""
        return any(one.action == "rollback" for one in self.detectors.values())

    def start(self, card: Row, config: Row) -> None:
        steps = card.get("steps")
        self.course = Course(config, int(steps) if steps else None, self.explain)
        self.found = {}
        if self.folder is not None and card.get("resumed_from") is not None:
            self._recall(self.folder)

    def metrics(self, row: Row) -> None:
        self.course.add_metrics(row)

    def samples(self, rows: Sequence[Row]) -> None:
        self.course.add_samples(rows)

    def evaluations(self, rows: Sequence[Row]) -> None:
        self.course.add_evaluation(rows)

    def look(self) -> list[Finding]:
        """What is found at the newest step and was not found before."""
        found = []
        for name, detector in self.detectors.items():
            if name in self.found or detector.missing(self.course):
                continue
            seen = detector.look(self.course)
            if seen is not None:
                finding = Finding(name, detector.action, detector.title, detector.metric, self.course.step, seen)
                self.found[name] = finding.row()
                found.append(finding)
        return found

    def _recall(self, folder: Path) -> None:
        """The course of a run that goes on, from its files, which end where it goes on."""
        for row in read_jsonl(folder / "metrics.jsonl"):
            self.metrics(row)
        for name, add in (("samples", self.samples), ("eval", self.evaluations)):
            for rows in by_step(folder / f"{name}.jsonl"):
                add(rows)
        if (file := folder / "health.jsonl").exists():
            self.found = {str(row["detector"]): row for row in read_jsonl(file)}


def by_step(file: Path) -> list[list[Row]]:
    """The rows of a file in stretches of the same step; none where there is no file."""
    stretches: list[list[Row]] = []
    for row in read_jsonl(file) if file.exists() else ():
        if not stretches or stretches[-1][0].get("step") != row.get("step"):
            stretches.append([])
        stretches[-1].append(row)
    return stretches
