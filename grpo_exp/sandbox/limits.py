"""What a process in the sandbox may use, set by itself before it runs anything of anybody else's."""

from __future__ import annotations

import json
import os
import resource
import signal
from typing import Any

Spec = dict[str, Any]
"""What a process is told: `limits` by the names of `resource`, `uid` or None, whether it is `tied` to its parent, which outside
a sandbox nobody else sees to, and what `candidate` or `judge` need."""


def enter(file: int) -> Spec:
    """Read what this process is told and take the limits on; the uid first, since no limit on processes binds root."""
    with os.fdopen(file, "rb") as told:
        spec: Spec = json.load(told)
    if spec["uid"] is not None:
        os.setgroups([])
        os.setresgid(spec["uid"], spec["uid"], spec["uid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    if spec["tied"]:
        import ctypes  # a start without it is faster

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    for name, value in spec["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    return spec


def of(seconds: float, memory: int, disk: int, processes: int) -> dict[str, int]:
    """The limits: CPU seconds, bytes of address space and of a file, processes with threads counted."""
    return {
        "RLIMIT_CPU": int(seconds) + 2,  # of a single process; the time by the clock is what counts
        "RLIMIT_AS": memory,
        "RLIMIT_FSIZE": disk,
        "RLIMIT_NPROC": processes,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
    }
