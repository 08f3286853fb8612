"""The overlong penalty against values worked by hand, and the one-digit reward."""

from __future__ import annotations

import pytest

from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError
from grpo_exp.rewards.digit import DigitReward
from grpo_exp.rewards.length import LengthReward


def completions(texts: list[str], lengths: list[int]) -> Completions:
    n = len(texts)
    return Completions([Example("0", "q")] * n, ["q"] * n, texts, [[1] * length for length in lengths], [True] * n)


@pytest.mark.parametrize(
    ("max_length", "buffer", "tokens", "expected"),
    [
        # L_max 100, L_cache 20: free up to 80, then (80 - y) / 20
        (100, 0.2, 0, 0.0),
        (100, 0.2, 80, 0.0),
        (100, 0.2, 81, -0.05),
        (100, 0.2, 85, -0.25),
        (100, 0.2, 90, -0.5),
        (100, 0.2, 100, -1.0),
        (100, 0.2, 101, -1.0),
        (100, 0.2, 1000, -1.0),
        # the paper's own numbers: 20480 tokens, of which 4096 soft
        (20480, 0.2, 16384, 0.0),
        (20480, 0.2, 18432, -0.5),
        (20480, 0.2, 20480, -1.0),
        # the whole length soft
        (10, 1.0, 3, -0.3),
        # a buffer shorter than one token: a step at max_length
        (3, 0.1, 2, 0.0),
        (3, 0.1, 3, -1.0),
    ],
)
def test_penalty(max_length: int, buffer: float, tokens: int, expected: float) -> None:
    part = LengthReward(kind="length", weight=1.0, role="shaping", max_length=max_length, buffer=buffer)
    assert part.score(completions(["x"], [tokens])) == [pytest.approx(expected, abs=1e-12)]


def test_a_length_cannot_be_the_outcome() -> None:
    with pytest.raises(ConfigError, match=r"reward\.parts\.length\.role=outcome.*role=shaping"):
        LengthReward(kind="length", weight=1.0, role="outcome", max_length=10, buffer=0.2)


DIGITS = [
    ("7", "7", "7"),
    (" 0\n", "0", "0"),
    ("７", None, "7"),
    ("12", None, None),
    ("", None, None),
    ("-1", None, None),
    ("1.", None, None),
    ("seven", None, None),
    ("٣", None, None),
    ("²", None, None),
    ("7 7", None, None),
]


@pytest.mark.parametrize(("text", "ascii_digit", "any_width"), DIGITS)
def test_digit(text: str, ascii_digit: str | None, any_width: str | None) -> None:
    for full_width, expected in ((False, ascii_digit), (True, any_width)):
        part = DigitReward(kind="digit", weight=1.0, role="outcome", full_width=full_width)
        assert part.score(completions([text], [1])) == [float(expected is not None)]
        assert part.answer(text) == expected
