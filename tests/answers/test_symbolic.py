"""The gate before math-verify, and the time limit around it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time

import pytest

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
    start = time.perf_counter()
    assert not symbolic.admitted(text)
    assert not symbolic.equal(text, "x")
    assert time.perf_counter() - start < 0.1


def test_what_passes_the_gate_and_takes_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    symbolic.equal("x+1", "1+x")  # imports math-verify
    monkeypatch.setattr(symbolic, "SECONDS", 0.3)
    start = time.perf_counter()
    assert not symbolic.equal("(a+b+c+d+e+f+g+h)^{99}", "x^2+1")
    assert time.perf_counter() - start < 2


def test_a_deadline_stops_and_restores_the_alarm_before_it() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    start = time.perf_counter()
    with pytest.raises(DeadlineExceeded, match=r"0\.05 s"), deadline(0.05):
        while True:
            with contextlib.suppress(Exception):  # as the stopped code may do
                time.sleep(0.01)
    assert time.perf_counter() - start < 1
    assert signal.getsignal(signal.SIGALRM) is handler
    with deadline(60):
        with deadline(5):
            pass
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_outside_the_main_thread_nothing_runs_without_a_limit() -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            symbolic.equal("x+2", "2+x")
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])
