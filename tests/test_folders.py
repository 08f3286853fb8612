"""Folders that cannot be written, names that are long, a locale without letters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import SMALL, call, environment

RUN = [*SMALL, "steps=1"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/fdinfo").is_dir(), reason="needs a folder that nobody can write, as Linux has")
@pytest.mark.parametrize(
    ("folder", "code"),
    [
        ("/proc/nowhere/run", 2),
        ("/proc/self/fdinfo", 3),
        pytest.param("file/run", 2, marks=pytest.mark.slow),
        pytest.param("x" * 256, 2, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_folder_that_cannot_be_written_is_told_before_the_model_loads(
    folder: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").touch()
    monkeypatch.setattr("grpo_exp.policy.Policy.load", lambda *_: pytest.fail("the model was loaded"))
    for words in ([f"hydra.run.dir={folder}"], ["-m", "beta=0.1,0.2", f"hydra.sweep.dir={folder}"]):
        answer = call(capsys, *RUN, *words)
        assert answer.code in (2, code) and folder.split("/")[-1][:100] in answer.err, answer
        assert "hydra.run.dir=" in answer.err or "hydra.sweep.dir=" in answer.err
        assert answer.err.count("\n") == 1


def test_the_longest_name_that_a_disk_takes(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("deep" * 20) / ("x" * 255)
    assert call(capsys, *RUN, "track.picture=true", f"hydra.run.dir={folder}").code == 0
    assert call(capsys, "resume", str(folder), "steps=2").code == 0
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("word", ["hydra.run.dir=a\udcff", "beta=\udcff", "\udcff"])
def test_bytes_that_are_no_text_are_answered_with_the_locale(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, word)
    assert answer.code == 2 and answer.err.count("\n") == 1
    assert repr(word) in answer.err and "no text in this locale" in answer.err and "LC_ALL=C.UTF-8" in answer.err


@pytest.mark.slow
def test_a_locale_without_letters_changes_nothing(tmp_path: Path) -> None:
    """LC_ALL=C, where Python takes text for UTF-8 nevertheless; told to take it for ASCII, it is refused by name."""
    rows = [{"prompt": f"Wie groß ist {i}+2?", "answer": str(i + 2)} for i in range(6)]
    Path("größe.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    words = [*(w for w in RUN if not w.startswith("data.")), "track.console=plain", "data=file", "data.path='größe.jsonl'"]
    words += ["data.split=2", "hydra.run.dir='läuft'"]

    def run(more: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "grpo_exp", *words]
        return subprocess.run(command, env=environment() | {"LC_ALL": "C"} | more, capture_output=True, timeout=120)

    refused = run({"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert refused.returncode == 2 and b"PYTHONUTF8=1" in refused.stderr and refused.stderr.count(b"\n") == 1, refused.stderr
    assert os.listdir() == ["größe.jsonl"]
    whole = run({})
    assert whole.returncode == 0 and "läuft".encode() in whole.stdout, whole.stderr
    samples = [json.loads(line) for line in Path("läuft/samples.jsonl").read_text().splitlines()]
    assert all(sample["prompt"].startswith("Wie groß ist") for sample in samples)
    again = run({"PYTHONIOENCODING": "latin-1"})
    assert again.returncode == 0 and b"nothing to do" in again.stdout, again.stderr


@pytest.mark.parametrize(
    ("free", "code", "said"), [(3, 3, "a checkpoint takes"), (14, 0, "the checkpoints to be kept take up to")]
)
def test_a_disk_too_small_for_the_checkpoints_is_told_before_the_first_step(
    free: int, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free * 2**20))
    answer = call(capsys, *SMALL, "checkpoint.every=1", "hydra.run.dir=run")
    assert answer.code == code and said in (answer.err if code else answer.out), answer
    assert f"{free} MiB are free" in answer.err + answer.out and answer.err.count("\n") == bool(code)
    assert Path("run/metrics.jsonl").exists() == (code == 0)
