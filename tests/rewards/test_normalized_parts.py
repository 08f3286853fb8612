"""GDPO: each part normalised within its group before parts are added up, and what is learned from then."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_exp import config
from grpo_exp.advantages import group_advantages, group_normalized
from grpo_exp.batch import Completions, Example, TokenBatch
from grpo_exp.compose import compose
from grpo_exp.errors import ConfigError
from grpo_exp.parts import Normalization
from grpo_exp.rewards.base import Reward, RewardSum

ON = Normalization("group", 1, 0.0)
NAN = float("nan")


class Given(Reward):
    """Returns the values it is given."""

    values: list[float | None]

    def score(self, completions: Completions) -> list[float | None]:
        return self.values


def made(normalization: Normalization = ON, **parts: tuple[float, str, list[float | None]]) -> RewardSum:
    built: dict[str, Reward] = {}
    for name, (weight, role, values) in parts.items():
        built[name] = Given("given", weight, role)
        built[name].values = values  # type: ignore[attr-defined]
    return RewardSum(built, normalization=normalization)


def credited(rewards: RewardSum, group: torch.Tensor) -> torch.Tensor:
    n = len(group)
    scored = rewards(Completions([Example("a", "q")] * n, ["q"] * n, ["x"] * n, [[1]] * n, [True] * n))
    credited = rewards.normalized(scored, group)
    assert credited is not None
    return credited


def test_one_part_gained_and_two_parts_gained_stay_apart() -> None:
    """The paper's example: the sum of raw parts gives both groups +-0.7071; here the second has twice as much."""
    rewards = made(a=(1.0, "outcome", [0, 1, 0, 1]), b=(1.0, "shaping", [0, 0, 0, 1]))
    group = torch.tensor([0, 0, 1, 1])
    half = 0.5**0.5
    torch.testing.assert_close(credited(rewards, group), torch.tensor([-half, half, -2 * half, 2 * half]))
    summed = group_advantages(torch.tensor([0.0, 1.0, 0.0, 2.0]), group, "group", 1, 0.0)
    torch.testing.assert_close(summed, torch.tensor([-half, half, -half, half]))


def test_weights_count_after_normalisation_and_ranges_before_it_do_not() -> None:
    group = torch.tensor([0, 0, 0])
    values: list[float | None] = [3.0, 1.0, 2.0]
    mean, std = statistics.mean([3, 1, 2]), statistics.stdev([3, 1, 2])
    expected = torch.tensor([(0.25 - 1) * (v - mean) / std for v in (3, 1, 2)])
    large: list[float | None] = [-100 * v for v in (3, 1, 2)]
    torch.testing.assert_close(credited(made(a=(0.25, "outcome", values), b=(1.0, "shaping", large)), group), expected)


def test_ddof_and_eps() -> None:
    x, group = torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0, 0, 1])
    assert group_normalized(x, group, 0, 0.5).tolist() == [-0.5, 0.5, 0.0]  # std 1/2; one row alone has no distance


def test_rows_that_a_part_does_not_apply_to_are_left_out_of_its_group() -> None:
    x, group = torch.tensor([0.0, NAN, 1.0, NAN, 7.0]), torch.tensor([0, 0, 0, 1, 1])
    torch.testing.assert_close(group_normalized(x, group, 1, 0.0), torch.tensor([-(0.5**0.5), 0, 0.5**0.5, 0, 0]))
    assert group_normalized(torch.tensor([NAN, NAN]), torch.tensor([0, 0]), 1, 0.0).tolist() == [0, 0]


def test_behind_a_closed_gate_parts_are_normalised_as_nothing() -> None:
    """A right answer behind a gate is normalised as a wrong one, and counts no shaping."""
    rewards = made(a=(1.0, "outcome", [1, 1]), b=(1.0, "shaping", [0, 9]), honest=(0.0, "gate", [1, 0]))
    half = 0.5**0.5
    torch.testing.assert_close(credited(rewards, torch.tensor([0, 0])), torch.tensor([half, -half]))
    assert "a counts 0 and all else 0 where honest <= 0" in rewards.formula() and "std_group" in rewards.formula()


def test_off_there_is_nothing_to_credit_but_the_total() -> None:
    off = Normalization("none", 1, 1e-4)
    rewards = made(a=(1.0, "outcome", [1, 0]), normalization=off)
    scored = rewards(Completions([Example("a", "q")] * 2, ["q"] * 2, ["x"] * 2, [[1]] * 2, [True] * 2))
    assert rewards.normalized(scored, torch.tensor([0, 0])) is None and rewards.formula() == ""


@pytest.mark.parametrize("std", ["group", "batch", "none"])
def test_credit_is_given_for_the_normalised_sum_and_the_batch_may_normalise_it_again(std: str) -> None:
    """With std=batch as the paper has it; the reward itself says nothing then."""
    composed = compose([f"algo.std={std}", "reward.normalize.scale=group", "algo.std_eps=0", "beta=0"])
    built = config.build(composed)
    group, length = torch.tensor([0, 0, 1, 1]), torch.ones(4, 1, dtype=torch.long)
    said = torch.tensor([-1.0, 1.0, -2.0, 2.0])
    prompts, mask = torch.ones(2, 1, dtype=torch.long), length.bool()
    batch = TokenBatch(prompts, prompts.bool(), group, length, mask, mask, mask[:, 0], reward=torch.rand(4), normalized=said)
    advantages = built.algo.credit(batch).advantages
    assert advantages is not None
    half = 0.5**0.5
    expected = {"none": said, "group": half * said.sign(), "batch": said / statistics.stdev(said.tolist())}[std]
    torch.testing.assert_close(advantages[:, 0], expected)
    assert "R = sum over parts of weight (part - mean_group part)" in built.reward.formula()


def test_mined_pairs_are_the_best_and_the_worst_by_it() -> None:
    built = config.build(compose(["algo=dpo", "reward.normalize.scale=group", "G=3"]))
    ones = torch.ones(3, 1, dtype=torch.long)
    prompts = torch.ones(1, 1, dtype=torch.long)
    batch = TokenBatch(
        *(prompts, prompts.bool(), torch.zeros(3, dtype=torch.long), torch.tensor([[5], [6], [7]]), ones.bool(), ones.bool()),
        reward=torch.tensor([3.0, 2.0, 1.0]),
        normalized=torch.tensor([0.0, 1.0, -1.0]),
    )
    assert built.algo.select(batch).tokens.flatten().tolist() == [6, 7]


def test_a_group_of_one_cannot_be_normalised() -> None:
    with pytest.raises(ConfigError, match=r"reward.normalize.scale=group: .*G=1 .*reward.normalize.scale=none"):
        config.build(compose(["algo=ppo", "G=1", "reward.normalize.scale=group"]))


@given(st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=6), st.floats(0.25, 4), st.floats(-3, 3))
def test_a_part_may_be_scaled_and_shifted(values: list[float], scale: float, shift: float) -> None:
    x, group = torch.tensor(values, dtype=torch.float64), torch.zeros(len(values), dtype=torch.long)
    if x.std() < 1e-3:
        return
    one, other = (group_normalized(y, group, 1, 0.0) for y in (x, scale * x + shift))
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e6 + 0.1])
def test_equal_values_add_exactly_nothing(value: float) -> None:
    assert group_normalized(torch.full((7,), value), torch.zeros(7, dtype=torch.long), 1, 0.0).tolist() == [0] * 7
