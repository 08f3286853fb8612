"""Gates: what a sample behind a closed one counts, as reward, as outcome, in a vote and where groups are filtered."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from grpo_exp.advantages import contrast
from grpo_exp.batch import Completions, Example
from grpo_exp.errors import RewardError
from grpo_exp.metrics import reward_metrics
from grpo_exp.parts import Gate
from grpo_exp.rewards.base import Reward, RewardSum, check
from grpo_exp.scoring import Failures

NAN = math.nan


@dataclass
class Given(Reward):
    """Returns the values it is given; raises for a sample whose value is a text."""

    values: list[float | str | None]

    def score(self, completions: Completions) -> list[float | None]:
        chosen = [self.values[int(text)] for text in completions.texts]
        if texts := [value for value in chosen if isinstance(value, str)]:
            raise ValueError(texts[0])
        return chosen  # type: ignore[return-value]


def samples(count: int) -> Completions:
    examples = [Example(f"item-{i}", "q", "1") for i in range(count)]
    return Completions(examples, ["q"] * count, [str(i) for i in range(count)], [[1]] * count, [True] * count)


def rewards(
    gate: list[float | str | None], outcome: list[float | str | None], shaping: list[float | str | None], **changes: float
) -> RewardSum:
    parts: dict[str, Reward] = {
        "right": Given("given", 2.0, "outcome", outcome),
        "form": Given("given", 0.1, "shaping", shaping),
        "honest": Given("given", 0.5, "gate", gate),
    }
    return RewardSum(parts, Failures("zero", 0.5), Gate(**{"above": 0.0, "closed": 0.0} | changes))


def test_behind_a_closed_gate_nothing_else_counts() -> None:
    made = rewards(gate=[1, 0, -1, None], outcome=[1, 1, 1, 1], shaping=[1, 1, -5, 1])
    result = made(samples(4))
    torch.testing.assert_close(result.total, torch.tensor([2.6, 0.0, 0.0, 2.1]))  # an open gate counts weight x value
    assert result.outcome.tolist() == [1, 0, 0, 1]
    assert result.closed is not None and result.closed.tolist() == [False, True, True, False]
    assert result.parts["right"].tolist() == [1, 1, 1, 1], "what a part said is recorded whatever the gates say"
    assert reward_metrics(result, torch.tensor([0, 0, 1, 1]))["reward/closed_frac"] == 0.5
    assert result.failed is not None and not result.failed.any()


def test_where_it_opens_and_what_a_closed_one_costs_are_options() -> None:
    made = rewards([0.2, 0.5, 0.51], [1, 1, 1], [0, 0, 0], above=0.5, closed=-1.0)
    result = made(samples(3))
    torch.testing.assert_close(result.total, torch.tensor([-2.0, -2.0, 2.255]))  # the outcome's weight times closed
    assert result.outcome.tolist() == [-1, -1, 1]
    assert "right counts -1 and all else 0 where honest <= 0.5" in made.formula()


def test_without_a_gate_nothing_is_said_of_gates() -> None:
    made = RewardSum({"right": Given("given", 1.0, "outcome", [1, 0])})
    result = made(samples(2))
    assert result.closed is None and made.formula() == ""
    assert "reward/closed_frac" not in reward_metrics(result, torch.tensor([0, 0]))


def test_several_gates_all_have_to_be_open() -> None:
    parts: dict[str, Reward] = {
        "right": Given("given", 1.0, "outcome", [1, 1, 1, 1]),
        "one": Given("given", 0.0, "gate", [1, 0, 1, 0]),
        "two": Given("given", 0.0, "gate", [1, 1, 0, 0]),
    }
    assert RewardSum(parts)(samples(4)).total.tolist() == [1, 0, 0, 0]


def test_an_outcome_that_does_not_apply_is_not_right_behind_a_gate_either() -> None:
    result = rewards([0, 1], [None, None], [1, 1], closed=-1.0)(samples(2))
    assert result.outcome.tolist() == [-1, 0]
    torch.testing.assert_close(result.total, torch.tensor([-2.0, 0.6]))


def test_filtering_sees_what_the_reward_says() -> None:
    """Wrong samples and closed gates have no contrast; right ones, of which a gate stops some, have it."""
    group = torch.tensor([0, 0, 1, 1])
    wrong = rewards(gate=[0, 1, 0, 0], outcome=[0, 0, 0, 1], shaping=[0, 1, 0, 0])(samples(4))
    assert not contrast(wrong.outcome, group).any(), "shaping alone, or a right answer that counts nothing, is no contrast"
    right = rewards(gate=[0, 1, 1, 1], outcome=[1, 1, 1, 1], shaping=[0, 0, 0, 0])(samples(4))
    assert contrast(right.outcome, group).tolist() == [True, True, False, False]
    assert contrast(right.total, group).tolist() == [True, True, False, False]


# ---- a gate that fails


def test_a_gate_that_fails_is_closed_and_counted() -> None:
    made = rewards(gate=[1, "no judge", NAN, None], outcome=[1, 1, 1, 1], shaping=[0, 0, 0, 0])
    result = made(samples(4))
    assert result.closed is not None and result.closed.tolist() == [False, True, True, False]
    assert result.failed is not None and result.failed.tolist() == [False, True, True, False]
    torch.testing.assert_close(result.total, torch.tensor([2.5, 0.0, 0.0, 2.0]))
    assert "'honest'" in result.notes[0] and "no judge" in result.notes[0] and "item-1" in result.notes[0]


def test_by_default_a_gate_that_fails_ends_the_run_with_its_name_and_the_row() -> None:
    made = RewardSum(rewards(gate=[1, "no judge"], outcome=[1, 1], shaping=[1, 1]).parts)
    with pytest.raises(RewardError, match=r"'honest' raised ValueError: no judge.*sample 1 of item item-1"):
        made(samples(2))


def test_the_check_before_training_tries_gates() -> None:
    @dataclass
    class Long(Reward):
        def score(self, completions: Completions) -> list[float | None]:
            return [float(len(text) > 3) for text in completions.texts]

    made = RewardSum({"right": Long("long", 1.0, "outcome"), "honest": Long("long", 0.0, "gate")}, gate=Gate(0.0, -1.0))
    seen = dict(check(made, Example("7", "q", "2")))
    assert seen["reference answer"] == {"right": 1, "honest": 1, "total": 1}
    assert seen["empty completion"] == {"right": 0, "honest": 0, "total": -1}
