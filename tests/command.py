"""The command line called as a person would, inside this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_exp.__main__ import main

ROOT = Path(__file__).parents[1]
SMALL = [
    "model=tiny_random",
    "track=quiet",
    "steps=2",
    "prompts_per_step=2",
    "G=2",
    "max_new_tokens=6",
    "data.train=8",
    "data.heldout=6",
    "eval.max_items=4",
    "eval.samples=2",
    "hardware.threads=1",
]
"""Overrides of a run that takes about a second."""


@cache
def algo_values(name: str) -> dict[str, Any]:
    """The section `algo` of conf/algo/NAME.yaml over that of the file it builds on: to list tests by it needs no composing."""
    values = yaml.safe_load((ROOT / "conf/algo" / f"{name}.yaml").read_text(encoding="utf-8"))
    bases = [entry for entry in values.get("defaults", []) if isinstance(entry, str) and entry != "_self_"]
    found: dict[str, Any] = {}
    for base in bases:
        found |= algo_values(base)
    return found | values.get("algo", {})


@dataclass(frozen=True)
class Answer:
    """What a command came to: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


def call(capsys: pytest.CaptureFixture[str], *words: str) -> Answer:
    """`python -m grpo_exp WORDS` in this process, which saves importing torch again."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(words)
    captured = capsys.readouterr()
    return Answer(int(end.value.code or 0), captured.out, captured.err)


def environment() -> dict[str, str]:
    """The environment for a process of its own: this checkout's package, one thread, no login."""
    hidden = ("WANDB_", "HYDRA_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def start(folder: Path, *words: str, code: str | None = None) -> subprocess.Popen[str]:
    """`python -m grpo_exp WORDS`, or some Python code, started in `folder`."""
    what = ["-m", "grpo_exp"] if code is None else ["-c", code]
    return subprocess.Popen(
        [sys.executable, *what, *words],
        cwd=folder,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str], seconds: float = 120) -> Answer:
    """Wait for it; a process that takes longer is ended, and the test fails."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Answer(process.returncode, out, err)
