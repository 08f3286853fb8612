"""What a run has shown so far: its metrics, the samples of its newest and of its first steps, its configuration."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_exp.track.base import Row

NEWEST, FIRST = 8, 4
"""Of so many steps samples are kept: the newest, and those the run began with."""
_PLACE = ("step", "kind", "tokens", "seconds")


class Course:
    """A run up to now, fed row by row. Detectors read it and change nothing.

    Attributes:
        config: the run's resolved configuration; empty for a run of another program.
        steps: training steps it is to have; None where that is not known.
        step: the newest step that anything is known of.
        train, evals: (step, value) of each metric, oldest first, of training steps and of evaluations; finite values alone.
        not_finite: (step, metric) where a value was NaN or infinite.
        samples: (step, rows of samples.jsonl) of the newest steps.
        first_samples: the same of the first steps.
        evaluated: (step, rows of eval.jsonl) of the first and of the newest evaluation.
        explain: what the reward read in a sample and why it is worth that, in a line; None where the reward is not at hand.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        steps: int | None = None,
        explain: Callable[[Row], str] | None = None,
    ) -> None:
        self.explain = explain
        self.config = config or {}
        self.steps = steps
        self.step = 0
        self.train: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.evals: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.not_finite: list[tuple[int, str]] = []
        self.samples: deque[tuple[int, list[Row]]] = deque(maxlen=NEWEST)
        self.first_samples: list[tuple[int, list[Row]]] = []
        self.evaluated: list[tuple[int, list[Row]]] = []

    # ---- fed

    def add_metrics(self, row: Row) -> None:
        """A row of metrics.jsonl, or one as the loop makes it: there NaN is NaN, in the file it is null."""
        step = int(row["step"])
        self.step = max(self.step, step)
        series = self.evals if row.get("kind") == "eval" else self.train
        for name, value in row.items():
            if name in _PLACE or isinstance(value, (str, bool)):
                continue
            if value is None or not math.isfinite(value):
                self.not_finite.append((step, name))
            else:
                series[name].append((step, float(value)))

    def add_samples(self, rows: Sequence[Row]) -> None:
        """Samples of one training step, the fields of samples.jsonl."""
        if not rows:
            return
        step, kept = int(rows[0]["step"]), list(rows)
        self.samples.append((step, kept))
        if len(self.first_samples) < FIRST:
            self.first_samples.append((step, kept))

    def add_evaluation(self, rows: Sequence[Row]) -> None:
        """Evaluated items and samples, the fields of eval.jsonl."""
        if rows:
            self.evaluated = [*self.evaluated[:1], (int(rows[0]["step"]), list(rows))]

    # ---- read

    def window(self, name: str, count: int) -> list[float] | None:
        """The newest `count` values of a training metric, oldest first; None while there are fewer."""
        values = self.train.get(name, ())
        return [value for _, value in values[-count:]] if len(values) >= count else None

    def within(self, name: str, steps: int, before: int = 0) -> list[float]:
        """The values of a training metric in the newest `steps` steps, or in as many that end `before` steps ago; a metric that
        is not measured in every step has fewer."""
        last = self.step - before
        newest = self.train.get(name, ())[-(steps + before) :]
        return [value for step, value in newest if last - steps < step <= last]

    def start(self, name: str, count: int) -> list[float] | None:
        """The first `count` values of a training metric; None while there are fewer."""
        values = self.train.get(name, ())
        return [value for _, value in values[:count]] if len(values) >= count else None

    def since(self, name: str, holds: Callable[[float], bool], evals: bool = False) -> int:
        """The first step of the unbroken stretch up to now in which `holds` is true of a metric; the present step where it
        is not."""
        began = self.step
        for step, value in reversed((self.evals if evals else self.train).get(name, ())):
            if not holds(value):
                break
            began = step
        return began

    def newest_rows(self, steps: int = 1) -> list[Row]:
        """Samples of the newest steps, the newest step last."""
        return [row for _, rows in list(self.samples)[-steps:] for row in rows]

    # ---- what may be changed

    def option(self, key: str) -> Any:
        """The value of an option by its dotted key; None where it is not known."""
        value: Any = self.config
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def scaled(self, key: str, factor: float, whole: bool = False) -> str:
        """An override to try: the option times a factor, as a word of a command line; in words where its value is not known."""
        value = self.option(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value:
            return f"{key} times {factor:.3g}"
        return f"{key}={max(1, round(value * factor)) if whole else float(f'{value * factor:.3g}'):g}"
