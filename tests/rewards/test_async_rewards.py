"""Asynchronous rewards: awaited together, under the limit in time, and their failures treated as those of all others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from grpo_exp import calls
from grpo_exp.batch import Completions, Example
from grpo_exp.deadline import DeadlineExceeded
from grpo_exp.errors import RewardError
from grpo_exp.rewards.base import Reward, RewardSum
from grpo_exp.scoring import Failures

Score = Callable[[Completions], Awaitable[list[float | None]]]
ROWS = ["one", "two", "bad", "four"]


class Scripted(Reward):
    """Scores with a function. A subclass may define `score` as `async def` itself: `Slow` does."""

    function: Score

    def score(self, completions: Completions) -> Awaitable[list[float | None]]:
        return self.function(completions)


class Meeting(Reward):
    """Waits until all three of them are awaited."""

    waiting = 0

    async def score(self, completions: Completions) -> list[float | None]:
        Meeting.waiting += 1
        while Meeting.waiting < 3:
            await asyncio.sleep(0.01)
        return [1.0] * len(completions)


def samples(texts: list[str] = ROWS) -> Completions:
    count = len(texts)
    examples = [Example(f"item-{i}", "q", "1") for i in range(count)]
    return Completions(examples, ["q"] * count, texts, [[1]] * count, [True] * count)


def rewards(function: Score, failures: Failures) -> RewardSum:
    part = Scripted("scripted", 1.0, "outcome")
    part.function = function
    return RewardSum({"mine": part}, failures)


async def raising(completions: Completions) -> list[float | None]:
    await asyncio.sleep(0)
    if "bad" in completions.texts:
        raise ZeroDivisionError("no way")
    return [1.0] * len(completions)


async def exiting(completions: Completions) -> list[float | None]:
    await asyncio.sleep(0)
    if "bad" in completions.texts:
        raise SystemExit(0)
    return [1.0] * len(completions)


async def waiting(completions: Completions) -> list[float | None]:
    while "bad" in completions.texts:
        await asyncio.sleep(0.01)
    return [1.0] * len(completions)


async def blocking(completions: Completions) -> list[float | None]:
    while "bad" in completions.texts:
        with contextlib.suppress(Exception):
            time.sleep(0.01)
    return [1.0] * len(completions)


async def stubborn(completions: Completions) -> list[float | None]:
    while "bad" in completions.texts:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)
    return [1.0] * len(completions)


def test_parts_are_awaited_at_the_same_time() -> None:
    parts: dict[str, Reward] = {
        "a": Meeting("meeting", 1.0, "outcome"),
        "b": Meeting("meeting", 0.5, "shaping"),
        "c": Meeting("meeting", 1.0, "gate"),
    }
    assert RewardSum(parts, Failures(timeout=20))(samples()).total.tolist() == [2.5] * 4


@pytest.mark.parametrize("function", [raising, exiting])
def test_by_default_the_row_is_named(function: Score) -> None:
    with pytest.raises(RewardError, match=r"'mine' raised .*; alone it fails on sample 2 of item item-2 \('bad'\)"):
        rewards(function, Failures())(samples())


@pytest.mark.parametrize("function", [waiting, blocking, stubborn])
def test_by_default_the_row_that_hangs_is_named(function: Score, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "GRACE", 0.1)
    with pytest.raises(RewardError, match=r"'mine' took longer than 0\.\d s for 4 samples .*sample 2 of item item-2 \('bad'\)"):
        rewards(function, Failures(timeout=0.2))(samples())


@pytest.mark.parametrize("function", [raising, exiting, waiting, blocking, stubborn])
def test_let_pass_it_adds_nothing_to_that_row_alone_and_is_counted(function: Score, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "GRACE", 0.1)
    result = rewards(function, Failures("zero", 0.25, timeout=0.5))(samples())
    assert result.total.tolist() == [1, 1, 0, 1]
    assert result.failed is not None and result.failed.tolist() == [False, False, True, False]
    assert "'mine'" in result.notes[0] and "item-2" in result.notes[0]


def test_rows_that_are_tried_alone_are_awaited_together() -> None:
    alone = 0

    async def meeting(completions: Completions) -> list[float | None]:
        nonlocal alone
        alone += len(completions) == 1
        while len(completions) == 1 and alone < 8:
            await asyncio.sleep(0.01)
        return await raising(completions)

    texts = ["good"] * 7 + ["bad"]
    assert rewards(meeting, Failures("zero", 0.2, timeout=20))(samples(texts)).total.tolist() == [1] * 7 + [0]


def test_what_was_stopped_leaves_the_next_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "GRACE", 0.1)
    for function in (waiting, stubborn):
        made = rewards(function, Failures("zero", 0.25, timeout=0.5))
        made(samples())
        assert made(samples(["good"])).total.tolist() == [1]


def test_the_limit_holds_outside_the_main_thread_too() -> None:
    seen: list[str] = []

    def score() -> None:
        try:
            rewards(waiting, Failures(timeout=0.2))(samples())
        except RewardError as error:
            seen.append(str(error))

    thread = threading.Thread(target=score)
    thread.start()
    thread.join(60)
    assert "took longer than 0.2 s" in seen[0]


def test_a_client_bound_to_its_loop_lives_from_call_to_call() -> None:
    loops: set[int] = set()

    async def score(completions: Completions) -> list[float | None]:
        loops.add(id(asyncio.get_running_loop()))
        return [1.0] * len(completions)

    made = rewards(score, Failures())
    for _ in range(3):
        made(samples())
    assert len(loops) == 1


def test_a_call_that_ends_the_program_is_let_through() -> None:
    async def interrupted() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calls.run({"a": lambda: asyncio.sleep(30), "b": interrupted}, 1.0, 30.0)
    assert calls.run({"a": lambda: asyncio.sleep(0, 5)}, 1.0, 1.0)["a"].value == 5, "the next call begins anew"


def test_what_is_too_late_is_told_to_end() -> None:
    told: list[bool] = []
    loops: set[asyncio.AbstractEventLoop] = set()

    async def late() -> None:
        loops.add(asyncio.get_running_loop())
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            told.append(True)
            raise

    for _ in range(2):
        assert isinstance(calls.run({"a": late}, 1.0, 0.05)["a"].error, DeadlineExceeded)
    assert told == [True, True] and len(loops) == 1, "what ends when told to leaves the loop, and clients bound to it, alone"


def test_each_call_has_its_own_end() -> None:
    def fail() -> None:
        raise KeyError("colour")

    async def cancelled() -> None:
        raise asyncio.CancelledError

    mixed: dict[str, Callable[[], Any]] = {
        "plain": lambda: 3,
        "fails": fail,
        "awaited": lambda: asyncio.sleep(0.01, "late"),
        "hangs": lambda: asyncio.sleep(30),
        "cancels itself": cancelled,
    }
    done = calls.run(mixed, 1.0, 0.5)
    assert (done["plain"].value, done["awaited"].value) == (3, "late")
    assert isinstance(done["fails"].error, KeyError) and isinstance(done["hangs"].error, DeadlineExceeded)
    assert isinstance(done["cancels itself"].error, asyncio.CancelledError)
