"""A run and a sweep from the command line: their folders, what the same command does again, and how failures end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import SMALL, Answer, call, start
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from grpo_exp import app
from grpo_exp.config import Config
from grpo_exp.errors import ConfigError
from grpo_exp.track.files import hold

RUN = Path("run")
HERE = [*SMALL, f"hydra.run.dir={RUN}"]
FAILING = """
calls = 0
def score(completions):
    global calls
    calls += 1
    if calls > {calls}:
        raise {error}
    return [0.0 for _ in completions]
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def card(folder: Path = RUN) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text()))


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def only_message(answer: Answer) -> str:
    assert answer.err.startswith("grpo_exp: ")
    assert answer.err.count("\n") == 1, answer.err
    return answer.err


def test_what_a_run_leaves(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TEAM", "team-name-from-outside")
    answer = call(capsys, *SMALL, "track.entity=${oc.env:MY_TEAM}")
    assert (answer.code, answer.err) == (0, "")
    (folder,) = Path("outputs/runs").iterdir()
    assert folder.name.endswith("_grpo_tiny_random_arithmetic")
    names = {p.name for p in folder.iterdir()}
    assert names == {
        "run.json",
        "config.yaml",
        "metrics.jsonl",
        "samples.jsonl",
        "eval.jsonl",
        "health.jsonl",
        "checkpoints",
        "export",
    }
    assert card(folder)["status"] == "finished"
    assert card(folder)["overrides"]["model"] == "tiny_random"
    assert yaml.safe_load((folder / "config.yaml").read_text())["steps"] == 2
    assert not any(b"team-name-from-outside" in text for text in files(folder).values())


def test_the_objective_goes_back_to_hydra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    returned = []
    run = app._Jobs.run
    monkeypatch.setattr(app._Jobs, "run", lambda self, composed: returned.append(run(self, composed)) or returned[-1])
    assert call(capsys, *HERE, "objective.metric=eval/length", "objective.direction=minimize").code == 0
    assert returned == [card()["objective"]]
    assert isinstance(returned[0], float)
    assert returned[0] > 0


def test_a_run_is_composed_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    composed = []
    load = ConfigLoaderImpl.load_configuration

    def counted(self: ConfigLoaderImpl, *words: Any, **more: Any) -> Any:
        composed.append(words)
        return load(self, *words, **more)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", counted)
    assert call(capsys, *HERE, "steps=1").code == 0
    assert len(composed) == 1


def test_the_same_command_again_has_nothing_to_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TEAM", "team-name-from-outside")
    words = [*HERE, "track.entity=${oc.env:MY_TEAM}", "objective.metric=eval/length"]
    assert call(capsys, *words).code == 0
    before = files(RUN)
    answer = call(capsys, *words)
    assert answer.code == 0
    assert f"finished before, objective {card()['objective']}; nothing to do" in answer.out
    assert files(RUN) == before


def test_a_folder_of_another_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, *HERE).code == 0
    before = files(RUN)
    answer = call(capsys, *HERE, "beta=0.5", "data.seed=3")
    assert answer.code == 2
    message = only_message(answer)
    assert "holds a run of another configuration (beta: 0.04 -> 0.5, data.seed: 0 -> 3, algo.beta: 0.04 -> 0.5)" in message
    assert "hydra.run.dir=" in message
    assert files(RUN) == before


def test_a_broken_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    RUN.mkdir()
    (RUN / "run.json").write_text("{")
    answer = call(capsys, *HERE)
    assert answer.code == 2
    assert "run.json or config.yaml cannot be read" in only_message(answer)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("ValueError('reward says no')", "reward says no"),
        ("MemoryError()", "MemoryError"),
    ],
)
def test_a_failing_run(error: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("failing.py").write_text(FAILING.format(calls=2, error=error))
    answer = call(capsys, *HERE, "reward=custom", "reward.path=failing.py:score")
    assert answer.code == 3
    message = only_message(answer)
    assert said in message
    assert str(RUN / "error.txt") in message
    assert "Traceback" in (RUN / "error.txt").read_text()
    assert card()["status"] == "failed"
    assert said in card()["error"]
    assert [json.loads(line)["step"] for line in (RUN / "metrics.jsonl").read_text().splitlines()] == [0]


def test_an_error_nobody_thought_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_exp.train import Trainer

    def run(self: Trainer, *state: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.\nmore")

    monkeypatch.setattr(Trainer, "run", run)
    answer = call(capsys, *HERE)
    assert answer.code == 3
    message = only_message(answer)
    assert "out of memory with prompts_per_step=2 G=2 max_new_tokens=6, 4 rows sampled and 4 updated at a time" in message
    assert "hardware.update_rows" in message
    assert card()["status"] == "failed"

    def broken(self: Config) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("grpo_exp.data.arithmetic.Arithmetic.load", broken)
    answer = call(capsys, *HERE[:-1], "hydra.run.dir=other")
    assert answer.code == 3
    assert "the run failed: KeyError: 'surprise'. The traceback is in" in only_message(answer)
    assert card(Path("other"))["status"] == "failed"


def test_wrong_input_that_shows_late(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_exp.train import Trainer

    def run(self: Trainer, *state: object) -> None:
        raise ConfigError("reward.path: wrong after all")

    monkeypatch.setattr(Trainer, "run", run)
    answer = call(capsys, *HERE)
    assert answer.code == 2
    assert only_message(answer) == "grpo_exp: reward.path: wrong after all\n"
    assert (card()["status"], card()["error"]) == ("failed", "reward.path: wrong after all")


def test_wandb_online_without_a_login(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *HERE, "track.wandb=online")
    assert answer.code == 2
    assert "track.wandb=online" in only_message(answer)
    assert not RUN.exists()


# ---- sweeps


def test_a_plain_grid(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_exp import track

    groups, build = [], track.build
    monkeypatch.setattr(track, "build", lambda options, folder: groups.append(options.group) or build(options, folder))
    answer = call(capsys, "-m", *SMALL, "beta=0.01,0.1", "steps=1", "eval.start=false")
    assert (answer.code, answer.err) == (0, "")
    (folder,) = Path("outputs/sweeps").iterdir()
    assert sorted(p.name for p in folder.iterdir()) == [
        ".locks",
        ".study.journal.lock",
        "0",
        "1",
        "study.journal",
        "sweep.json",
    ]
    assert [card(folder / number)["beta"] for number in ("0", "1")] == [0.01, 0.1]
    assert groups == [folder.name, folder.name]


def test_a_second_process_is_kept_out_of_a_runs_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, *HERE).code == 0
    before = files(RUN)
    with hold(RUN):
        answer = call(capsys, *HERE, "steps=3")
    assert answer.code == 2 and "another process is writing the run in" in only_message(answer)
    assert files(RUN) == before
    code = """
import os, sys, time
from pathlib import Path
from grpo_exp.track.files import hold
with hold(Path("run")):
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(60)
"""
    with start(Path(), code=code) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
    try:
        assert call(capsys, *HERE, "steps=3").code == 0, "a process that it forked off does not hold on to it"
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_failed_run_does_not_end_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    Path("good.py").write_text("def score(completions):\n    return [0.0 for _ in completions]\n")
    Path("bad.py").write_text(FAILING.format(calls=2, error="ValueError('reward says no')"))
    Path("worse.py").write_text(Path("bad.py").read_text())
    paths = "reward.path=bad.py:score,good.py:score,worse.py:score"
    answer = call(capsys, "-m", *SMALL, "hydra.sweep.dir=sweep", "steps=1", "reward=custom", paths)
    assert answer.code == 3
    assert only_message(answer).startswith("grpo_exp: 2 of 3 trials failed: 0, 2; ")
    assert "trial 0" in answer.out and "bad.py" in answer.out and "reward says no" in answer.out
    assert [card(Path("sweep") / n)["status"] for n in "012"] == ["failed", "finished", "failed"]


def test_wrong_input_ends_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in SMALL if not word.startswith("data.")]
    answer = call(capsys, "-m", *words, "hydra.sweep.dir=sweep", "data=file", "data.path=nowhere.jsonl", "beta=0.1,0.2")
    assert answer.code == 2
    assert "nowhere.jsonl" in only_message(answer)
    assert not list(Path("sweep").glob("[0-9]*/run.json"))
