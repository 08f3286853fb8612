"""What an earlier call left in a run's folder: nothing, a finished run, or one to go on with."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_exp import config as configuration
from grpo_exp.errors import CheckpointError, ConfigError, InputError
from grpo_exp.ranks import Ranks
from grpo_exp.schema import shown
from grpo_exp.track.wording import part

if TYPE_CHECKING:
    from grpo_exp.checkpoint import State

LONGER = ("steps", "experience.max_tokens")
"""Options that make a run longer and change nothing else."""
BESIDE = ("track", "checkpoint", "hardware", "health", "name")
"""Options that what is trained and measured does not depend on, up to rounding; but for OVERLAP."""
OVERLAP = "hardware.overlap"
EXACT = {
    "hardware": ("device", "dtype", "threads", "cpu", "processes", "shard"),
    "batch": ("rollout_rows", "eval_rows", "update_rows"),
}
"""What of a run card must be as it was for the same numbers bit for bit; so must the versions of the libraries."""


@dataclass(frozen=True)
class Earlier:
    """An earlier run in the same folder.

    Attributes:
        card: its run.json; empty where the folder is free.
        finished: it has come to its end, and no more is asked for.
        state: the checkpoint to go on from; None where there is none.
        notes: what a person should know: damaged checkpoints that are passed over.
        forced: `lr: 0.001 -> 0.01`, the options that are another run's, where it goes on all the same, in a new branch.
        same_machine: no option of `hardware` was changed.
        back_to: the step that a new branch begins at; None for no new branch.
    """

    card: dict[str, Any] = field(default_factory=dict)
    finished: bool = False
    state: State | None = None
    notes: list[str] = field(default_factory=list)
    forced: list[str] = field(default_factory=list)
    same_machine: bool = True
    back_to: int | None = None


NOTHING = Earlier()


def find(folder: Path, plain: dict[str, Any], secrets: set[str], back_to: int | None = None, force: bool = False) -> Earlier:
    """Look at a folder that a run is to be written to.

    Args:
        back_to: go on from the checkpoint of this step, not from the newest. A branch that began there with the same options
            is gone on with: another would come to the same numbers.
        force: go on although the configuration is another one.

    Raises:
        ConfigError: it holds a run of another configuration; the options that differ are named.
        InputError: its files cannot be read.
        CheckpointError: the checkpoint that is asked for is damaged.
    """
    from grpo_exp.track.files import plain as in_json
    from grpo_exp.track.redact import redact

    found = _read(folder)
    if found is None:
        return NOTHING
    card, before = found
    changed = {key: (a, b) for key, a, b in configuration.changes(before, in_json(redact(plain, secrets), keep_nan=True))}
    if changed.get(OVERLAP) == (None, 0):  # of before there was the option
        del changed[OVERLAP]
    longer = any(key in LONGER for key in changed)
    beside = {key for key in changed if key.partition(".")[0] in BESIDE and key != OVERLAP}
    other = [f"{key}: {shown(a)} -> {shown(b)}" for key, (a, b) in changed.items() if key not in {*LONGER, *beside}]
    if other and not force:
        raise ConfigError(
            f"the folder {folder} holds a run of another configuration ({', '.join(other[:8])}). Choose another folder with "
            "hydra.run.dir= or hydra.sweep.dir=, or go on from its weights all the same: python -m grpo_exp resume "
            f"{shlex.quote(str(folder))} force=true KEY=VALUE"
        )
    same_machine = not any(key.startswith("hardware.") for key in beside)
    if part(card, "branch").get("from_step", -1) == back_to and not other:
        back_to = None
    if card.get("status") == "finished" and not longer and not other and back_to is None:
        return Earlier(card, finished=True)
    if back_to is None:
        state, notes = _newest(folder / "checkpoints")
    else:
        from grpo_exp.checkpoint import load

        state, notes = load(folder / "checkpoints" / f"step-{back_to:06d}"), []
    if other and state and state.progress["step"] >= plain["steps"]:
        raise ConfigError(
            f"{folder}: all of its {plain['steps']} steps are done, so that other options have nothing to do. Ask for more "
            f"with steps=N, or go back to an earlier checkpoint: resume {folder}@STEP"
        )
    if other and state:
        back_to = state.progress["step"]
    return Earlier(card, False, state, notes, other if state else [], same_machine, back_to)


def same(found: Earlier, folder: Path, ranks: Ranks) -> Earlier:
    """What the first rank found, on every rank: each reads the weights from the checkpoint itself.

    Raises:
        CheckpointError: this one cannot; the run's folder must be seen by all machines.
    """
    step = None if found.state is None else found.state.progress["step"]
    told, step = ranks.from_first(lambda: (replace(found, state=None), step))
    if ranks.first or step is None:
        return found if ranks.first else told
    from grpo_exp.checkpoint import load

    return replace(told, state=load(folder / "checkpoints" / f"step-{step:06d}"))


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """run.json and config.yaml; None where one of them is missing.

    Raises:
        InputError: one cannot be read.
    """
    import yaml

    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        options = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not isinstance(options, dict):
            raise ValueError("not what a run writes")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(
            f"{folder}: its run.json or config.yaml cannot be read ({error}). Choose another folder with hydra.run.dir="
        ) from error
    return found, options


def _newest(folder: Path) -> tuple[State | None, list[str]]:
    """The newest checkpoint that is whole, and what is wrong with those after it."""
    if not folder.is_dir():
        return None, []
    from grpo_exp.checkpoint import load

    notes: list[str] = []
    for path in sorted(folder.glob("step-*/manifest.json"), key=lambda p: p.parent.name.rjust(20, "0"), reverse=True):
        try:
            return load(path.parent), notes
        except CheckpointError as error:
            notes.append(f"{error}; going on from the one before")
    return None, notes


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What a run card says is not as it was, so that a resumed run cannot be promised to be the same bit for bit."""
    places = [(name, key) for name, keys in EXACT.items() for key in keys]
    places += [("versions", name) for name in now["versions"]]
    pairs = [(key, part(before, name).get(key), part(now, name).get(key)) for name, key in places]
    return [f"{key} was {a} and is {b}" for key, a, b in pairs if a != b]
