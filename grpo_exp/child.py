"""Processes that a run starts by multiprocessing: no signal hits them while they start, and none outlives its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator

from grpo_exp.stop import SIGNALS

PARENT_DIES = 1  # PR_SET_PDEATHSIG


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Within, signals wait; a process that is started has them wait until it can handle them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with(parent: int) -> None:
    """Have the system kill this process when the process `parent`, which started it, ends; on Linux, elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DIES, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(3)


def how_it_ended(code: int) -> str:
    """The exit code of a process, negative for a signal, in words: `was ended by SIGKILL`."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
