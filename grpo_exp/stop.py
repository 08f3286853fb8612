"""Signals: the first asks the run to stop after the step it is in, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any


class StopSignals:
    """Within, SIGINT and SIGTERM set `signum`; a second one exits with 128 + its number.

    Outside the main thread Python allows no handlers, and nothing is changed.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def __call__(self) -> int | None:
        return self.signum

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            os._exit(128 + signum)
        self.signum = signum
        sys.stderr.write("\nstopping after this step, with a checkpoint; again to stop at once\n")
