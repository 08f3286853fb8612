"""What an earlier call left in a run's folder: nothing, a finished run, or one to go on with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_exp import config as configuration
from grpo_exp.errors import CheckpointError, ConfigError, InputError

if TYPE_CHECKING:
    from grpo_exp.checkpoint import State

LONGER = ("steps", "experience.max_tokens")
"""Options that make a run longer and change nothing else."""
BESIDE = ("track", "checkpoint", "name")
"""Options that what is trained and measured does not depend on."""
EXACT = ("device", "dtype", "threads", "cpu")
"""What must be as it was for the same numbers bit for bit; so must the versions of the libraries."""


@dataclass(frozen=True)
class Earlier:
    """An earlier run in the same folder.

    Attributes:
        card: its run.json; empty where the folder is free.
        finished: it has come to its end, and no more is asked for.
        state: the newest whole checkpoint; None where there is none.
        notes: what a person should know: damaged checkpoints that are passed over.
    """

    card: dict[str, Any] = field(default_factory=dict)
    finished: bool = False
    state: State | None = None
    notes: list[str] = field(default_factory=list)


def find(folder: Path, plain: dict[str, Any], secrets: set[str]) -> Earlier:
    """Look at a folder that a run is to be written to.

    Raises:
        ConfigError: it holds a run of another configuration; the options that differ are named.
        InputError: its files cannot be read.
    """
    import yaml

    from grpo_exp.track.redact import redact

    try:
        card: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        before = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Earlier()
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(
            f"{folder}: its run.json or config.yaml cannot be read ({error}). Choose another folder with hydra.run.dir="
        ) from error
    different = configuration.difference(before, json.loads(json.dumps(redact(plain, secrets))))
    other = [key for key in different if key not in LONGER and key.partition(".")[0] not in BESIDE]
    if other:
        raise ConfigError(
            f"the folder {folder} holds a run of another configuration ({', '.join(other[:5])} differ); choose another one "
            "with hydra.run.dir= or hydra.sweep.dir="
        )
    longer = any(key in LONGER for key in different)
    if card.get("status") == "finished" and not longer:
        return Earlier(card, finished=True)
    state, notes = _newest(folder / "checkpoints")
    return Earlier(card, False, state, notes)


def _newest(folder: Path) -> tuple[State | None, list[str]]:
    """The newest checkpoint that is whole, and what is wrong with those after it."""
    if not folder.is_dir():
        return None, []
    from grpo_exp.checkpoint import load

    notes: list[str] = []
    for path in sorted(folder.glob("step-*/manifest.json"), reverse=True):
        try:
            return load(path.parent), notes
        except CheckpointError as error:
            notes.append(f"{error}; going on from the one before")
    return None, notes


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What a run card says is not as it was, so that a resumed run cannot be promised to be the same bit for bit."""
    found = [
        f"{key} was {a} and is {b}"
        for key in EXACT
        if (a := (before.get("hardware") or {}).get(key)) != (b := (now.get("hardware") or {}).get(key))
    ]
    versions = before.get("versions") or {}
    return found + [
        f"{name} was {versions.get(name)} and is {v}" for name, v in now["versions"].items() if versions.get(name) != v
    ]
