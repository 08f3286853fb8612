"""Several processes on one folder: each trial exactly once, whoever is killed, and nobody left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fake_jobs import options, sweep, table

from grpo_exp.errors import DataError, RunError
from grpo_exp.sweep import workers

HERE = Path(__file__).parent
ENVIRONMENT = {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])


def command(folder: Path, trials: int, seconds: float = 0.0, *trouble: str) -> list[str]:
    return [sys.executable, str(HERE / "fake_jobs.py"), str(folder), str(trials), str(seconds), *trouble]


def begin(words: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(words, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def until(true: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (got := true()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return got


def processes(folder: Path) -> set[int]:
    """The processes that name this folder, those that ended but were not waited for left out."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if str(folder).encode() in words and int(entry.name) != os.getpid():
                found.add(int(entry.name))
    return found


def running(folder: Path) -> list[int]:
    """The processes that hold a trial now."""
    held = []
    for path in folder.glob("[0-9]*/trial.json"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if json.loads(path.read_text())["state"] == "running":
                held.append(int((folder / ".locks" / path.parent.name).read_text().split()[-1]))
    return held


def once_each(folder: Path, trials: int) -> None:
    rows = table(folder)
    assert [row[0] for row in rows] == list(range(trials)) and {row[2] for row in rows} == {"COMPLETE"}
    assert {p.name for p in folder.glob("[0-9]*")} == {str(i) for i in range(trials)}


def test_two_at_a_time_give_each_trial_once(tmp_path: Path) -> None:
    said: list[str] = []
    words = command(tmp_path, 8, 0.0, "together=2")  # or one might have run all before the other is there
    workers.run(sweep(tmp_path, n_trials=8, how=options(seeds=[0, 1]), say=said.append), 2, words)
    once_each(tmp_path, 8)
    begun = [text for text in said if " of 8): beta=" in text]
    ended = [text for text in said if "eval/pass@1" in text and "best so far" in text]
    assert len(begun) == len(ended) == 8 and not processes(tmp_path)
    logs = [(tmp_path / f"worker-{slot}.log").read_text() for slot in (0, 1)]
    assert all(logs) and sum(log.count("best so far") for log in logs) == 8


def killed_one(folder: Path) -> int:
    """Kill a process that runs a trial; 0 where each has just come to its end."""
    for pid in running(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return pid
    return 0


def test_a_killed_worker_is_replaced_and_its_trial_runs_again(tmp_path: Path) -> None:
    parent = begin(command(tmp_path, 6, 0.3, "workers=2"))
    for _ in range(2):
        victims = [until(lambda: killed_one(tmp_path))]
        until(lambda pid=victims[0]: pid not in processes(tmp_path))
    out, err = parent.communicate(timeout=120)
    assert parent.returncode == 0, err
    assert "ended by SIGKILL" in out and not processes(tmp_path)
    states = [row[2] for row in table(tmp_path)]
    assert len(states) == 6 and states.count("COMPLETE") >= 5  # both kills may have met the same trial


def test_a_trial_that_kills_its_workers_fails_and_the_others_go_on(tmp_path: Path) -> None:
    said: list[str] = []
    made = sweep(tmp_path, n_trials=5, how=options(seeds=[0, 1], retries=1), say=said.append)
    workers.run(made, 2, command(tmp_path, 5, 0.0, "die=1"))
    assert [row[2] for row in table(tmp_path)] == ["COMPLETE", "FAIL", *["COMPLETE"] * 3]
    told = json.loads((tmp_path / "1" / "trial.json").read_text())
    assert told["state"] == "fail" and told["reason"] == "its process was ended by SIGKILL, 2 times"
    assert made.study.trials[1].user_attrs["attempts"] == 2 and made.study.trials[0].user_attrs.get("attempts") is None
    assert any(text.startswith("trial 1 failed: its process was ended by SIGKILL") for text in said)


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(s, 128 + s, marks=pytest.mark.slow) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)],
)
def test_a_signal_stops_all_and_the_same_command_goes_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    parent = begin(command(tmp_path, 60, 0.2, "workers=2"))  # too many to be done before the signal, on any machine
    until(lambda: len(running(tmp_path)) == 2)
    parent.send_signal(number)
    _, err = parent.communicate(timeout=120)
    assert parent.returncode == code and "the same command goes on" in err
    done = len(table(tmp_path))
    assert not processes(tmp_path) and done < 60
    again = begin(command(tmp_path, done + 4, 0.0, "workers=2"))
    again.communicate(timeout=120)
    assert again.returncode == 0
    once_each(tmp_path, done + 4)


def test_a_killed_parent_leaves_no_worker_behind(tmp_path: Path) -> None:
    parent = begin(command(tmp_path, 50, 0.2, "workers=2"))
    until(lambda: len(running(tmp_path)) == 2)
    parent.kill()
    parent.communicate()
    until(lambda: not processes(tmp_path))


def test_wrong_input_ends_the_sweep_with_its_message(tmp_path: Path) -> None:
    made = sweep(tmp_path, n_trials=6, how=options(seeds=[0, 1]))
    with pytest.raises(DataError.__base__, match=r"^data.file=x.jsonl: no such file$"):  # type: ignore[arg-type]
        workers.run(made, 2, command(tmp_path, 6, 0.0, "input"))
    assert not processes(tmp_path) and {row[2] for row in table(tmp_path)} <= {"RUNNING"}


def test_an_error_of_the_program_ends_the_sweep_with_the_end_of_its_log(tmp_path: Path) -> None:
    made = sweep(tmp_path, n_trials=6, how=options(seeds=[0, 1]))
    with pytest.raises(RunError, match=r"exit code 1: (.|\n)*ZeroDivisionError"):
        workers.run(made, 2, [sys.executable, "-c", "1 / 0"])
    with pytest.raises(RunError, match="SIGKILL before they run a trial"):
        workers.run(made, 2, [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])


@pytest.mark.slow
def test_any_number_of_processes_whoever_is_killed_give_each_trial_once(tmp_path: Path) -> None:
    """Four at a time, eight of them killed at random moments; never more trials than wanted, and none twice."""
    random, pool = Random(1), []
    for _ in range(8):
        pool += [begin(command(tmp_path, 10, 0.05)) for _ in range(4 - len(pool))]
        time.sleep(random.uniform(0.5, 1.2))
        victim = pool.pop(random.randrange(4))
        victim.kill()
        victim.communicate()
        if (tmp_path / "study.journal").exists():
            assert len(table_or_none(tmp_path)) <= 10
    for process in [*pool, begin(command(tmp_path, 10))]:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    once_each(tmp_path, 10)
    assert len({str(row[1]) for row in table(tmp_path)}) == 10


def table_or_none(folder: Path) -> list[tuple[Any, ...]]:
    """The trials so far, none where the study is not there yet."""
    try:
        return table(folder)
    except KeyError:
        return []
