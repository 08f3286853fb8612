"""A new branch of a run: back to one of its checkpoints, what came after it kept as a run of its own.

The run's folder follows the newest branch alone, so whatever reads it needs to know nothing of branches. Everything as it was
before, rows, checkpoints, export and W&B's files, becomes `earlier-N/` in it: a run's folder like any other.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from grpo_exp.errors import RunError
from grpo_exp.track.files import RECORDS, free_name, write_whole
from grpo_exp.track.wandb import sync_line
from grpo_exp.track.wording import part

LINKED = ("checkpoints", "export")
"""Folders whose files are never changed in place, so that two names of one file do for two copies."""


def begin(folder: Path, card: dict[str, Any], step: int) -> dict[str, Any]:
    """Go back to the checkpoint of `step`; returns what run.json says of the new branch.

    A kill in the middle leaves the run as it was, or the same with later checkpoints in `earlier-N/` alone.

    Raises:
        RunError: there is no room for the copy; nothing was changed.
    """
    kept = free_name(folder)
    temporary = kept.with_name(f".writing-{kept.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name in RECORDS:
            if (folder / name).exists():
                shutil.copy2(folder / name, temporary / name)
        for name in LINKED:
            if (folder / name).is_dir():
                shutil.copytree(folder / name, temporary / name, copy_function=_link, ignore=shutil.ignore_patterns(".*"))
        write_whole(temporary / "run.json", json.dumps(_moved(card, kept), indent=2, ensure_ascii=False) + "\n")
        os.replace(temporary, kept)
    except (OSError, RunError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(f"{kept} cannot be written ({error}); nothing was changed. Make room") from error
    if (folder / "wandb").is_dir():
        os.replace(folder / "wandb", kept / "wandb")  # the new branch gets a W&B run of its own
    for name in ("curves.png", "error.txt"):
        (folder / name).unlink(missing_ok=True)
    for path in sorted((folder / "checkpoints").glob("step-*"), reverse=True):
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)
    return {"number": 1 + int(kept.name.removeprefix("earlier-")), "from_step": step, "before": kept.name}


def _link(source: str, target: str) -> None:
    """A second name for a file; a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _moved(card: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A run card in its new place."""
    wandb = part(card, "wandb")
    if wandb.get("folder"):
        moved = folder / "wandb" / Path(wandb["folder"]).name
        wandb = {**wandb, "folder": str(moved), "sync": wandb.get("sync") and sync_line(moved)}
    status = "stopped" if card.get("status") == "running" else card.get("status")
    return card | {"folder": str(folder), "status": status} | ({"wandb": wandb} if wandb else {})
