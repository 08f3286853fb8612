"""Worker processes: order, deadlines, budgets, crashes, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_exp.deadline import DeadlineExceeded, deadline
from grpo_exp.pool import Lost, Pool

ROOT = Path(__file__).parents[1]
HANG = "__import__('time').sleep(99)"
ENDLESS = "10 ** (10 ** 8)"  # a single operation of C that looks at no signal


@pytest.fixture
def pool() -> Pool:
    """Workers that evaluate an expression."""
    made = Pool("builtins:eval", workers=2)
    yield made  # type: ignore[misc]
    made.close()


def proc(pid: int, name: str) -> str:
    """A file of `/proc/PID`; empty where the process has ended, which it may at any moment."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if proc(pid, "stat")]


def running(pids: list[int]) -> list[int]:
    """Those that are alive and no zombies; whose parent was killed is buried by init, which takes its time."""
    return [pid for pid in pids if (stat := proc(pid, "stat")) and " Z " not in stat]


def wait_until(true: Callable[[], bool], seconds: float = 30) -> bool:
    """Whether it comes about; what was killed is gone by and by."""
    until = time.monotonic() + seconds
    while not (came := true()) and time.monotonic() < until:
        time.sleep(0.02)
    return came


def family(pool: Pool) -> list[int]:
    """The workers and their forks."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,pgid="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if int(line.split()[1]) in pool.pids()]


def settled(pool: Pool, count: int) -> list[int]:
    """The family once it has so many members; a fork that was stopped is replaced by and by."""
    assert wait_until(lambda: len(family(pool)) == count), family(pool)
    return family(pool)


def test_results_come_in_the_order_of_the_jobs(pool: Pool) -> None:
    jobs = [f"(__import__('time').sleep({0.02 if i % 5 == 0 else 0}), {i})[1]" for i in range(60)]
    assert pool.map(jobs, seconds=10) == list(range(60))
    assert pool.map([], seconds=10) == []


@pytest.mark.parametrize("bad", [HANG, ENDLESS])
def test_a_row_that_overruns_is_stopped_alone(pool: Pool, bad: str) -> None:
    pool.map(["1"] * 2, seconds=10)
    before = pool.pids()
    start = time.monotonic()
    found = pool.map(["1", bad, "2", "3", bad, "4"], seconds=0.5)
    assert time.monotonic() - start < 30  # HANG takes 99 s
    assert [r for r in found if not isinstance(r, Lost)] == [1, 2, 3, 4]
    assert found[1].late and found[4].late and found[1].why == "took longer than 0.5 s"
    assert pool.pids() == before  # their forks are new
    assert pool.map(["6 * 7"] * 9, seconds=10) == [42] * 9


def test_a_batch_has_a_budget(pool: Pool) -> None:
    pool.map(["1"] * 2, seconds=10)
    start = time.monotonic()
    found = pool.map([HANG] * 20, seconds=2, budget=0.5, hurried=0.05)
    assert time.monotonic() - start < 15  # without it 20 s
    assert all(lost.late for lost in found) and {lost.seconds for lost in found[2:]} == {0.05}


def test_what_goes_wrong_in_a_row_is_told(pool: Pool) -> None:
    found = pool.map(["1 / 0", "__import__('os')._exit(3)", "__import__('os').kill(0, 9)", "object()", "5"], seconds=10)
    assert found[0] == Lost("ZeroDivisionError: division by zero") and not found[0].late
    assert found[1] == found[2] == Lost("its worker process ended")
    assert found[4] == 5
    assert pool.map(["1"] * 4, seconds=10) == [1] * 4


def test_large_jobs_and_replies(pool: Pool) -> None:
    """Beyond what a pipe holds, in both directions at a time."""
    assert [len(r) for r in pool.map([repr("x" * 3_000_000)] * 6, seconds=30)] == [3_000_000] * 6


def test_a_job_that_is_not_taken_has_its_deadline_too() -> None:
    """A worker that is frozen neither reads what no pipe holds nor listens to SIGTERM."""
    pool = Pool("builtins:eval", workers=1)
    assert pool.map(["1"], seconds=10) == [1]
    frozen = family(pool)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    late, other = pool.map([repr("x" * 3_000_000), "2"], seconds=0.5)
    assert late.late and other == 2
    assert wait_until(lambda: not running(frozen))
    pool.close()


def test_what_a_function_prints_is_no_reply(pool: Pool) -> None:
    assert pool.map(["print('ready') or 7", "__import__('os').write(1, b'ready\\n') and 8"], seconds=10) == [7, 8]


def test_threads_take_turns(pool: Pool) -> None:
    found: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda i=i: found.update({i: pool.map([f"{i} + {j}" for j in range(20)], 10)}))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: [i + j for j in range(20)] for i in range(4)}


def test_an_exception_from_outside_leaves_it_usable(pool: Pool) -> None:
    """As a signal of ours, which raises wherever the run is."""
    pool.map(["1"] * 2, seconds=10)
    with pytest.raises(DeadlineExceeded), deadline(0.2):
        pool.map([HANG] * 5, seconds=60)
    assert pool.map(["2", "3"], seconds=10) == [2, 3]


def test_a_fork_has_workers_of_its_own(pool: Pool) -> None:
    assert pool.map(["1"], seconds=10) == [1]
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writer, bytes(pool.map(["2", "3"], seconds=10)))
        pool.close()
        os._exit(0)
    os.close(writer)
    assert pool.map(["4", "5"], seconds=10) == [4, 5]
    assert os.read(reader, 9) == b"\2\3"
    os.waitpid(pid, 0)
    os.close(reader)


def test_nothing_is_left_after_close(pool: Pool) -> None:
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert isinstance(pool.map([HANG, "1"], seconds=0.1)[0], Lost)
        was = family(pool)
        assert 2 <= len(was) <= 4  # the fork that hung may be on its way to a new one
        pool.close()
        assert wait_until(lambda was=was: not alive(was))  # a zombie would stay
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_function_that_does_not_load_is_told_at_once() -> None:
    with pytest.raises(RuntimeError, match="no_such_module"):
        Pool("no_such_module:f").map([1], seconds=1)


@pytest.mark.parametrize("busy", [True, False])
def test_workers_die_with_a_parent_that_is_killed(busy: bool) -> None:
    """Also in the middle of an operation of C, and started by a thread."""
    script = (
        "import threading, time\nfrom grpo_exp.pool import Pool\n"
        "pool = Pool('builtins:eval', workers=2)\n"
        "thread = threading.Thread(target=pool.map, args=(['1'] * 2, 10))\nthread.start(); thread.join()\n"
        "print(*pool.pids(), flush=True)\n" + (f"pool.map([{ENDLESS!r}] * 2, 60)" if busy else "time.sleep(60)")
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        groups = [int(pid) for pid in process.stdout.readline().split()]
        assert len(groups) == 2
        if busy:
            assert wait_until(lambda: computing(groups)), "the operation of C has begun"
        process.kill()
    assert wait_until(lambda: not members(groups)), members(groups)


def members(groups: list[int]) -> list[int]:
    """The processes of some groups, zombies left out."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, group, stat in rows if int(group) in groups and "Z" not in stat]


def computing(groups: list[int]) -> bool:
    """Whether a worker's fork has computed for a while; what it has used is counted from the fork on."""
    forks = [pid for pid in members(groups) if pid not in groups]
    ticks = [sum(map(int, proc(pid, "stat").rpartition(")")[2].split()[11:13])) for pid in forks]
    return any(used > 0.2 * os.sysconf("SC_CLK_TCK") for used in ticks)


@pytest.mark.parametrize("function", ["grpo_exp.answers.algebra:equal", "grpo_exp.sandbox.trial:judged"])
def test_a_worker_imports_no_torch(function: str) -> None:
    reader, writer = os.pipe()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "grpo_exp.worker", function, "0", str(reader)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        pass_fds=[reader],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(reader)
    os.close(writer)
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 0 and done.stdout == "ready\n" and "grpo_exp" in modules
    assert not {"torch", "numpy", "transformers", "hydra", "omegaconf"} & modules


@pytest.mark.slow
def test_a_hundred_thousand_rows_leave_nothing() -> None:
    """Ordinary rows among some that hang, crash or raise: the memory of both sides stays where it was, and so do files."""
    pool = Pool("builtins:eval", workers=2)

    def resident() -> int:
        return sum(int(proc(pid, "statm").split()[1]) for pid in [os.getpid(), *settled(pool, 4)]) >> 8  # MiB

    jobs = ["len('x' * 1000)"] * 9_997 + [HANG, "1 / 0", "__import__('os')._exit(1)"]
    pool.map(jobs, seconds=1.0)
    before, files = resident(), len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        found = pool.map(jobs, seconds=1.0)
        assert found[:9_997] == [1000] * 9_997 and all(isinstance(lost, Lost) for lost in found[9_997:])
    assert resident() - before < 20
    assert len(os.listdir("/proc/self/fd")) == files and len(settled(pool, 4)) == 4
    pool.close()
