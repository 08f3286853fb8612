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
    """The thread's loop is kept from call to call, since clients such as those of HTTP stay bound to the one they began in."""
    loop = getattr(_of_thread, "loop", None)
    if loop is None or loop.is_closed():
        loop = _of_thread.loop = asyncio.new_event_loop()
        atexit.register(loop.close)
    try:
        with _limit(seconds + GRACE):
            return loop.run_until_complete(_all(waiting, seconds))
    except DeadlineExceeded as error:  # the alarm fell between two pieces of code that block
        loop.close()
        return {key: Done(error=error) for key in waiting}
    except BaseException:
        loop.close()
        raise


async def _all(waiting: Mapping[Key, Awaitable[Any]], seconds: float) -> dict[Key, Done]:
    tasks = {key: asyncio.ensure_future(_kept(one)) for key, one in waiting.items()}
    limit = seconds if math.isfinite(seconds) else None
    await asyncio.wait(tasks.values(), timeout=limit, return_when=asyncio.FIRST_EXCEPTION)  # one that ends the program
    late = {key for key, task in tasks.items() if not task.done()}
    for key in late:
        tasks[key].cancel()
    if late:
        await asyncio.wait([tasks[key] for key in late], timeout=GRACE / 2)
    too_long = Done(error=DeadlineExceeded(f"took longer than {seconds:.3g} s"))
    return {key: too_long if key in late else task.result() for key, task in tasks.items()}


async def _kept(one: Awaitable[Any]) -> Done:
    try:
        return Done(await one)
    except _FAULTS as error:
        return Done(error=error)


def _limit(seconds: float) -> contextlib.AbstractContextManager[None]:
    """A deadline, where there is to be one and there can be."""
    return deadline(seconds) if math.isfinite(seconds) and possible() else contextlib.nullcontext()
