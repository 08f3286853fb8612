"""A run that its health checks send back: to a checkpoint from before the trouble, with another lr or beta.

What was decided stands in run.json under `rollbacks` before anything is done about it, so that a kill at any moment loses
nothing, and the command that began the run goes on with it as it is now.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict

from grpo_exp.errors import DataError
from grpo_exp.track.files import read_object

if TYPE_CHECKING:
    from grpo_exp.config import Config

Row = dict[str, Any]


def recorded(card: Row, finding: Row, checkpoints: Sequence[int], config: Config) -> list[Row]:
    """The rollbacks of a run with one more: where it goes back to, and what changes there.

    The checkpoint is the newest of a step before the one in which the trouble began; the first of all where there is none.
    """
    options = config.health.rollback
    back = max((step for step in checkpoints if step < finding["since"]), default=min(checkpoints))
    old = {"lr": config.root.lr, "beta": config.root.beta}
    new = {"lr": old["lr"] * options.lr_factor, "beta": old["beta"] * options.beta_factor}
    changes = {key: [old[key], float(f"{new[key]:.6g}")] for key in old if new[key] != old[key]}
    about = {key: finding[key] for key in ("detector", "title", "since", "step")}
    return [*(card.get("rollbacks") or []), {**about, "to": back, "changes": changes, "done": False}]


def changed(composed: DictConfig, folder: Path) -> DictConfig | None:
    """The configuration with what the rollbacks of the run in `folder` changed; None where there are none.

    An option that was given another value by hand since stays as it is given.
    """
    rollbacks = _of(folder)
    if not rollbacks:
        return None
    other = copy.deepcopy(composed)
    with open_dict(other):
        for rollback in rollbacks:
            for key, (old, new) in rollback["changes"].items():
                if OmegaConf.select(other, key) == old:
                    other[key] = new
    return other


def pending(folder: Path) -> int | None:
    """The step that the run in `folder` is to be sent back to and was not yet; None where there is none."""
    waiting = [rollback["to"] for rollback in _of(folder) if not rollback["done"]]
    return waiting[-1] if waiting else None


def done(card: Row) -> list[Row]:
    """The rollbacks of a card, all of them carried out."""
    return [{**rollback, "done": True} for rollback in card.get("rollbacks") or []]


def used_up(card: Row, times: int) -> bool:
    """Whether a run was sent back as often as it may be, so that the next such finding stops it."""
    return len(card.get("rollbacks") or []) >= times


def reason(card: Row) -> str:
    """Why a run is sent back that was not yet, in a few words; empty where it is not."""
    waiting = [one for one in card.get("rollbacks") or [] if not one["done"]]
    return f"sent back by a health check ({waiting[-1]['title']} since step {waiting[-1]['since']})" if waiting else ""


def _of(folder: Path) -> list[Row]:
    """The rollbacks in a folder's run.json; none where there is no run, or none that can be read."""
    try:
        found = read_object(folder / "run.json").get("rollbacks")
    except DataError:
        return []
    return found if isinstance(found, list) else []
