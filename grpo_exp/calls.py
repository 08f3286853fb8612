"""Calls of code that is not ours, such as reward functions: each under a limit in time, asynchronous ones together."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from grpo_exp.deadline import DeadlineExceeded, deadline, possible

Key = TypeVar("Key")
GRACE = 1.0
"""Seconds that asynchronous code has to end in once it is told to, before it is stopped as code that blocks is."""
_FAULTS = (Exception, SystemExit, DeadlineExceeded, asyncio.CancelledError)
"""What a call may raise without ending the program: SystemExit too, since sys.exit() in it must not end a run as if done."""
_of_thread = threading.local()


@dataclass(frozen=True)
class Done:
    """What a call returned, or what it raised: DeadlineExceeded where it took too long."""

    value: Any = None
    error: BaseException | None = None


def run(calls: Mapping[Key, Callable[[], Any]], seconds: float, together: float) -> dict[Key, Done]:
    """Make all calls, one after the other, then await what they returned where it can be awaited, all at the same time.

    Args:
        seconds: that each call may take, without what is awaited; no limit where nothing can stop it: outside the main thread.
        together: seconds that what is awaited may take, in any thread.
    """
    done = {key: _called(call, seconds) for key, call in calls.items()}
    waiting = {key: one.value for key, one in done.items() if inspect.isawaitable(one.value)}
    return done | (_awaited(waiting, together) if waiting else {})


def _called(call: Callable[[], Any], seconds: float) -> Done:
    try:
        with _limit(seconds):
            return Done(call())
    except _FAULTS as error:
        return Done(error=error)


def _awaited(waiting: Mapping[Key, Awaitable[Any]], seconds: float) -> dict[Key, Done]:
    """The thread's loop is kept from call to call, since clients such as those of HTTP stay bound to the one they began in.

    It is given up where something in it did not end when told to.
    """
    loop = getattr(_of_thread, "loop", None)
    if loop is None or loop.is_closed():
        loop = _of_thread.loop = asyncio.new_event_loop()
        atexit.register(loop.close)
    tasks = {key: loop.create_task(_kept(one)) for key, one in waiting.items()}
    try:
        with _limit(seconds + GRACE):
            late = loop.run_until_complete(_ended(set(tasks.values()), seconds))
    except DeadlineExceeded:  # the alarm fell between two pieces of code that block
        late = {task for task in tasks.values() if not task.done()}
    finally:
        if not all(task.done() for task in tasks.values()):
            _give_up(loop)
        for task in tasks.values():
            if task.done() and not task.cancelled():
                task.exception()  # has been seen, or asyncio tells of it at the end of the program
    too_long = Done(error=DeadlineExceeded(f"took longer than {seconds:.3g} s"))
    return {key: too_long if task in late else task.result() for key, task in tasks.items()}


async def _ended(tasks: set[asyncio.Task[Done]], seconds: float) -> set[asyncio.Task[Done]]:
    """Wait for tasks, or until one ends the program; those that were not done in time, told to end."""
    limit = seconds if math.isfinite(seconds) else None
    _, late = await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_EXCEPTION)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=GRACE / 2)
    return late


def _give_up(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop, after one more moment for what is left in it."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    with contextlib.suppress(*_FAULTS), _limit(GRACE):
        loop.run_until_complete(asyncio.wait(left, timeout=GRACE / 2))
    loop.close()


async def _kept(one: Awaitable[Any]) -> Done:
    try:
        return Done(await one)
    except _FAULTS as error:
        return Done(error=error)


def _limit(seconds: float) -> contextlib.AbstractContextManager[None]:
    """A deadline, where there is to be one and there can be."""
    return deadline(seconds) if math.isfinite(seconds) and possible() else contextlib.nullcontext()
