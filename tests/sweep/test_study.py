"""A study that others lock, or that was damaged: waited for or mended, otherwise named and left as it is."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, call, finish, start
from fake_jobs import sweep

from grpo_exp.errors import ConfigError, InputError, RunError
from grpo_exp.sweep import study

URL = "sqlite:///study.db"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def locked(work: Callable[[], Any]) -> None:
    """Do it while another connection holds the database for itself."""
    other = sqlite3.connect("study.db")
    other.execute("BEGIN EXCLUSIVE")
    try:
        work()
    finally:
        other.close()


def test_a_locked_database_is_waited_for_then_named_and_the_sweep_goes_on_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert study.LOCKED == 60
    monkeypatch.setattr(study, "LOCKED", 0.2)
    begun = sweep(Path("s"), storage=URL, n_trials=3)
    with pytest.raises(
        RunError, match=r"sqlite:///study\.db cannot be used .*database is locked.*same command goes on.*journal"
    ):
        locked(begun.run)
    with pytest.raises(ConfigError, match=r"sqlite:///study\.db.*database is locked.*journal"):
        locked(lambda: sweep(Path("s"), storage=URL, n_trials=3))
    sweep(Path("s"), storage=URL, n_trials=3).run()
    made = study.open_study(Path("s"), URL, "fake", ["maximize"], begun.study.pruner, begun.study.user_attrs["plan"])
    assert [trial.state.name for trial in made.trials] == ["COMPLETE"] * 3


def test_garbage_in_a_journal_is_named_by_its_line_and_the_file_is_left_as_it_is() -> None:
    sweep(Path("s"), n_trials=2).run()
    journal = Path("s/study.journal")
    lines = journal.read_bytes().split(b"\n")
    damaged = b"\n".join([*lines[:3], b'{"op_code": 4, "wor', *lines[3:]])
    journal.write_bytes(damaged)
    with pytest.raises(InputError, match=r"study\.journal:4: the study cannot be read .*Move it away"):
        sweep(Path("s"), n_trials=3).run()
    assert journal.read_bytes() == damaged


@pytest.mark.slow
def test_the_process_that_sweeps_already_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", *SMALL, "steps=1", "beta=0.01,0.1", "hydra.sweep.dir=swept"]
    assert call(capsys, *words).code == 0
    with study.lock(Path("swept/.locks/sweep"), wait=False):
        answer = finish(start(Path(), *words))
    assert answer.code == 2 and f"another process, {os.getpid()} on {platform.node()}, sweeps in" in answer.err
