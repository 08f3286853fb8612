"""Hostile programs earn nothing by any kind of test, and the machine is well afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hostile_programs import ANSWERS_FILE, MARK, PROGRAMS

from grpo_exp import pool
from grpo_exp.batch import Completions, Example
from grpo_exp.rewards.code import CodeReward
from grpo_exp.sandbox import bubblewrap

REFUSAL = bubblewrap.refusal()
pytestmark = [
    pytest.mark.skipif(REFUSAL is not None, reason=f"no sandbox here: {REFUSAL}"),
    pytest.mark.xdist_group("sandbox"),
]

HANDFUL = [
    *("exits at once in the call", "patches the builtins", "a str that is equal to all", "a number that is near to all"),
    *("walks the frames", "reads the answers from the disk", "writes verdicts and answers to all files", "leaves a daemon"),
    *("bombs with forks in the call", "fills the disk", "floods its output", "kills all", "connects"),
]
HONEST = "def solve(n): return n * n + 7\nif __name__ == '__main__': print(solve(int(input())))"
TESTS = [
    {"code": "assert solve(11) == 128"},
    {"code": "import math\nassert math.isclose(solve(30), 907) and abs(solve(30) - 907) < 1e-6"},
    {"code": "for n, got in zip([11, 30], map(solve, [11, 30])):\n    assert got == n * n + 7\nassert 128 in [solve(11)]"},
    {"call": "solve", "args": [30], "expected": 907},
    {"input": "11\n", "output": "128"},
]


def reward(**options: object) -> CodeReward:
    values = {
        "kind": "code",
        "weight": 1.0,
        "role": "outcome",
        "tests": "tests",
        "entry_point": None,
        "setup": None,
        "partial": "share",
        "right": 1.0,
        "wrong": 0.0,
        "missing": 0.0,
        "seconds": 1.0,
        "row_seconds": 3.0,
        "budget": 600.0,
        "memory": 256,
        "disk": 8,
        "processes": 8,
        "sandbox": "bubblewrap",
    }
    return CodeReward(**{**values, **options})  # type: ignore[arg-type]


def scored(programs: list[str]) -> list[float | None]:
    rows = len(programs)
    item = Example("task", "write solve", columns={"tests": TESTS})
    texts = [f"```python\n{program}\n```" for program in programs]
    return reward().score(Completions([item] * rows, ["?"] * rows, texts, [[0]] * rows, [True] * rows))


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is expected, lying where it could be found."""
    Path(ANSWERS_FILE).write_text(json.dumps({str(n): n * n + 7 for n in range(99)}), encoding="utf-8")
    monkeypatch.setenv("GRPO_EXP_HOSTILE_ANSWER", "128")
    pool.shared("grpo_exp.sandbox.trial:judged").close()  # so that its workers have the variable
    yield
    pool.shared("grpo_exp.sandbox.trial:judged").close()
    Path(ANSWERS_FILE).unlink(missing_ok=True)


def strangers() -> list[str]:
    """Processes that belong to sandboxes, zombies included."""
    listed = subprocess.run(["ps", "-e", "-o", "uid=,ppid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    return [
        line for line in listed.splitlines() if " bwrap " in line or "[bwrap]" in line or 65000 <= int(line.split()[0]) < 65500
    ]


def none_left(seconds: float = 60) -> bool:
    """Whether all of them are gone by and by."""
    end = time.monotonic() + seconds
    while (left := strangers()) and time.monotonic() < end:
        time.sleep(0.05)
    return not left


def well(before: int) -> None:
    """No process, file or memory of theirs is left, and what they tried to kill is alive."""
    assert none_left(), strangers()
    assert not [f for place in ("/", "/tmp", "/dev", "/dev/shm", "/var/tmp") for f in os.listdir(place) if MARK in f]
    assert json.loads(Path(ANSWERS_FILE).read_text()) and Path("/etc/passwd").exists()
    assert shared_memory() - before < 256 << 10, "files in memory are left"
    assert scored([HONEST]) == [1.0]


def shared_memory() -> int:
    """KiB of files in memory, /tmp of a sandbox among them, of the whole machine; all other memory goes with its process."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Shmem:"))


NO_PYTHON = (
    *("is no program", "has null characters", "is deeper than a parser"),
    *("is nested beyond the compiler", "has surrogates"),
)


def test_there_are_enough_of_them() -> None:
    assert len(PROGRAMS) >= 60 and set(HANDFUL) <= set(PROGRAMS)
    for name, source in PROGRAMS.items():  # what is no Python by mistake would earn nothing for that reason alone
        with pytest.raises((SyntaxError, MemoryError, UnicodeEncodeError)) if name in NO_PYTHON else nullcontext():
            compile(source, name, "exec")


def test_a_handful_earns_nothing() -> None:
    before = shared_memory()
    values = scored([HONEST, *(PROGRAMS[name] for name in HANDFUL)])
    assert dict(zip(["honest", *HANDFUL], values, strict=True)) == {"honest": 1.0, **dict.fromkeys(HANDFUL, 0.0)}
    well(before)


@pytest.mark.slow
def test_all_of_them_between_honest_ones() -> None:
    before = shared_memory()
    honest = [f"{HONEST}\n# {number}" for number in range(len(PROGRAMS))]
    values = scored([source for pair in zip(PROGRAMS.values(), honest, strict=True) for source in pair])
    assert dict(zip(PROGRAMS, values[::2], strict=True)) == dict.fromkeys(PROGRAMS, 0.0)
    assert values[1::2] == [1.0] * len(honest)
    well(before)


@pytest.mark.slow
def test_they_end_with_the_run_however_it_ends() -> None:
    """kill -9 of the process that trains, in the middle of programs that never end."""
    script = f"""
from grpo_exp.pool import Pool
from grpo_exp.sandbox import bubblewrap, limits
job = {{"program": "while True: pass", "setup": "", "tests": {TESTS!r}, "stop": False, "seconds": 60, "row_seconds": 60}}
job |= {{"limits": limits.of(60, 1 << 28, 1 << 20, 8), "prefix": bubblewrap.command(1 << 20)}}
Pool("grpo_exp.sandbox.trial:judged", workers=2).map([job] * 2, 60)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", script], env=env) as process:
        end = time.monotonic() + 90
        while len(strangers()) < 4 and time.monotonic() < end:
            time.sleep(0.02)
        assert len(strangers()) >= 4
        process.kill()
    assert none_left(), strangers()
