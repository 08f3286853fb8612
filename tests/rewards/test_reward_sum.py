"""How parts add up, which of them is the outcome, and the check before a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError, InputError, RewardError
from grpo_exp.options import option
from grpo_exp.rewards.base import Reward, RewardSum, check, check_roles
from grpo_exp.rewards.digit import DigitReward
from grpo_exp.rewards.format import FormatReward
from grpo_exp.rewards.math import MathReward

MATH = MathReward(kind="math", weight=1.0, role="outcome", extract=["tag"], right=1.0, wrong=0.0, missing=0.0, tolerance=0.0)
FORM = FormatReward(kind="format", weight=0.1, role="shaping", style="answer_tag", pattern=None, tags=[], finished=True)


@dataclass
class Bad(Reward):
    """Returns what it is told to, or raises."""

    values: list[object] | None = option("what is returned")

    def score(self, completions: Completions) -> list[float | None]:
        if self.values is None:
            raise KeyError("colour")
        return self.values  # type: ignore[return-value]


def test_total_is_the_weighted_sum_and_the_outcome_stands_alone() -> None:
    texts = ["<answer>1</answer>", "<answer>2</answer>", "1", "<answer>1</answer> "]
    examples = [Example(str(i), "q", answer) for i, answer in enumerate(["1", "1", "1", None])]
    result = RewardSum({"math": MATH, "format": FORM})(Completions(examples, ["q"] * 4, texts, [[1]] * 4, [True] * 4))
    torch.testing.assert_close(result.total, torch.tensor([1.1, 0.1, 0.0, 0.1]))
    torch.testing.assert_close(result.outcome, torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert result.parts["math"].isnan().tolist() == [False, False, False, True]
    torch.testing.assert_close(result.parts["format"], torch.tensor([1.0, 1.0, 0.0, 1.0]))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, ["reward.parts is empty", "reward=math"]),
        ({"format": FORM}, ["none of format has role=outcome", "role=outcome", "+reward/part@reward.parts.math=math"]),
        ({"a": MATH, "form": FORM, "b": MATH}, ["a, b all have role=outcome", "reward.parts.b.role=shaping"]),
    ],
)
def test_exactly_one_part_is_the_outcome(parts: dict[str, Reward], words: list[str]) -> None:
    for build in (check_roles, RewardSum):
        with pytest.raises(ConfigError) as error:
            build(parts)
        assert all(word in str(error.value) for word in words)


def test_the_check_shows_what_each_probe_earned() -> None:
    example = Example("7", [{"role": "user", "content": "1 + 1?"}], "2", target="1+1=3 <answer>3</answer>")
    seen = check(RewardSum({"math": MATH, "format": FORM}), example)
    assert seen == [
        ("worked target", {"math": 0.0, "format": 1.0, "total": 0.1}),
        ("reference answer", {"math": 1.0, "format": 1.0, "total": 1.1}),
        ("empty completion", {"math": 0.0, "format": 0.0, "total": 0.0}),
    ]


def test_the_check_writes_the_answer_as_the_outcome_reads_it() -> None:
    digit = DigitReward(kind="digit", weight=1.0, role="outcome", full_width=False)
    assert check(RewardSum({"digit": digit}), Example("7", "q", "2"))[0] == ("reference answer", {"digit": 1.0, "total": 1.0})


def test_the_check_without_an_answer_shows_that_the_part_does_not_apply() -> None:
    [(probe, values)] = check(RewardSum({"math": MATH}), Example("7", "q"))
    assert probe == "empty completion"
    assert math.isnan(values["math"])
    assert values["total"] == 0.0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (None, ["'bad' raised KeyError", "colour", "test_reward_sum.py, line"]),
        ([1.0], ["'bad' returned 1 values"]),
        ([1.0, math.inf], ["'bad' returned inf"]),
    ],
)
def test_a_bad_reward_is_the_users_input_before_the_run_and_a_failure_within(
    values: list[object] | None, words: list[str]
) -> None:
    rewards = RewardSum({"bad": Bad(kind="bad", weight=1.0, role="outcome", values=values)})
    with pytest.raises(InputError) as before:
        check(rewards, Example("row-7", "q", "2"))
    assert all(word in str(before.value) for word in (*words, "row-7"))
    assert before.value.exit_code == 2
    with pytest.raises(RewardError) as within:
        rewards(Completions([Example("a", "q")] * 2, ["q"] * 2, ["x"] * 2, [[1]] * 2, [True] * 2))
    assert all(word in str(within.value) for word in words)
    assert within.value.exit_code == 3
