"""A run that is over, or going on, as it was written down."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_exp.health.base import Detector
from grpo_exp.health.monitor import Monitor, by_step
from grpo_exp.track.base import Row
from grpo_exp.track.files import read_jsonl

OURS = "grpo_exp"


@dataclass(frozen=True)
class Log:
    """What is known of a run.

    Attributes:
        label: what it is called.
        kind: who wrote it, such as TRL.
        state: what more is to be said of it, such as `grpo, finished`.
        steps: training steps it is to have; None where that is not known.
        config: its resolved configuration; empty for a run of another program.
        rows: those of metrics.jsonl, in their order.
        samples, evaluated: step -> rows of samples.jsonl and of eval.jsonl.
        taken: of another program's log, our name -> the column that is taken for it.
        notes: what to know of it.
    """

    label: str
    kind: str
    state: str = ""
    steps: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    samples: Mapping[int, list[Row]] = field(default_factory=dict)
    evaluated: Mapping[int, list[Row]] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        """The newest training step."""
        return max(self._steps, default=0)

    @property
    def every(self) -> int:
        """Steps from one training row to the next, mostly; a run of this program has one each."""
        apart = [later - now for now, later in itertools.pairwise(self._steps) if later > now]
        return max(1, round(statistics.median(apart))) if apart and self.kind != OURS else 1

    @property
    def _steps(self) -> list[int]:
        return [int(row["step"]) for row in self.rows if row.get("kind") != "eval"]


def of_folder(folder: Path, card: Mapping[str, Any], config: Mapping[str, Any], state: str, notes: list[str]) -> Log:
    """A run of this program, from its files; a last line that was cut off is left out.

    Raises:
        DataError: a line in a file's middle is damaged.
    """
    file, steps = folder / "metrics.jsonl", card.get("steps")
    rows = [row for row in read_jsonl(file) if isinstance(row.get("step"), int)] if file.exists() else []
    known = steps if isinstance(steps, int) and steps > 0 else None
    samples, evaluated = (_by_number(folder / f"{name}.jsonl") for name in ("samples", "eval"))
    return Log(str(folder), OURS, state, known, config, rows, samples, evaluated, notes=notes)


def _by_number(file: Path) -> dict[int, list[Row]]:
    return {rows[0]["step"]: rows for rows in by_step(file) if isinstance(rows[0].get("step"), int)}


@dataclass(frozen=True)
class Examined:
    """What the detectors say of a run.

    Attributes:
        looked: those that had what they need.
        blind: those that had not -> what was missing.
        off: those with action=off.
        findings: lines of health.jsonl, in the order they were found.
    """

    log: Log
    looked: list[str]
    blind: dict[str, list[str]]
    off: list[str]
    findings: list[Row]


def examine(log: Log, detectors: Mapping[str, Detector], explain: Callable[[Row], str] | None = None) -> Examined:
    """Show a run to the detectors step by step, as they would have seen it while it went.

    Where a log has a row every so many steps, a row is a step to them, since their windows are of steps; what they find is told
    in steps of the run.
    """
    monitor = Monitor(detectors, explain=explain)
    monitor.start({"steps": log.steps and -(-log.steps // log.every)}, dict(log.config))
    findings = [found.row() for _ in _fed(log, monitor) for found in monitor.look()]
    for row in findings:
        row |= {"step": min(row["step"] * log.every, log.done), "since": row["since"] * log.every}
    missing = {name: one.missing(monitor.course) for name, one in monitor.detectors.items()}
    looked, blind = [name for name in missing if not missing[name]], {name: some for name, some in missing.items() if some}
    return Examined(log, looked, blind, [name for name in detectors if name not in monitor.detectors], findings)


def _fed(log: Log, monitor: Monitor) -> Iterator[int]:
    """Feeds a run in the order in which it was written, and stops after each step, its evaluation included."""
    for step, rows in itertools.groupby(log.rows, key=lambda row: int(row["step"])):
        for row in rows:
            evaluation = row.get("kind") == "eval"
            monitor.metrics({**row, "step": -(-step // log.every)})
            add, told = (monitor.evaluations, log.evaluated) if evaluation else (monitor.samples, log.samples)
            add(told.get(step, []))
        if step > 0:
            yield step
