"""The interface every place shares that a run is recorded in, the fan-out to all of them, and their options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_exp.errors import GrpoError
from grpo_exp.options import option

Row = dict[str, Any]


@dataclass
class TrackOptions:
    """Where a run is recorded, beside the files in its folder, which are always written."""

    wandb: str = option(
        "auto: online with a login, otherwise offline; off: no W&B", choices=("auto", "online", "offline", "off")
    )
    project: str | None = option("W&B project")
    entity: str | None = option("W&B user or team; null: the login's own")
    group: str | None = option("W&B group, such as the name of a sweep")
    job_type: str | None = option("W&B job type, such as train")
    tags: list[str] = option("W&B tags")
    id: str | None = option("W&B run id; a run of this id is replaced. null: a new one, kept when a run resumes")
    wandb_timeout: float = option("seconds to wait for the W&B server at the start; then the run goes offline", low=1)
    finish_timeout: float = option("seconds to wait for the upload at the end of a run", low=1)
    sample_rows_kept: int = option("rows in the W&B table of samples, the newest; 0: no table", low=0)
    console: str = option(
        "auto: live on a terminal, otherwise plain; quiet: warnings alone", choices=("auto", "live", "plain", "quiet")
    )
    print_every: int = option("steps between two lines, where the console is plain", low=1)
    samples_every: int = option("steps between two looks at samples, on the console and in W&B; 0: none", low=0)
    samples_shown: int = option("samples shown at a look: the best, the worst and between them", low=0)
    picture: bool = option("draw curves.png at the end of a run")


class Tracker:
    """A place that a run is recorded in. Every method does nothing by default.

    Logging never kills a run: an implementation that talks to something that may fail handles that itself. Starting one
    that is configured wrongly raises InputError. The files are the exception: without them there is no run, so they raise
    RunError.
    """

    def start(self, card: Row, config: Row) -> None:
        """The run begins. `card` is what becomes run.json; `config` the resolved configuration, secrets redacted.

        `card["resumed_from"]` is the step of the checkpoint that a run goes on from, `card["resumed_evaluation"]` that of the
        last evaluation it knows. Rows of later steps, written before the run was killed, are dropped. Without these, rows of
        an earlier run in the same folder are moved aside.
        """

    def metrics(self, row: Row) -> None:
        """One line of metrics.jsonl: step, kind (train or eval), tokens, seconds, then metrics by their contract names.

        An interval travels as two more keys: `eval/pass@1`, `eval/pass@1_low`, `eval/pass@1_high`.
        """

    def samples(self, rows: Sequence[Row]) -> None:
        """Training samples of a step, one dict each, the fields of samples.jsonl."""

    def evaluations(self, rows: Sequence[Row]) -> None:
        """Evaluated items and samples, one dict each, the fields of eval.jsonl."""

    def note(self, text: str, level: str = "note") -> None:
        """Something a person should read. `level` is note or warn."""

    def finding(self, row: Row) -> None:
        """What a health check found, a line of health.jsonl; `row["step"]` is where, `row["since"]` where it began."""

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

    def finding(self, row: Row) -> None:
        for tracker in self.trackers:
            tracker.finding(row)

    def finish(self, card: Row) -> None:
        """Finish all, also after one of them failed: a full disk must not leave a W&B run open. Raises the first error."""
        first: GrpoError | None = None
        for tracker in self.trackers:
            try:
                tracker.finish(card)
            except GrpoError as error:
                first = first or error
        if first is not None:
            raise first


Warn = Callable[[str], None]
