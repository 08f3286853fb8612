"""The study: which trials there are and how they ended, kept where a kill or a full disk cannot spoil it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from grpo_exp.config import changes
from grpo_exp.errors import ConfigError, InputError

JOURNAL = "study.journal"
PLAN, ATTEMPTS, REASON, IMPORTED = "plan", "attempts", "reason", "imported"
"""Names of what the study and its trials remember besides Optuna's own."""
LOCKED = 60.0
"""Seconds to wait for a locked SQLite file; five, its own, are too few for several workers."""


@contextlib.contextmanager
def lock(path: Path, wait: bool) -> Iterator[bool]:
    """Hold a lock file; it is free again when its process ends, however that happens. Yields whether it was had."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


class Journal(BaseJournalBackend):
    """Optuna's journal file, written so that no kill and no full disk can spoil it.

    Two things differ. The lock is one that the system frees when its holder dies; Optuna's own would keep everybody waiting for
    half a minute. And half a record at the end, which a kill or a full disk leaves, is cut off before the next is written;
    Optuna would glue the next to it, and after the one following never read the file again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.reader = JournalFileBackend(str(path))

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        return self.reader.read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append records, all or none.

        Raises:
            OSError: they cannot be written.
        """
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with lock(self.path.with_name(f".{self.path.name}.lock"), wait=True), self.path.open("r+b", buffering=0) as file:
            whole = _whole(file)
            file.truncate(whole)
            file.seek(whole)
            try:
                content = memoryview(text.encode())
                while content:
                    content = content[file.write(content) or 0 :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(whole)
                raise


def _whole(file: IO[bytes]) -> int:
    """Where the last whole line of a file ends."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 65536)
        file.seek(start)
        if (found := file.read(end - start).rfind(b"\n")) >= 0:
            return start + found + 1
        end = start
    return 0


def storage(folder: Path, url: str | None) -> BaseStorage:
    """The storage that a sweep's options name; each process opens its own.

    Raises:
        ConfigError: the URL cannot be used.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if url is None:
            return JournalStorage(Journal(folder / JOURNAL))
        if url.startswith("journal://"):
            return JournalStorage(Journal(Path(url.removeprefix("journal://"))))
        try:
            if url.startswith("sqlite"):
                return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": LOCKED}})
            made: BaseStorage = optuna.storages.get_storage(url)
            return made
        except Exception as error:  # SQLAlchemy and the drivers raise all kinds
            raise ConfigError(
                f"hydra.sweeper.storage={url!r}: {str(error).splitlines()[0][:200]}. Expected an Optuna URL such as "
                "sqlite:///study.db (needs pip install sqlalchemy alembic), or null for a journal in the sweep's folder"
            ) from error


def open_study(
    folder: Path, url: str | None, name: str, directions: list[str], pruner: optuna.pruners.BasePruner, plan: dict[str, Any]
) -> optuna.Study:
    """Create the study, or go on with the one that is there.

    `plan` is what must not change on the way: the space, the metrics, the seeds, the base configuration.

    Raises:
        ConfigError: the study that is there has another plan; the differences are named.
        InputError: the journal cannot be read.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            storage=storage(folder, url),
            study_name=name,
            directions=directions,  # type: ignore[arg-type]
            pruner=pruner,
            load_if_exists=True,
        )
        known = study.user_attrs.get(PLAN)
        study.get_trials(deepcopy=False)
    except ConfigError:
        raise
    except Exception as error:  # Optuna and SQLAlchemy raise all kinds on content that is not theirs
        raise InputError(
            f"{_where(folder, url)}: the study cannot be read ({type(error).__name__}: {error}). Move it away to begin anew; "
            "finished runs in the folder are kept and not trained again"
        ) from error
    if known is None:
        study.set_user_attr(PLAN, json.loads(json.dumps(plan)))
        return study
    pairs = changes(known, json.loads(json.dumps(plan)))
    different = [f"{key} was {_short(before)} and is {_short(now)}" for key, before, now in pairs]
    if different:
        raise ConfigError(
            f"the sweep in {folder} has another plan: {'; '.join(different[:4])}. Choose another folder with hydra.sweep.dir=, "
            "or the options it was started with"
        )
    return study


def load_study(folder: Path, plan: dict[str, Any], pruner: optuna.pruners.BasePruner | None = None) -> optuna.Study:
    """The study of a sweep, as its sweep.json names it.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return optuna.load_study(study_name=plan["study_name"], storage=storage(folder, plan["storage"]), pruner=pruner)
    except ConfigError:
        raise
    except Exception as error:  # as above
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{_where(folder, plan['storage'])}: the study cannot be read ({reason})") from error


def _where(folder: Path, url: str | None) -> str:
    """The study's place, for a message: of a journal, with the first line that is none of a journal's."""
    if url is not None and not url.startswith("journal://"):
        return url
    path = folder / JOURNAL if url is None else Path(url.removeprefix("journal://"))
    with contextlib.suppress(OSError):
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            try:
                good = not line or isinstance(json.loads(line), dict)
            except (ValueError, RecursionError):
                good = False
            if not good:
                return f"{path}:{number}"
    return str(path)


def _short(value: Any) -> str:
    text = "not there" if value is None else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def importance(study: optuna.Study) -> list[tuple[str, float]]:
    """Shares of what sets the best trials apart, the largest first; none below four finished trials or where nothing varied.

    PED-ANOVA (Watanabe et al. 2023, arXiv 2304.10255), which needs no further package and no random numbers. Of several
    objectives, those of the first.
    """
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(done) < 4:
        return []
    sign = -1 if study.directions[0] == optuna.study.StudyDirection.MAXIMIZE else 1  # of a target, less is better
    target = (lambda trial: sign * trial.values[0]) if len(study.directions) > 1 else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # marked as experimental
            anova = optuna.importance.PedAnovaImportanceEvaluator()
            shares = optuna.importance.get_param_importances(study, evaluator=anova, target=target)
    except (ValueError, RuntimeError):  # all values equal, no parameter common to all trials
        return []
    return [(key, float(share)) for key, share in shares.items() if math.isfinite(share)]


def own(trials: list[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that count: those this sweep ran or runs, not those taken over from an earlier one."""
    return [t for t in trials if not t.user_attrs.get(IMPORTED) and t.state != TrialState.WAITING]


def feasible(trial: FrozenTrial) -> bool:
    """Whether a trial kept to its constraints."""
    return all(value <= 0 for value in getattr(trial, "constraints", {}).values())
