"""Persistent worker processes for code that cannot be trusted to end: sympy on a policy's text, programs that a policy wrote.

A row has a hard deadline in wall-clock time and a batch a budget. A worker that overruns is killed and replaced, whatever it is
doing: an alarm in the same process is no safety net, since a long operation in C never looks at it. The parent is one loop over
pipes, without threads; a worker has one job at a time, so that neither side waits for the other. `worker` is the other end. (Of
the libraries, concurrent.futures cannot stop a job, and multiprocessing's spawn runs the main module again in each worker.)
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from grpo_exp.worker import READY

MOST_WORKERS = 16
START_SECONDS = 120.0  # a worker may import sympy from a cold disk, beside others
LARGEST_REPLY = 1 << 24  # bytes
_ROOT = str(Path(__file__).resolve().parents[1])
_counts = Counter[str]()


@dataclass(frozen=True)
class Lost:
    """In the place of a result: why there is none, and the seconds that the row was given where it took too long."""

    why: str
    seconds: float = 0.0

    @property
    def late(self) -> bool:
        return self.seconds > 0


def count_stopped(rows: int = 1) -> None:
    """Note that rows were stopped by their deadline; `stops` tells."""
    _counts["stopped"] += rows


def stops() -> int:
    """How many rows were stopped since this was last asked."""
    return _counts.pop("stopped", 0)


@dataclass
class _Worker:
    """A process and what is on its way to it and from it."""

    process: subprocess.Popen[bytes]
    life: int  # the writing end of the pipe that it dies with
    ready: bool = False
    row: int | None = None  # of the job that it has
    seconds: float = START_SECONDS  # that it has for what it is doing
    deadline: float = 0.0
    outgoing: bytes = b""
    incoming: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input, self.output = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.input, False)
        os.set_blocking(self.output, False)
        self._within(START_SECONDS)

    def _within(self, seconds: float) -> None:
        self.seconds, self.deadline = seconds, time.monotonic() + seconds

    def give(self, row: int, job: bytes, seconds: float) -> None:
        self.row, self.outgoing = row, job
        self._within(seconds)

    def send(self) -> None:
        """Write what the pipe takes."""
        with contextlib.suppress(BlockingIOError):
            self.outgoing = self.outgoing[os.write(self.input, self.outgoing) :]

    def receive(self) -> bytes | None:
        """A whole line, None where it is not there yet.

        Raises:
            EOFError: the process has ended, or its line has no end.
        """
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.output, 1 << 16)
            self.incoming += data
            if not data or len(self.incoming) > LARGEST_REPLY:
                raise EOFError
        if not self.incoming.endswith(b"\n"):
            return None
        line, self.incoming = bytes(self.incoming), bytearray()
        return line

    def restart(self) -> None:
        """Have it drop what it is doing. It says when it is ready again."""
        self.process.terminate()
        self.ready, self.row, self.incoming = False, None, bytearray()
        self._within(START_SECONDS)

    def forget(self) -> None:
        """Close what this process has of it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        os.close(self.life)
        self.process.returncode = 0  # it is no child of this process

    def end(self) -> None:
        """End it, whatever it is doing, and take its exit status, so that nothing of it stays."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(OSError):  # what was never sent
            self.process.stdin.close()
        self.process.terminate()
        try:
            self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()
        os.close(self.life)


class Pool:
    """Workers that call one function, named as `module:function`, of one JSON value that returns another.

    Args:
        function: what is called; its module must not import torch.
        memory: bytes of address space a worker may use; beyond, it gets MemoryError. 0: any.
        workers: how many at most; None: as many as there are cores for this process, up to MOST_WORKERS.
    """

    def __init__(self, function: str, memory: int = 0, workers: int | None = None) -> None:
        self.function, self.memory = function, memory
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.size = workers or min(MOST_WORKERS, cores)
        self._workers: list[_Worker] = []
        self._lock, self._pid = threading.Lock(), os.getpid()
        atexit.register(self.close)

    def map(self, jobs: Sequence[Any], seconds: float, budget: float = float("inf"), hurried: float = 0.1) -> list[Any]:
        """The function's value for each job, in their order, or why there is none (`Lost`).

        Args:
            jobs: what JSON can hold.
            seconds: the most a row may take.
            budget: seconds from the first row's beginning, after which each of the others has `hurried`.

        Raises:
            RuntimeError: workers do not start.
        """
        with self._alone():
            return self._run([json.dumps(job).encode() + b"\n" for job in jobs], seconds, budget, hurried)

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """End all workers; the next `map` starts others."""
        if self._pid != os.getpid():
            return
        for worker in self._workers:
            worker.end()
        self._workers = []

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if self._pid != os.getpid():  # forked: the workers are the parent's, and are to end with it alone
            for worker in self._workers:
                worker.forget()
            self._workers, self._pid, self._lock = [], os.getpid(), threading.Lock()
        with self._lock:
            yield

    def _run(self, jobs: list[bytes], seconds: float, budget: float, hurried: float) -> list[Any]:
        results: list[Any] = [None] * len(jobs)
        waiting, end = deque(enumerate(jobs)), None
        try:
            while waiting or any(worker.row is not None for worker in self._workers):
                while len(self._workers) < min(self.size, len(jobs)) and waiting:
                    self._workers.append(self._start())
                for worker in self._workers:
                    if worker.ready and worker.row is None and waiting:
                        end = end or time.monotonic() + budget  # starting is not theirs
                        worker.give(*waiting.popleft(), min(seconds, max(hurried, end - time.monotonic())))
                for worker in self._moved(bool(waiting)):
                    self._serve(worker, results)
        finally:  # also where an exception passes through, such as that of a signal: no worker keeps half a job
            for worker in [w for w in self._workers if w.row is not None]:
                self._interrupt(worker)
        return results

    def _moved(self, more: bool) -> list[_Worker]:
        """The workers that something happened to: they can be written to or read from, or their time is up."""
        active = [w for w in self._workers if w.row is not None or (more and not w.ready)]
        if not active:
            return []
        with selectors.DefaultSelector() as selector:
            for worker in active:
                selector.register(worker.output, selectors.EVENT_READ, worker)
                if worker.outgoing:
                    selector.register(worker.input, selectors.EVENT_WRITE, worker)
            wait = min(worker.deadline for worker in active) - time.monotonic()
            moved = [key.data for key, _ in selector.select(max(0.0, wait))]
        now = time.monotonic()
        return list({id(w): w for w in [*moved, *(w for w in active if w.deadline <= now)]}.values())

    def _serve(self, worker: _Worker, results: list[Any]) -> None:
        """Take what a worker says, or have it start anew where it is late or gone.

        Raises:
            RuntimeError: it never became ready.
        """
        try:
            if worker.outgoing:
                worker.send()
            line = worker.receive()
        except (EOFError, BrokenPipeError):
            self._remove(worker)
            if worker.row is None:
                raise RuntimeError(f"a worker process for {self.function} ended before it was ready") from None
            results[worker.row] = Lost("its worker process ended")
            return
        if line is not None and line.endswith(READY):  # which may follow half a reply of the one before
            if worker.row is not None:
                results[worker.row] = Lost("its worker process ended")
            worker.ready, worker.row, worker.outgoing = True, None, b""
        elif line is not None and worker.row is not None:
            reply = json.loads(line)
            results[worker.row] = reply["value"] if "value" in reply else Lost(reply["error"])
            worker.row = None
        elif time.monotonic() >= worker.deadline:
            if worker.row is None:
                raise RuntimeError(f"a worker process for {self.function} was not ready after {START_SECONDS:g} s")
            results[worker.row] = Lost(f"took longer than {worker.seconds:.3g} s", worker.seconds)
            self._interrupt(worker)

    def _interrupt(self, worker: _Worker) -> None:
        """Have a worker drop its job; one that has not got all of it cannot tell where the next begins, and is ended."""
        if worker.outgoing:
            self._remove(worker)
        else:
            worker.restart()

    def _remove(self, worker: _Worker) -> None:
        worker.end()
        self._workers.remove(worker)

    def _start(self) -> _Worker:
        life, alive = os.pipe()  # one each: whom the kernel tells is a property of the pipe's end, not of the process
        paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, "-m", "grpo_exp.worker", self.function, str(self.memory), str(life)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=(life,),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
        os.close(life)
        return _Worker(process, alive)


@cache
def shared(function: str, memory: int = 0) -> Pool:
    """The pool for a function, one a process."""
    return Pool(function, memory)
