"""The W&B mirror of a run. It never asks, never waits long, never prints and never kills a run.

What is left out, and why: git state, code and system statistics (slow; run.json has what matters), console capture, tables of
evaluated items (eval.jsonl has them). A SIGKILL or a full disk loses W&B rows without a word, so metrics.jsonl is the
truth and `push` rebuilds a W&B run from it.

A run that is resumed from a checkpoint keeps its W&B id and sends all rows again from metrics.jsonl: W&B then holds what the
files hold, without the rows between the checkpoint and the kill that were computed twice.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo_exp.track.base import Row, Tracker, TrackOptions, Warn
from grpo_exp.track.files import plain, read_jsonl, read_object
from grpo_exp.track.login import base_url, choose_mode, reachable
from grpo_exp.track.redact import hidden, redact
from grpo_exp.track.wording import finding_lines, is_number, part

# W&B's client itself reports 255 when Ctrl-C ends a script, and the server shows that as killed, not failed.
EXIT_CODES = {"finished": 0, "pruned": 0, "failed": 1, "stopped": 255}
_CELL = 4000  # characters of a prompt or completion in the table of samples
_ROOT_KEYS = ("beta", "temperature", "lr")
_CARD_KEYS = (
    *("algo", "formula", "model", "data", "batch", "hardware", "versions", "seeds", "git", "goal"),
    *("resumed_from", "branch"),
)


class WandbTracker(Tracker):
    """Sends a run to W&B, or keeps it in the run's folder for `wandb sync`.

    Args:
        options: mode, names and time limits.
        folder: the run's folder; W&B's files go to its subfolder `wandb`.
        warn: called with one line for a person, at most once for all failing calls.
    """

    def __init__(self, options: TrackOptions, folder: Path, warn: Warn) -> None:
        self.options = options
        self.folder = folder
        self.warn = warn
        self.run: Any = None
        self._warned = False
        self._table: deque[Row] = deque(maxlen=max(1, options.sample_rows_kept))
        self._table_step: int | None = None  # of the last table sent
        self._tables_from = 0

    def start(self, card: Row, config: Row) -> None:
        """Open a run; from here on `card["wandb"]` says where it is. Takes wandb_timeout seconds at most.

        wandb itself needs about 1 s: 0.6 s to import, 0.5 s to start its service with the first run of a process.

        Raises:
            ConfigError: track.wandb=online without a login.
        """
        mode = choose_mode(self.options.wandb, os.environ)
        if mode == "off":
            return
        self.run = self._open(mode, card, wandb_config(card, config))
        if self.run is None:
            return
        self._try("describing the run", lambda: self._describe(card))
        if card.get("resumed_from") is not None:
            for row in read_jsonl(self.folder / "metrics.jsonl"):
                self.metrics(row)

    def metrics(self, row: Row) -> None:
        if self.run is not None:
            # W&B's own step must not go back, or it drops the row; ours is a metric like the others.
            values = {k: v for k, v in hidden(plain(row)).items() if k != "kind" and v is not None}
            self._try("sending metrics", lambda: self.run.log(values))

    def samples(self, rows: Sequence[Row]) -> None:
        if self.run is None or not self.options.sample_rows_kept or not rows:
            return
        self._table.extend(rows)
        step, every = rows[0].get("step"), self.options.samples_every
        step = int(step) if is_number(step) else 0
        if every and step >= self._tables_from:
            self._tables_from = (step // every + 1) * every
            self._send_table()

    def finding(self, row: Row) -> None:
        """An alert, which W&B mails or posts where its user asked for that, and where it began in the summary."""
        if self.run is None:
            return
        level = "INFO" if row["action"] == "note" else "WARN"
        text = redact("\n".join(finding_lines(row)))
        self._try("sending an alert", lambda: self.run.alert(title=str(row["title"]), text=text, level=level))
        self.summarize({f"health/{row['detector']}": row["since"]})

    def summarize(self, values: Row) -> None:
        """Put values into the run's summary."""
        if self.run is not None:
            self._try("sending the summary", lambda: self.run.summary.update(hidden(plain(values))))

    def finish(self, card: Row) -> None:
        if self.run is None:
            return
        run, status = self.run, str(card.get("status", "failed"))
        if self._table and self._table[-1].get("step") != self._table_step:
            self._send_table()
        self._try("sending the summary", lambda: run.summary.update(_summary(card)))
        if status == "pruned":
            self._try("tagging", lambda: setattr(run, "tags", (*(run.tags or ()), "pruned")))
        began = time.monotonic()
        self._try("finishing", lambda: run.finish(exit_code=EXIT_CODES.get(status, 1)))
        self.run = None
        where = card.get("wandb") or {}
        if where.get("mode") == "online" and time.monotonic() - began >= self.options.finish_timeout:
            where["sync"] = sync_line(Path(where["folder"]))
            self.warn(
                f"W&B: the upload was not done after {self.options.finish_timeout:g} s; send the rest with: {where['sync']}"
            )

    def _open(self, mode: str, card: Row, config: Row) -> Any:
        """A W&B run: online where asked for and reached in time, otherwise offline; None where neither works."""
        began = time.monotonic()
        if mode == "online":
            url = base_url(os.environ)
            problem = "no connection"
            if reachable(url, min(5.0, self.options.wandb_timeout / 2)):
                left = max(1.0, self.options.wandb_timeout - (time.monotonic() - began) - 1.5)  # 1.5 s: import, service
                try:
                    return self._init("online", card, config, left)
                except Exception as error:  # whatever the client raises, the run is worth more than its mirror
                    problem = _first_line(error)
            self._warn_once(f"W&B: {url} cannot be used ({problem}); this run is recorded offline")
        try:
            return self._init("offline", card, config, self.options.wandb_timeout)
        except Exception as error:
            self._warn_once(f"W&B: no run could be started ({_first_line(error)}); the run's files hold everything")
            return None

    def _init(self, mode: str, card: Row, config: Row, seconds: float) -> Any:
        import wandb

        options = self.options
        wandb.setup(settings=_settings(wandb, silent=True, quiet=True, console="off"))  # before anything can be printed
        settings = _settings(
            wandb,
            mode=mode,
            silent=True,
            quiet=True,
            console="off",
            init_timeout=seconds,
            finish_timeout=options.finish_timeout,
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        return wandb.init(
            project=options.project,
            entity=options.entity,
            name=redact(card.get("name")),
            id=options.id or (_earlier_id(self.folder) if card.get("resumed_from") is not None else None),
            group=redact(options.group),
            job_type=redact(options.job_type),
            tags=redact(list(options.tags)) or None,
            config=config,
            dir=str(self.folder),
            reinit="create_new",  # several runs in one process stay apart: without it init returns the first again
            settings=settings,
        )

    def _describe(self, card: Row) -> None:
        self.run.define_metric("*", step_metric="step")
        offline, folder = bool(self.run.offline), Path(self.run.dir).parent
        card["wandb"] = {
            "mode": "offline" if offline else "online",
            "project": self.run.project,
            "id": self.run.id,
            "url": None if offline else self.run.url,
            "folder": str(folder),
            "sync": sync_line(folder) if offline else None,
        }

    def _send_table(self) -> None:
        import wandb

        rows = [hidden(plain(row)) for row in self._table]
        names = list(dict.fromkeys(name for row in rows for name in row))
        data = [[v[:_CELL] if isinstance(v := row.get(name), str) else v for name in names] for row in rows]
        step = self._table_step = rows[-1].get("step")

        def send() -> None:
            self.run.log({"step": step, "samples": wandb.Table(columns=names, data=data, allow_mixed_types=True)})

        self._try("sending samples", send)

    def _try(self, what: str, call: Callable[[], object]) -> None:
        """Call W&B; whatever it raises is said once and otherwise ignored."""
        try:
            call()
        except Exception as error:
            self._warn_once(f"W&B: {what} failed ({_first_line(error)}); the run goes on, its files hold everything")

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            self.warn(text)


def push(folder: Path, options: TrackOptions, warn: Warn) -> Row:
    """Send a run that has ended to W&B, from the files in its folder: the way back where W&B lost rows.

    Returns:
        the run card with `wandb` saying where the run is now.

    Raises:
        DataError: metrics.jsonl, run.json or config.yaml is missing or broken.
        ConfigError: track.wandb=online without a login.
    """
    rows = list(read_jsonl(folder / "metrics.jsonl"))
    card = {**read_object(folder / "run.json"), "resumed_from": None, "wandb": None}
    tracker = WandbTracker(options, folder, warn)
    tracker.start(card, read_object(folder / "config.yaml"))
    for row in rows:
        tracker.metrics(row)
    if (samples := folder / "samples.jsonl").exists():
        tracker.samples(list(read_jsonl(samples)))
    tracker.finish(card)
    return card


def wandb_config(card: Row, config: Row) -> Row:
    """The configuration with beta, G, temperature and lr at the top, as resolved, and the run card under `card`."""
    batch = part(card, "batch")
    root = {key: card[key] for key in _ROOT_KEYS if card.get(key) is not None}
    root |= {"G": batch["G"]} if batch.get("G") is not None else {}
    about = {key: card[key] for key in _CARD_KEYS if card.get(key) is not None}
    merged: Row = redact(plain({**config, **root, "card": about}))
    return merged


def _summary(card: Row) -> Row:
    """What W&B compares runs by: status, objective, time, and each metric before and after with its interval."""
    summary: Row = {
        "status": card.get("status"),
        "objective": card.get("objective"),
        "wall_seconds": card.get("wall_seconds"),
    }
    for when in ("before", "after", "difference"):
        for name, triple in part(card, when).items():
            for suffix, value in zip(("", "_low", "_high"), triple, strict=False):
                summary[f"{when}/{name}{suffix}"] = value
    return {k: v for k, v in summary.items() if v is not None and not (isinstance(v, float) and not math.isfinite(v))}


def _settings(wandb: Any, **wanted: Any) -> Any:
    """`wandb.Settings` of those that this version knows: it refuses unknown ones, and x_… may go at any time."""
    return wandb.Settings(**{k: v for k, v in wanted.items() if k in wandb.Settings.model_fields})


def _earlier_id(folder: Path) -> str | None:
    """The id of the last W&B run in this folder: its folders are called (offline-)run-<date>_<time>-<id>."""
    found = [m for p in folder.glob("wandb/*run-*") if (m := re.search(r"run-(\d{8}_\d{6})-(.+)$", p.name))]
    return max(found, key=lambda m: m[1])[2] if found else None


def sync_line(folder: Path) -> str:
    shown = os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)
    return f"wandb sync {shlex.quote(shown)}"


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
