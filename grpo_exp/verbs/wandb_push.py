"""send runs to W&B from their own files: wandb-push FOLDER [track.wandb=online track.project=...]

    python -m grpo_exp wandb-push outputs/runs/RUN              one run, as it stands in its folder
    python -m grpo_exp wandb-push outputs/sweeps/beta_grid      every run of a sweep, in the sweep's group

W&B loses rows without a word when a process is killed or a disk is full; metrics.jsonl does not. Each run arrives as a new one
with its configuration, all rows, samples and how it ended. Options of track are the run's own unless they are given here;
without a login the runs are written for `wandb sync`, and the lines that send them are printed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_exp.errors import DataError, InputError
from grpo_exp.track.wording import said

if TYPE_CHECKING:
    from grpo_exp.report.runs import Run
    from grpo_exp.track import TrackOptions

USAGE = "usage: python -m grpo_exp wandb-push FOLDER ... [track.KEY=VALUE ...]; python -m grpo_exp help wandb-push says more"


def main(words: list[str]) -> int:
    """Send them one after the other; 3 where one could not be sent, after the others were.

    Raises:
        InputError: a folder without runs, or an option that is wrong.
    """
    import sys

    from grpo_exp.report.runs import find
    from grpo_exp.track.wandb import push

    folders = [word for word in words if "=" not in word]
    if not folders or any(word.startswith("-") for word in words):
        raise InputError(USAGE)
    changes = _changes([word for word in words if "=" in word])
    failed = 0
    for run in find([Path(folder) for folder in folders]):
        notes: list[str] = []
        if run.status == "broken":
            failed += 1
            sys.stderr.write(f"grpo_exp: {said(f'{run.folder}: not sent, {run.reason}')}\n")
            continue
        options = _options(run, changes)
        try:
            card = push(run.folder, options, notes.append)
        except DataError as error:
            failed += 1
            sys.stderr.write(f"grpo_exp: {said(f'not sent: {error}')}\n")
            continue
        where = card.get("wandb") or {}
        failed += not where
        print("\n".join([f"{run.folder}: {where.get('url') or where.get('sync') or 'not sent'}", *notes]), flush=True)
    return 3 if failed else 0


def _changes(words: list[str]) -> dict[str, Any]:
    """Options of track given on the command line.

    Raises:
        InputError: one of something else.
    """
    from grpo_exp.command_line import parse

    changes = {}
    for word in words:
        key = str(parse(word).key_or_group)
        if not key.startswith("track."):
            raise InputError(f"{word}: wandb-push takes options of track alone, such as track.project=mine. {USAGE}")
        changes[key.removeprefix("track.")] = parse(word).value()
    return changes


def _options(run: Run, changes: dict[str, Any]) -> TrackOptions:
    """The run's own options of track with these changes; in a sweep's group, and never silent because the run was."""
    from grpo_exp.schema import make
    from grpo_exp.track import TrackOptions

    own = {key.removeprefix("track."): value for key, value in run.config.items() if key.startswith("track.")}
    own |= {"wandb": "auto", "id": None, "group": own.get("group") or run.sweep}
    return make(TrackOptions, own | changes, "track")
