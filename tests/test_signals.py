"""SIGINT, SIGTERM and SIGUSR1: the run ends at once or after its update, with a checkpoint where there is something to keep,
its own exit code, and nothing that the run that goes on would lack."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command import SMALL, Answer, call, finish, start

from grpo_exp import checkpoint
from grpo_exp.__main__ import main
from grpo_exp.errors import Stopped
from grpo_exp.evaluate import Evaluator
from grpo_exp.learner import Learner
from grpo_exp.rollout.draw import Draw
from grpo_exp.stop import ONE_REQUEST, StopSignals

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


SIGNALS = [("SIGINT", 130), ("SIGTERM", 143), ("SIGUSR1", 138)]


@pytest.mark.parametrize(("name", "code"), SIGNALS)
def test_in_an_update(name: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Learner, "update", sends(Learner.update, 2, getattr(signal, name)))
    handlers = [signal.getsignal(getattr(signal, name)) for name, _ in SIGNALS]
    answer = call(capsys, *MEASURED)
    assert answer.code == code
    assert f"stopped by {name} after step 2; its checkpoint is written" in one_line(answer)
    assert card()["status"] == "stopped"
    assert (rows("train"), rows("eval"), kept()) == ([1, 2], [0], [2]), "the update was finished, the evaluation left out"
    assert [signal.getsignal(getattr(signal, name)) for name, _ in SIGNALS] == handlers, "the handlers are put back"


def sends(function: Callable[..., Any], at: int, number: int = signal.SIGTERM, times: int = 1) -> Callable[..., Any]:
    """The function, which sends this process a signal at its call number `at`."""
    calls: list[int] = []

    def signalling(*words: Any, **options: Any) -> Any:
        calls.append(1)
        for _ in range(times if len(calls) == at else 0):
            os.kill(os.getpid(), number)
        return function(*words, **options)

    return signalling


MEASURED = [*SMALL, "steps=4", "eval.every=2", "checkpoint.every=0", f"hydra.run.dir={RUN}"]
REMEMBERS = [
    *("experience.dynamic_sampling=true", "experience.skip_visits=1", "experience.replay.groups=1"),
    "reward.parts.format.weight=1",
]
"""Whatever remembers samples: those that were dropped must not be among them."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    with pytest.raises(SystemExit) as end:
        main([*MEASURED[:-1], *REMEMBERS, f"hydra.run.dir={folder}"])
    assert not end.value.code
    return folder


@pytest.mark.parametrize(
    ("owner", "name", "at", "done"),
    [
        (Draw, "_choose", 33, 1),  # a token in the second round of step 2
        pytest.param(Learner, "update", 3, 3, marks=pytest.mark.slow),
        pytest.param(Evaluator, "__call__", 2, 2, marks=pytest.mark.slow),
        (Evaluator, "__call__", 3, 4),  # the last one, after which there is no step any more
    ],
    ids=["sampling", "update", "evaluation", "last evaluation"],
)
def test_the_same_command_goes_on_as_if_nothing_had_happened(
    owner: Any,
    name: str,
    at: int,
    done: int,
    undisturbed: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, sends(getattr(owner, name), at))
        answer = call(capsys, *MEASURED, *REMEMBERS)
    assert answer.code == 143 and kept() == [done], answer
    assert call(capsys, *MEASURED, *REMEMBERS).code == 0
    for file in ("metrics.jsonl", "samples.jsonl", "eval.jsonl"):
        assert untimed(RUN / file) == untimed(undisturbed / file), file
    whole = json.loads((undisturbed / "run.json").read_text())["objective"]
    rated = json.loads((RUN / "checkpoints/step-000004/manifest.json").read_text())["objective"]
    assert card()["objective"] == rated == whole
    one, other = (checkpoint.load(folder / "checkpoints/step-000004").weights for folder in (RUN, undisturbed))
    assert all(torch.equal(one[key], other[key]) for key in one)


def untimed(file: Path) -> list[dict[str, Any]]:
    timed = ("seconds", "time/", "throughput/", "memory/")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(timed)} for line in file.read_text().splitlines()]


def test_in_sampling_it_does_not_wait(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor in rewards: the step is not begun, and the checkpoint of the one before is written."""
    killer([4], after="raise AssertionError('the step went on')")  # trial, evaluation at the start, step 1, step 2
    answer = call(capsys, *WORDS)
    assert answer.code == 143
    assert "in step 2, before its update; the checkpoint of step 1 is there" in one_line(answer)
    assert card()["status"] == "stopped"
    assert (rows("train"), rows("eval"), kept()) == ([1], [0], [1])


def test_in_the_first_step_there_is_nothing_to_keep(capsys: pytest.CaptureFixture[str]) -> None:
    killer([3], after="raise AssertionError('the step went on')")
    answer = call(capsys, *WORDS)
    assert answer.code == 143 and "before the first step; there is nothing to keep" in one_line(answer)
    assert (rows("train"), rows("eval"), kept()) == ([], [0], [])


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


@pytest.mark.slow
def test_a_second_signal_ends_the_process_at_once() -> None:
    code = f"""
import os, signal, time
from grpo_exp.__main__ import main
from grpo_exp.learner import Learner
def update(self, *_):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep({ONE_REQUEST + 0.2})
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(300)
Learner.update = update
main()
"""
    answer = finish(start(Path(), *MEASURED, code=code), seconds=200)  # less than it would sleep
    assert answer.code == 138
    assert "once more to stop at once" in answer.err
    assert kept() == []


def test_one_request_may_come_several_times(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From a scheduler that signals every process of a job, and from a parent that passes it on."""
    monkeypatch.setattr(Learner, "update", sends(Learner.update, 2, times=3))
    answer = call(capsys, *MEASURED)
    assert answer.code == 143 and kept() == [2]


def test_a_real_run_is_stopped_from_outside() -> None:
    words = [word for word in WORDS if not word.startswith(("steps", "reward"))]
    process = start(Path(), *words, "steps=100000", "checkpoint.every=0")
    metrics = RUN / "metrics.jsonl"
    until = time.monotonic() + 180
    while not (metrics.exists() and metrics.read_text().count('"kind": "train"') >= 3):
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    answer = finish(process)
    assert answer.code == 138, answer.err
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
