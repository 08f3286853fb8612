"""The processes of one run, started here and watched: `hardware.processes=N` without torchrun or the like.

This process computes nothing. It passes signals on, and where one of the others ends badly or does not answer it ends them all.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from grpo_exp.child import die_with, held_back, how_it_ended
from grpo_exp.errors import GrpoError, RankError, RunError, Stopped
from grpo_exp.ranks import Place
from grpo_exp.stop import ONE_REQUEST, SIGNALS

PATIENCE = 20.0
"""Seconds that the others have to find out by themselves, and to write down how the run ended, once one has failed."""

Work = Callable[[Any], float | None]


def run(work: Work, job: Any, count: int, timeout: float) -> float | None:
    """`work(job)` in `count` processes; returns what the first of them does.

    `timeout` in seconds is how long one may wait for another.

    Raises:
        RankError: one was killed, ended without a word, or did not answer.
        GrpoError: what the run ended with.
        Stopped: on a signal, which is passed on to all.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # here, so that no rank's death takes it along
    places = [Place(rank, count, rank, count, "127.0.0.1", store.port, served=True) for rank in range(count)]
    with _caught() as caught:
        watch = _Watch(timeout, caught)
        try:
            with held_back():
                for place in places:
                    watch.ranks.append(_Rank(work, job, place))
            watch.wait()
        finally:
            watch.kill()
        return watch.result()


class _Rank:
    """One of the processes.

    Attributes:
        told: ("done", result) or ("failed", error), once it has said so.
        ended: when it was seen to have said so or ended; None before.
        killed: by this process.
    """

    def __init__(self, work: Work, job: Any, place: Place) -> None:
        context = multiprocessing.get_context("spawn")
        self.number = place.rank
        self.ear, mouth = context.Pipe(duplex=False)
        self.process: SpawnProcess = context.Process(
            target=_begin, args=(work, job, place, mouth, os.getpid()), name=f"grpo_exp rank {place.rank}"
        )
        self.process.start()
        mouth.close()
        self.told: tuple[str, Any] | None = None
        self.ended: float | None = None
        self.killed = False

    def listen(self) -> None:
        """Take in what it said, and whether it has ended."""
        gone = self.process.exitcode is not None
        with contextlib.suppress(EOFError, OSError):
            if self.told is None and self.ear.poll():
                self.told = self.ear.recv()
        if self.ended is None and (gone or self.told is not None):
            self.ended = time.monotonic()

    @property
    def died(self) -> str | None:
        """How it ended by itself without a word, in words."""
        code = self.process.exitcode
        if self.told is not None or code is None or self.killed:
            return None
        return f"rank {self.number} (process {self.process.pid}) {how_it_ended(code)}"

    def kill(self) -> None:
        """End it at once, where it has not ended."""
        if self.process.exitcode is None:
            self.killed = True
            self.process.kill()


class _Watch:
    """Waits for all, and ends those that are left where one has failed."""

    def __init__(self, timeout: float, caught: list[int]) -> None:
        self.ranks: list[_Rank] = []
        self.timeout, self.caught = timeout, caught
        self.passed, self.began = 0, 0.0

    def wait(self) -> None:
        """Until all have ended."""
        while left := [rank.process.sentinel for rank in self.ranks if rank.process.exitcode is None]:
            wait(left, timeout=0.1)
            for rank in self.ranks:
                rank.listen()
            self._pass_on()
            if time.monotonic() > self._deadline():
                self.kill()
        for rank in self.ranks:
            rank.listen()

    def _pass_on(self) -> None:
        """Signals to all; the second one, where it is another request, ends them."""
        while self.passed < len(self.caught):
            if self.passed and time.monotonic() - self.began > ONE_REQUEST:
                self.kill()
            elif not self.passed:
                self.began = time.monotonic()
                for rank in self.ranks:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rank.process.pid or 0, self.caught[0])
            self.passed += 1

    def _deadline(self) -> float:
        """When those that are left are ended: soon after a failure, later after an end that all agreed on."""
        ends = []
        for rank in self.ranks:
            if rank.ended is not None and (rank.told is None or rank.told[0] == "failed" or rank.number == 0):
                agreed = rank.told is not None and not isinstance(rank.told[1], RunError)
                ends.append(rank.ended + (max(self.timeout, PATIENCE) if agreed else PATIENCE))
        return min(ends, default=float("inf"))

    def kill(self) -> None:
        """End those that have not ended."""
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.process.join()

    def _silent(self) -> str:
        """Those that were killed before they had said anything, in words."""
        those = [rank for rank in self.ranks if rank.killed and rank.told is None]
        return " and ".join(f"rank {rank.number} (process {rank.process.pid})" for rank in those)

    def result(self) -> float | None:
        """The first rank's result, or what best says why there is none: a death, an error of its own, one about another."""
        failed = [(rank.number, rank.told[1]) for rank in self.ranks if rank.told is not None and rank.told[0] == "failed"]
        died = [rank.died for rank in self.ranks if rank.died is not None]
        if stopped := next((error for _, error in failed if isinstance(error, Stopped)), None):
            raise stopped
        if self.caught and (died or failed or self.ranks[0].told is None):
            name = signal.Signals(self.caught[0]).name
            raise Stopped(self.caught[0], f"stopped by {name}; what checkpoints there are, are as they were")
        if died:
            raise RankError(f"{' and '.join(died)}, so the run has ended; it goes on from its last checkpoint")
        own = [(number, error) for number, error in failed if not isinstance(error, RankError)]
        for number, error in [*own, *failed]:
            if number and isinstance(error, RunError) and not isinstance(error, RankError):
                raise type(error)(f"rank {number}: {error}")
            if isinstance(error, RankError) and (silent := self._silent()) and silent not in str(error):
                raise RankError(f"{error}; {silent} said nothing and was killed")  # within a pass the others cannot know
            raise error
        if self.ranks[0].told is None:
            raise RankError("rank 0 did not come to an end and was killed")
        result: float | None = self.ranks[0].told[1]
        return result


@contextlib.contextmanager
def _caught() -> Iterator[list[int]]:
    """Within, the signals that stop a run are noted in a list, as far as they are not ignored."""
    caught: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in before.items():
            if handler != signal.SIG_IGN:  # nohup
                signal.signal(number, lambda number, _: caught.append(number))
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _begin(work: Work, job: Any, place: Place, mouth: Connection, parent: int) -> None:
    """What each of the processes does."""
    die_with(parent)
    os.environ.update(place.environment())
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # it would look for the host's name, which may have no address
    try:
        mouth.send(("done", work(job)))
    except GrpoError as error:
        mouth.send(("failed", error))
        sys.exit(error.exit_code)
    except Exception as error:
        traceback.print_exc()
        mouth.send(("failed", RunError(f"{type(error).__name__}: {error}; the lines above say where")))
        sys.exit(RunError.exit_code)
