"""A reward that raises, hangs or returns nonsense: named with its sample, or let pass, counted and told, up to a share."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError, InputError, RewardError
from grpo_exp.metrics import reward_metrics
from grpo_exp.rewards.base import Reward, RewardSum, check
from grpo_exp.scoring import Failures

TEXTS = ["one", "two", "bad", "four"]
ZERO = Failures("zero", max_failed=0.25)
Score = Callable[[Completions], Any]


class Scripted(Reward):
    """Scores with a function."""

    function: Score

    def score(self, completions: Completions) -> list[float | None]:
        return self.function(completions)  # type: ignore[no-any-return]


def rewards(function: Score, failures: Failures = ZERO) -> RewardSum:
    part, other = Scripted("scripted", 2.0, "outcome"), Scripted("other", 1.0, "shaping")
    part.function, other.function = function, lambda completions: [0.5] * len(completions)
    return RewardSum({"mine": part, "other": other}, failures)


def samples(texts: list[str] = TEXTS) -> Completions:
    count = len(texts)
    examples = [Example(f"item-{i}", "q", "1") for i in range(count)]
    return Completions(examples, ["q"] * count, texts, [[1]] * count, [True] * count)


def raising(completions: Completions) -> list[float]:
    if "bad" in completions.texts:
        raise ZeroDivisionError("no way")
    return [1.0] * len(completions)


def exiting(completions: Completions) -> list[float]:
    if "bad" in completions.texts:
        raise SystemExit(0)
    return [1.0] * len(completions)


def value(of_bad: Any) -> Score:
    return lambda completions: [of_bad if text == "bad" else 1.0 for text in completions.texts]


def hanging(completions: Completions) -> list[float]:
    while "bad" in completions.texts:
        with contextlib.suppress(Exception):  # a deadline is no error that a reward could swallow
            time.sleep(0.001)
    return [1.0] * len(completions)


FUNCTIONS = {
    "raises": raising,
    "exits": exiting,
    "nan": value(math.nan),
    "inf": value(-math.inf),
    "beyond float32": value(1e39),
    "a whole number of 400 digits": value(10**400),
    "text": value("high"),
    "a list": value([1.0]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_by_default_the_sample_is_named(name: str) -> None:
    with pytest.raises(RewardError) as error:
        rewards(FUNCTIONS[name], Failures())(samples())
    for part in ("'mine'", "sample 2 of item item-2", "'bad'"):
        assert part in str(error.value), str(error.value)
    assert error.value.exit_code == 3 and len(str(error.value)) < 400


@pytest.mark.parametrize("name", FUNCTIONS)
def test_let_pass_it_adds_nothing_to_that_sample_alone(name: str) -> None:
    made = rewards(FUNCTIONS[name])
    result = made(samples())
    assert result.total.tolist() == [2.5, 2.5, 0.5, 2.5] and result.outcome.tolist() == [1, 1, 0, 1]
    assert result.parts["mine"].isnan().tolist() == [False, False, True, False]
    assert result.failed is not None and result.failed.tolist() == [False, False, True, False]
    assert reward_metrics(result, torch.tensor([0, 0, 1, 1]))["reward/failed_frac"] == 0.25
    assert reward_metrics(result, torch.tensor([0, 0, 1, 1]))["reward/part/mine"] == 1
    (note,) = result.notes
    assert "'mine'" in note and "item-2" in note and "reward/failed_frac" in note
    assert made(samples()).notes == []  # told once


def test_more_than_the_share_let_pass_ends_the_run() -> None:
    rewards(raising)(samples(["bad", "good", "good", "good"]))
    with pytest.raises(RewardError, match=r"failed on 2 of 4 samples, and reward\.max_failed=0\.25"):
        rewards(raising)(samples(["bad", "bad", "good", "good"]))
    with pytest.raises(RewardError, match="4 of 4"):
        rewards(raising)(samples(["bad"] * 4))


@pytest.mark.parametrize("failures", [Failures(), ZERO])
@pytest.mark.parametrize(
    ("returned", "said"), [([1.0], "1 values for 4 samples"), (1.0, "float for 4"), (None, "NoneType"), ("abcd", "str")]
)
def test_what_no_sample_is_to_blame_for_always_ends_the_run(failures: Failures, returned: Any, said: str) -> None:
    with pytest.raises(RewardError, match=said):
        rewards(lambda completions: returned, failures)(samples())


def test_wrong_input_stays_wrong_input() -> None:
    def score(completions: Completions) -> list[float]:
        raise ConfigError("reward.path: no such argument")

    with pytest.raises(InputError, match="no such argument"):
        rewards(score)(samples())


def test_none_is_no_failure() -> None:
    result = rewards(value(None))(samples())
    assert result.failed is not None and not result.failed.any() and result.notes == []
    assert result.parts["mine"].isnan().tolist() == [False, False, True, False]


def test_what_fails_on_no_sample_alone_says_what_it_said_together() -> None:
    def score(completions: Completions) -> list[float]:
        if len(completions) > 1:
            raise KeyError("together")
        return [1.0]

    with pytest.raises(RewardError, match="'together'") as error:
        rewards(score, Failures())(samples())
    assert "alone" not in str(error.value)
    assert rewards(score)(samples()).total.tolist() == [2.5] * 4  # each alone has its value, and none failed


# ---- time


def test_a_reward_that_hangs_is_stopped() -> None:
    with pytest.raises(RewardError, match=r"'mine' took longer than 0\.2 s for 4 samples .*reward\.timeout"):
        rewards(hanging, Failures(timeout=0.2))(samples())


def test_let_pass_the_sample_that_hangs_is_found_and_left_out() -> None:
    result = rewards(hanging, Failures("zero", 0.25, timeout=0.5))(samples())
    assert result.failed is not None and result.failed.tolist() == [False, False, True, False]
    assert result.total.tolist() == [2.5, 2.5, 0.5, 2.5]
    assert "took longer" in result.notes[0] and "item-2" in result.notes[0]


def test_outside_the_main_thread_there_is_no_limit() -> None:
    seen: list[list[float]] = []
    made = rewards(lambda completions: [1.0] * len(completions), Failures(timeout=0.1))
    thread = threading.Thread(target=lambda: seen.append(made(samples()).total.tolist()))
    thread.start()
    thread.join()
    assert seen == [[2.5] * 4]


# ---- before the run


def test_a_probe_that_fails_is_let_pass_where_another_does_not() -> None:
    """However few may fail in a run: two or three probes are no share of it."""
    example = Example("7", "q", "2", target="bad")
    seen = dict(check(rewards(raising, Failures("zero", 0.0)), example))
    assert math.isnan(seen["worked target"]["mine"]) and seen["reference answer"]["mine"] == 1
    with pytest.raises(InputError, match="no way"):
        check(rewards(raising, Failures()), example)


def test_every_probe_that_fails_is_wrong_input() -> None:
    def score(completions: Completions) -> list[float]:
        raise KeyError("colour")

    with pytest.raises(InputError, match="colour"):
        check(rewards(score, Failures("zero", 1.0)), Example("7", "q", "2"))
