"""The gate before math-verify, and the time limit around it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterable
from functools import partial

import pytest

from grpo_exp import pool
from grpo_exp.answers import symbolic
from grpo_exp.deadline import DeadlineExceeded, deadline


@pytest.mark.parametrize(
    ("found", "reference", "expected"),
    [
        ("\\sqrt{8}", "2\\sqrt{2}", True),
        ("sqrt(8)", "2\\sqrt{2}", True),
        ("(x+1)^2", "x^2+2x+1", True),
        ("\\frac{1}{2}x", "x/2", True),
        ("\\frac{\\sqrt{3}}{2}", "\\frac{3}{2\\sqrt{3}}", True),
        ("x+y", "x-y", False),
        ("\\sqrt{2}", "1.414214", False),
    ],
)
def test_algebra(found: str, reference: str, expected: bool) -> None:
    assert symbolic.equal(found, reference) is expected


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^{9}}}",
        "9^9^9",
        "10^{10^8}",
        "((9^{99})^{99})^{99}",
        "2**1000",
        "(10^7)!",
        "\\sum_{i=1}^{9} i",
        "\\int x",
        "\\prod_{i} i",
        "(" * 11 + "x" + ")" * 11,
        "\\frac{1}{" * 12 + "x" + "}" * 12,
        "x+" * 150 + "x",
        "1" * 31,
        "18 19",
        "(1) 9",
        "the square root of two",
        "\\input{file}",
        "$1$",
        "x)",
        "",
        "__import__('os')",
    ],
)
def test_the_gate_keeps_out(text: str) -> None:
    start = time.process_time()
    assert not symbolic.admitted(text)
    assert not symbolic.equal(text, "x")
    assert time.process_time() - start < 0.1


def test_what_passes_the_gate_and_takes_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    symbolic.equal("x+1", "1+x")  # a worker starts
    monkeypatch.setattr(symbolic, "SECONDS", 0.3)
    pool.stops()
    start = time.perf_counter()
    assert not symbolic.equal("(a+b+c+d+e+f+g+h)^{99}", "x^2+1")
    assert time.perf_counter() - start < 20  # it would take hours
    assert not symbolic.equal("(a+b+c+d+e+f+g+h)^{99}", "x^2+1")  # known to take long: not tried again
    assert pool.stops() == 2


def test_a_batch_compares_equal_pairs_once_and_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[symbolic.Pair] = []
    compare = symbolic._compare

    def counted(pairs: Iterable[symbolic.Pair]) -> dict[symbolic.Pair, bool | float]:
        compared.extend(pairs := list(pairs))
        return compare(pairs)

    monkeypatch.setattr(symbolic, "_compare", counted)
    questions = [partial(symbolic.equal, f"z+{i % 3}", "1+z") for i in range(30)]
    # A question may need a second comparison, once it knows of the first.
    questions.append(lambda: symbolic.equal("z+2", "1+z") or symbolic.equal("z+z", "2z"))
    assert symbolic.decide(questions) == [i % 3 == 1 for i in range(30)] + [True]
    assert sorted(compared) == [("z+0", "1+z"), ("z+1", "1+z"), ("z+2", "1+z"), ("z+z", "2z")]


def test_more_than_is_remembered_is_decided_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic, "REMEMBERED", 2)
    pairs = [(f"u+{i}", f"{i % 2}+u") for i in range(6)]
    assert symbolic.decide([lambda p=p: symbolic.equal(*p) or symbolic.equal(p[1], p[1] + "+0") for p in pairs]) == [True] * 6
    assert symbolic.equal("u+1", "1+u")


def test_a_deadline_stops_and_restores_the_alarm_before_it() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    start = time.perf_counter()
    with pytest.raises(DeadlineExceeded, match=r"0\.05 s"), deadline(0.05):
        while True:
            with contextlib.suppress(Exception):  # as the stopped code may do
                time.sleep(0.01)
    assert time.perf_counter() - start < 20
    assert signal.getsignal(signal.SIGALRM) is handler
    with deadline(60):
        with deadline(5):
            pass
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_it_works_outside_the_main_thread() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(symbolic.equal("x+2", "2+x")))
    thread.start()
    thread.join()
    assert found == [True]
