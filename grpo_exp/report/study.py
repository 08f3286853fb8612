"""What Optuna says of a sweep's study: the importance of its parameters and the course of the search."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_exp.report.runs import Run

LOG = logging.getLogger(__name__)
STUDY = "study.journal"


def studies(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Each study among the sweeps of `runs`: `{"name", "importance": [(parameter, share)], "history": figure or None}`.

    A journal that cannot be read is left out, with a warning: a report says what it can.
    """
    found: list[dict[str, Any]] = []
    for folder in dict.fromkeys(run.folder.parent for run in runs):
        top = folder.parent if folder.name.isdigit() else folder
        if (top / STUDY).is_file() and all(entry["folder"] != str(top) for entry in found):
            try:
                found.append({"folder": str(top), "name": top.name, **_study(top)})
            except Exception as error:  # Optuna raises many kinds for a damaged journal
                LOG.warning("%s: not shown (%s: %s)", top / STUDY, type(error).__name__, error)
    return [{key: value for key, value in entry.items() if key != "folder"} for entry in found]


def _study(top: Path) -> dict[str, Any]:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    from grpo_exp.sweep.study import importance

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna marks journals and some figures as experimental
        storage = JournalStorage(JournalFileBackend(str(top / STUDY)))
        names = [summary.study_name for summary in storage.get_all_studies()]
        name = top.name if top.name in names else names[0]
        study = optuna.load_study(study_name=name, storage=storage)
        several = len(study.directions) > 1
        shares = [(str(key)[:100], round(share, 4)) for key, share in importance(study)]
        return {"importance": shares, "history": None if several else _history(study)}


def _history(study: Any) -> dict[str, Any] | None:
    """Optuna's own plot of the course of the search, its lines and points as plain numbers."""
    from optuna.visualization import plot_optimization_history

    figure = plot_optimization_history(study)
    data = [
        {
            "type": "scatter",
            "mode": trace.mode,
            "name": str(trace.name),
            "x": [int(x) for x in trace.x],
            "y": [float(f"{y:.5g}") if math.isfinite(y) else None for y in trace.y],
        }
        for trace in figure.data
        if trace.x is not None and len(trace.x)
    ]
    return {"data": data, "x": "trial", "y": "objective"} if data else None
