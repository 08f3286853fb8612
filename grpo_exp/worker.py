"""What runs in a worker of `pool.Pool`: one function, called with one job after another, until its input ends.

    python -m grpo_exp.worker MODULE:FUNCTION MEMORY LIFE

Two processes: one that has imported what the function needs and waits, and its fork, which serves. A job is a line of JSON on
the standard input, its result a line on the standard output. At SIGTERM the first kills the second, which may be deep in a
computation of C, and forks anew: a few milliseconds, where a process from scratch would take a second to import sympy. Nothing
here or above may import torch.

Both die with their parent however that dies: LIFE is the reading end of a pipe that nothing is ever written to, and when the
last writer is gone the kernel sends their process group SIGIO, which ends whoever does not ask for it. (PR_SET_PDEATHSIG would
tie them to the *thread* that started them.)
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

READY = b"ready\n"
_AWAITED = (signal.SIGTERM, signal.SIGCHLD)


def main(function: str, memory: str, life: str) -> None:
    """Serve jobs; `memory` is the address space in bytes that the function may use, 0 for any."""
    _die_with_parent(int(life))
    _adopt_orphans()
    replies = os.dup(1)
    os.dup2(2, 1)  # what the function prints is no reply
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    while True:
        child = os.fork()
        if not child:
            _serve(call, int(memory), replies)
        if _ended(child) == 0 or not _drained():
            return


def _ended(child: int) -> int:
    """Wait for the child's end, and bring it about where SIGTERM asks for that; its status. Other orphans are buried."""
    while True:
        if signal.sigwait(_AWAITED) == signal.SIGTERM:
            os.kill(child, signal.SIGKILL)  # it is there, if as a zombie: nobody else waits for it
        pid, status = os.waitpid(-1, os.WNOHANG)
        while pid:
            if pid == child:
                if signal.SIGTERM in signal.sigpending():
                    signal.sigwait([signal.SIGTERM])  # it is dead already
                return status
            pid, status = os.waitpid(-1, os.WNOHANG)


def _serve(call: Callable[[Any], Any], memory: int, replies: int) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _adopt_orphans()
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    _write(replies, READY)
    with os.fdopen(os.dup(0), "rb") as jobs:
        for line in jobs:
            _write(replies, json.dumps(_answer(call, json.loads(line))).encode() + b"\n")
    os._exit(0)


def _answer(call: Callable[[Any], Any], job: Any) -> dict[str, Any]:
    """What becomes of a job: its value, or in words what it raised."""
    try:
        return {"value": call(job)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def _drained() -> bool:
    """Drop what is left of the job that the dead process had; whether there may be others."""
    while select.select([0], [], [], 0)[0]:
        if not os.read(0, 1 << 16):
            return False
    return True


def _die_with_parent(life: int) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # what the parent blocked or ignored is its own matter
    for signum in (signal.SIGIO, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def _adopt_orphans() -> None:
    """Become the parent of what outlives its own, such as the first process of a sandbox, to see it end and leave no zombie."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER, which a fork does not inherit


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


if __name__ == "__main__":
    main(*sys.argv[1:])
