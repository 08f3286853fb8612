"""`python -m grpo_exp wandb-push`: runs sent to W&B from their own files."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import SMALL, call


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_every_run_of_a_sweep_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "-m", *SMALL, "steps=1", "eval.start=false", "beta=0.01,0.1", "hydra.sweep.dir=outputs/sweeps/two")
    answer = call(capsys, "wandb-push", "outputs/sweeps/two", "track.wandb=offline")
    assert (answer.code, answer.err) == (0, "")
    for number, line in enumerate(answer.out.splitlines()):
        folder, _, command = line.partition(": ")
        assert folder.endswith(f"two/{number}")
        assert command.startswith("wandb sync ") and Path(command.removeprefix("wandb sync ")).is_dir()
    assert len(answer.out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "usage:"),
        (["nowhere"], "nowhere"),
        (["track.wandb=offline"], "usage:"),
        ([".", "beta=1"], "beta=1: wandb-push takes options of track alone"),
        (["run", "track.wandb=maybe"], "track.wandb='maybe'"),
        (["run", "track.projekt=x"], "track.projekt"),
    ],
)
def test_errors(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, *SMALL, "steps=1", "eval.start=false", "hydra.run.dir=run")
    answer = call(capsys, "wandb-push", *words)
    assert (answer.code, answer.out) == (2, "") and said in answer.err and answer.err.count("\n") == 1
