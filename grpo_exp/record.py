"""The end of a run, whatever it is: run.json says how it ended, and an error that was not foreseen becomes one message."""

from __future__ import annotations

import contextlib
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_exp import remedy
from grpo_exp.errors import DataError, GrpoError, InputError, Pruned, RankError, RolledBack, RunError, Stopped, Unhealthy
from grpo_exp.ranks import ALONE, Ranks
from grpo_exp.track.files import FileTracker, json_text, read_object, write_whole
from grpo_exp.track.redact import without_secrets
from grpo_exp.track.wording import lines

if TYPE_CHECKING:
    from grpo_exp.config import Config
    from grpo_exp.track import Tracker
    from grpo_exp.train import Result, Trainer


class Record:
    """Keeps run.json true however the run ends, and turns what was not foreseen into a RunError."""

    def __init__(self, folder: Path, config: Config, before: dict[str, Any] | None = None, ranks: Ranks = ALONE) -> None:
        """`before` is the card of a run that goes on, to be kept where that fails before it has begun. Of several ranks the
        first alone writes."""
        self.folder, self.config, self.ranks = folder, config, ranks
        about = {"name": config.root.name, "status": "running", "objective": None, "folder": str(folder)}
        self.card: dict[str, Any] = (before or {}) | about
        self.tracker: Tracker | None = None
        self.trainer: Trainer | None = None
        self.started = time.perf_counter()

    def open(self, tracker: Tracker, card: dict[str, Any], plain: dict[str, Any]) -> None:
        """The run begins."""
        self.tracker, self.card = tracker, card
        tracker.start(card, plain)

    def close(self, result: Result) -> None:
        """The run is done."""
        self.card |= {"status": "finished", "objective": result.objective}

    def __enter__(self) -> Record:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Write the end.

        A run that ends early keeps the evaluations it had, so that a report can show it as far as it went.

        Raises:
            RunError: in place of any error but InputError, Pruned, Stopped, Unhealthy and KeyboardInterrupt.
        """
        foreseen = not isinstance(error, Exception) or isinstance(error, (InputError, Pruned, Stopped, Unhealthy))
        where = self.folder / ("error.txt" if self.ranks.first else f"error-rank-{self.ranks.rank}.txt")
        if not foreseen:
            with contextlib.suppress(OSError):  # on a full disk the message below is all there is
                where.write_text(lines(without_secrets("".join(traceback.format_exception(error)))), encoding="utf-8")
        if self.ranks.first:
            with contextlib.nullcontext() if foreseen else contextlib.suppress(GrpoError):  # likewise
                self._finish(error, foreseen)
        if isinstance(error, Exception) and not foreseen:
            kind = RankError if isinstance(error, RankError) else RunError
            raise kind(f"{self._reason(error)}. The traceback is in {where}") from error

    def _finish(self, error: BaseException | None, foreseen: bool) -> None:
        """Write the card, in whatever place there is, as it is at the end."""
        from grpo_exp.card import closing

        if error is not None:
            self.card |= _ending(error)
        if self.trainer is not None:
            self.card |= {"tokens": self.trainer.tokens, **closing(self.trainer.before, self.trainer.after)}
            self.card["health"] = _brief(self.trainer.monitor.found)
            if isinstance(error, RolledBack):
                steps = self.trainer.checkpoints.steps()
                self.card["rollbacks"] = remedy.recorded(self.card, error.finding, steps, self.config)
        self.card["wall_seconds"] = round(time.perf_counter() - self.started, 2)
        tracker = self.tracker or (None if foreseen else FileTracker(self.folder))
        if tracker is not None:
            tracker.finish(self.card)

    def _reason(self, error: Exception) -> str:
        """What went wrong, in a line, and what to do about it where that is known."""
        root, text = self.config.root, str(error).strip()
        if isinstance(error, GrpoError):
            return text.rstrip(".")
        if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
            rows = self.card.get("batch", {})
            return (
                f"out of memory with prompts_per_step={root.prompts_per_step} G={root.G} max_new_tokens={root.max_new_tokens}, "
                f"{rows.get('rollout_rows')} rows sampled and {rows.get('update_rows')} updated at a time. Lower "
                "hardware.rollout_rows or hardware.update_rows, which leave the result as it is, or max_new_tokens, or use "
                "model.gradient_checkpointing=true"
            )
        return f"the run failed: {type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


def lost(folder: Path, error: RankError) -> None:
    """Say in run.json that the run has failed, where the process that keeps it could not."""
    with contextlib.suppress(DataError, RunError, OSError):
        card = read_object(folder / "run.json")
        if card.get("status") == "running":
            write_whole(folder / "run.json", json_text(card | _ending(error)))


def _brief(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The findings in a line each: where they began and were found, and what was done."""
    return {name: {key: row[key] for key in ("since", "step", "action", "title")} for name, row in found.items()}


def _ending(error: BaseException) -> dict[str, Any]:
    """What run.json says of an error that ended the run."""
    if isinstance(error, Pruned):
        return {"status": "pruned", "objective": error.objective, "reason": str(error)}
    message = str(error) if isinstance(error, GrpoError) else f"{type(error).__name__}: {error}"
    status = "stopped" if isinstance(error, (Stopped, Unhealthy, KeyboardInterrupt)) else "failed"
    return {"status": status, "error": message, "error_type": type(error).__name__}
