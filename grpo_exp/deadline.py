"""A limit in wall-clock time on code that cannot be trusted to end: a user's regular expression, sympy on a policy's text."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class DeadlineExceeded(BaseException):
    """The time is up. Not an `Exception`, so that an `except Exception` in the code that is stopped does not swallow it."""


def possible() -> bool:
    """Whether there can be a deadline here: in the main thread of a system with alarms (Linux, macOS; not Windows)."""
    return threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Stop what runs inside after `seconds` by raising DeadlineExceeded in it; an alarm that was set before is set again.

    The alarm repeats, in case the first exception is lost where Python drops exceptions, as in a destructor.

    Raises:
        DeadlineExceeded: the time is up.
        RuntimeError: outside the main thread, or on a system without alarms (Windows), where nothing could stop the code.
    """
    if not possible():
        raise RuntimeError("a time limit needs the main thread of a system with alarms (Linux, macOS)")

    def stop(signum: int, frame: FrameType | None) -> None:
        raise DeadlineExceeded(f"took longer than {seconds:.3g} s")

    start = time.monotonic()
    handler = signal.signal(signal.SIGALRM, stop)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, max(remaining - (time.monotonic() - start), 0.001), interval)
