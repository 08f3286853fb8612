"""Signals: the first asks the run to stop, the second ends the process at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from grpo_exp.errors import Stopped
from grpo_exp.ranks import ALONE, Halted, Ranks


class _Interrupt(KeyboardInterrupt):
    """Raised in the middle of what `at_once` covers; a BaseException, so that no library takes it for an error of its own."""


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, what systems send before they kill, and what Slurm can be asked to send ahead of that (`--signal=USR1@120`)."""
ONE_REQUEST = 1.0
"""Seconds within which signals count as one: a scheduler reaches every process of a job, and a parent passes it on as well."""

NOTHING_TO_KEEP = "before the first step; there is nothing to keep"


class StopSignals:
    """Within, each of SIGNALS sets `signum`, which the loop asks for between two steps; a second one exits with 128 + number.

    Outside the main thread Python allows no handlers, and nothing is changed. Of several ranks all stop in the same place,
    whichever of them the signal reached.
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.signum: int | None = None
        self._came = 0.0
        self._before: dict[int, Any] = {}
        self._interrupts = False

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._handle) for s in SIGNALS}
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # a rank is started with signals held back until here
        self.ranks.call_after(self._interrupt)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        if isinstance(error, _Interrupt):  # between the last line of what `at_once` covers and its end
            raise self.stopped("between two lines; the same command goes on from the last checkpoint") from None

    def __call__(self) -> int | None:
        """The signal that came, if one did: to this rank, or to another."""
        came = next((signum for signum in self.ranks.exchange(self.signum) if signum is not None), None)
        self.signum = self.signum or came
        return came

    @contextlib.contextmanager
    def at_once(self, when: str = NOTHING_TO_KEEP) -> Iterator[None]:
        """Within, a signal does not wait: for work that may be dropped in the middle, such as loading, sampling, evaluation.

        Several ranks enter and leave it together, and within tell each other nothing but by exchanges: a rank that is
        interrupted takes part in the one that the others come to next, and so all know.

        Raises:
            Stopped: a signal came, or had come before; `when` ends its message.
        """
        try:
            self._interrupts = True
            self._interrupt()
            yield
            self._interrupts = False
            self.ranks.exchange(None)
        except _Interrupt:
            self._interrupts = False
            assert self.signum is not None
            self.ranks.halt(self.signum)
            raise self.stopped(when) from None
        except Halted as other:
            self.signum = self.signum or other.signum
            raise self.stopped(when) from None
        finally:
            self._interrupts = False

    def _interrupt(self) -> None:
        """Break off what `at_once` covers where a signal came."""
        if self._interrupts and self.signum is not None:
            raise _Interrupt

    def stopped(self, when: str) -> Stopped:
        """The error that ends the run on the signal that came."""
        assert self.signum is not None
        return Stopped(self.signum, f"stopped by {signal.Signals(self.signum).name} {when}")

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            if time.monotonic() - self._came > ONE_REQUEST:
                os._exit(128 + signum)
            return
        self.signum, self._came = signum, time.monotonic()
        if self._interrupts:
            if not self.ranks.busy:  # else at the end of the exchange
                raise _Interrupt
            return
        if not self.ranks.first:
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the terminal is gone
            os.write(sys.__stderr__.fileno(), b"\nstopping after this step, with a checkpoint; once more to stop at once\n")  # type: ignore[union-attr]
