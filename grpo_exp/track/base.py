"""The interface every place shares that a run is recorded in, and the fan-out to all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


class Tracker:
    """A place that a run is recorded in. Every method does nothing by default.

    Logging never kills a run: an implementation that talks to something that may fail handles that itself. Starting one
    that is configured wrongly raises InputError.
    """

    def start(self, card: Row, config: Row) -> None:
        """The run begins. `card` is what becomes run.json; `config` the resolved configuration, secrets redacted."""

    def metrics(self, row: Row) -> None:
        """One line of metrics.jsonl: step, kind (train or eval), tokens, seconds, then metrics by their contract names."""

    def samples(self, rows: Sequence[Row]) -> None:
        """Training samples of a step, one dict each, the fields of samples.jsonl."""

    def evaluations(self, rows: Sequence[Row]) -> None:
        """Evaluated items and samples, one dict each, the fields of eval.jsonl."""

    def note(self, text: str, level: str = "note") -> None:
        """Something a person should read. `level` is note or warn."""

    def finish(self, card: Row) -> None:
        """The run ended; `card["status"]` is finished, failed, pruned or stopped. Called exactly once."""


class Trackers(Tracker):
    """Passes everything on to several trackers, in order."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)

    def start(self, card: Row, config: Row) -> None:
        for tracker in self.trackers:
            tracker.start(card, config)

    def metrics(self, row: Row) -> None:
        for tracker in self.trackers:
            tracker.metrics(row)

    def samples(self, rows: Sequence[Row]) -> None:
        for tracker in self.trackers:
            tracker.samples(rows)

    def evaluations(self, rows: Sequence[Row]) -> None:
        for tracker in self.trackers:
            tracker.evaluations(rows)

    def note(self, text: str, level: str = "note") -> None:
        for tracker in self.trackers:
            tracker.note(text, level)

    def finish(self, card: Row) -> None:
        for tracker in self.trackers:
            tracker.finish(card)
