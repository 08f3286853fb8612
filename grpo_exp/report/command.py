"""The command line that does a run again, with only the words that it needs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from grpo_exp.report.groups import written
from grpo_exp.report.runs import Run, flat

_NOT_NEEDED = ("hydra", "sweep", "sweeps", "track", "name")  # how and where it was run, not what


def command(run: Run, with_seed: bool = True) -> str | None:
    """`python -m grpo_exp beta=0.04 G=8`, quoted for a shell; None where run.json does not tell.

    The words are the run's own overrides. What the file of a sweep set besides its search space stands among them, since
    `sweeps=NAME` would search again. A value that was taken out as a secret stands as `<redacted>`.
    """
    given = run.card.get("overrides")
    if not isinstance(given, dict):
        return None
    words = {str(key): str(value) for key, value in given.items()}
    known = {key.lstrip("+") for key in words}
    words |= {key: value for key, value in _fixed(run) if key not in known}
    kept = {k: v for k, v in words.items() if k.lstrip("+~").partition(".")[0] not in _NOT_NEEDED and _decides(k)}
    if not with_seed:
        kept.pop("seed", None)
    order = sorted(kept.items(), key=lambda item: ("." in item[0], item[0] not in _FIRST))
    return shlex.join(["python", "-m", "grpo_exp", *(key if key.startswith("~") else f"{key}={value}" for key, value in order)])


_FIRST = ("algo", "model", "data", "reward")


def _decides(key: str) -> bool:
    """Whether a run depends on an option: on the machine's only where it changes which samples are learned from."""
    return not key.startswith("hardware.") or key == "hardware.overlap"


def _fixed(run: Run) -> Iterator[tuple[str, str]]:
    """What the sweep's file set, with the values that the run had."""
    name = run.card["overrides"].get("sweeps")
    for key in flat(_sweep_file(str(name))) if name else ():
        choice = key.removeprefix("defaults.")
        if choice in run.config and choice.partition(".")[0] not in _NOT_NEEDED:
            yield choice, written(run.config[choice])


def _sweep_file(name: str) -> Mapping[str, Any]:
    """The file of a sweep, the groups that it chooses under `defaults`; {} where it is the user's own, or gone."""
    from grpo_exp.command_line import ROOT

    try:
        content = yaml.safe_load((ROOT / "sweeps" / f"{Path(name).name}.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}
    if not isinstance(content, dict):
        return {}
    chosen = [entry for entry in content.pop("defaults", None) or [] if isinstance(entry, dict)]
    return {**{str(k).split()[-1].lstrip("/"): v for entry in chosen for k, v in entry.items()}, **content}
