"""Signals: the first asks the run to stop, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from grpo_exp.errors import Stopped


class _Interrupt(KeyboardInterrupt):
    """Raised in the middle of what `at_once` covers; a BaseException, so that no library takes it for an error of its own."""


class StopSignals:
    """Within, SIGINT and SIGTERM set `signum`, which the loop asks for between two steps; a second one exits with 128 + number.

    Outside the main thread Python allows no handlers, and nothing is changed.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[int, Any] = {}
        self._interrupts = False

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def __call__(self) -> int | None:
        """The signal that came, if one did."""
        return self.signum

    @contextmanager
    def at_once(self, when: str = "before the first step") -> Iterator[None]:
        """Within, a signal does not wait: for work that may be dropped in the middle, such as loading and evaluation.

        Raises:
            Stopped: a signal came, or had come before.
        """
        if self.signum is not None:
            raise self._stopped(self.signum, when)
        self._interrupts = True
        try:
            yield
        except _Interrupt:
            assert self.signum is not None
            raise self._stopped(self.signum, when) from None
        finally:
            self._interrupts = False

    def _stopped(self, signum: int, when: str) -> Stopped:
        return Stopped(signum, f"stopped by {signal.Signals(signum).name} {when}; there is nothing to keep")

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            os._exit(128 + signum)
        self.signum = signum
        if self._interrupts:
            raise _Interrupt
        os.write(sys.__stderr__.fileno(), b"\nstopping after this step, with a checkpoint; once more to stop at once\n")  # type: ignore[union-attr]
