"""SIGINT and SIGTERM: the run ends within a step, with a checkpoint where there is something to keep, and its own exit code."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, Answer, call, finish, start

from grpo_exp import checkpoint
from grpo_exp.errors import Stopped
from grpo_exp.stop import StopSignals

RUN = Path("run")
KILLER = """
import os, signal
calls = 0
def score(completions):
    global calls
    calls += 1
    if calls in {calls}:
        os.kill(os.getpid(), signal.{name})
        {after}
    return [0.0 for _ in completions]
"""
WORDS = [*SMALL, "steps=50", f"hydra.run.dir={RUN}", "reward=custom", "reward.path=killer.py:score"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def killer(calls: list[int], name: str = "SIGTERM", after: str = "pass") -> None:
    """A reward that sends this process a signal. Its first call is the trial before the model loads."""
    Path("killer.py").write_text(KILLER.format(calls=calls, name=name, after=after))


def card() -> dict[str, Any]:
    return dict(json.loads((RUN / "run.json").read_text()))


def rows(kind: str) -> list[int]:
    """The steps of the rows of metrics.jsonl, each of them a whole line."""
    lines = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line["kind"] == kind]


def kept() -> list[int]:
    """The steps of the checkpoints, each of them read and checked."""
    found = sorted((RUN / "checkpoints").glob("*"))
    return [int(checkpoint.load(folder).progress["step"]) for folder in found]


def one_line(answer: Answer) -> str:
    assert "Traceback" not in answer.err
    lines = [line for line in answer.err.splitlines() if line.startswith("grpo_exp: ")]
    assert len(lines) == 1, answer.err
    return lines[0]


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_in_a_step(name: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    killer([4], name)  # trial, evaluation at the start, step 1, step 2
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    answer = call(capsys, *WORDS)
    assert answer.code == code
    assert "after step 2; its checkpoint is written" in one_line(answer)
    assert card()["status"] == "stopped"
    assert (rows("train"), rows("eval"), kept()) == ([1, 2], [0], [2])
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers, "the handlers are put back"


def test_in_an_evaluation_between_steps(capsys: pytest.CaptureFixture[str]) -> None:
    killer([4], after="raise AssertionError('the evaluation went on')")  # trial, evaluation, step 1, evaluation
    answer = call(capsys, *WORDS, "eval.every=1")
    assert answer.code == 143
    assert "after step 1; its checkpoint is written" in one_line(answer)
    assert card()["status"] == "stopped"
    assert (rows("train"), rows("eval"), kept()) == ([1], [0], [1])


def test_in_the_evaluation_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    killer([2], after="raise AssertionError('the evaluation went on')")
    answer = call(capsys, *WORDS)
    assert answer.code == 143
    assert "SIGTERM before the first step; there is nothing to keep" in one_line(answer)
    assert card()["status"] == "stopped"
    assert (rows("train"), rows("eval"), kept()) == ([], [], [])


def test_before_anything_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    killer([1], "SIGINT", after="raise AssertionError('it went on')")
    answer = call(capsys, *WORDS)
    assert answer.code == 130
    assert "there is nothing to keep" in one_line(answer)
    assert not RUN.exists()


def test_a_sweep_ends_too(capsys: pytest.CaptureFixture[str]) -> None:
    killer([3])
    answer = call(capsys, "-m", *WORDS[:-3], "hydra.sweep.dir=sweep", *WORDS[-2:], "beta=0.1,0.2")
    assert answer.code == 143
    assert [p.name for p in Path("sweep").glob("[0-9]*")] == ["0"]


def test_a_second_signal_ends_the_process_at_once() -> None:
    killer([3], after="os.kill(os.getpid(), signal.SIGTERM); import time; time.sleep(60)")
    began = time.monotonic()
    answer = finish(start(Path(), *WORDS))
    assert answer.code == 143
    assert time.monotonic() - began < 50
    assert "once more to stop at once" in answer.err
    assert kept() == []


def test_a_real_run_is_stopped_from_outside() -> None:
    words = [word for word in WORDS if not word.startswith(("steps", "reward"))]
    process = start(Path(), *words, "steps=100000", "checkpoint.every=0")
    metrics = RUN / "metrics.jsonl"
    until = time.monotonic() + 90
    while not (metrics.exists() and metrics.read_text().count('"kind": "train"') >= 3):
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    answer = finish(process, seconds=30)
    assert answer.code == 130, answer.err
    one_line(answer)
    assert card()["status"] == "stopped"
    steps = rows("train")
    assert steps == list(range(1, len(steps) + 1))
    assert kept() == [steps[-1]]


def test_work_that_may_be_dropped_is_not_begun_after_a_signal() -> None:
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop() == signal.SIGTERM
        with pytest.raises(Stopped, match="before the test") as error, stop.at_once("before the test"):
            raise AssertionError("it was begun")
    assert error.value.exit_code == 143
