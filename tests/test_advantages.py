"""Credit within groups: what must hold for any rewards and any order of rows."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_exp.advantages import contrast, group_advantages, group_mean, group_std

few = settings(max_examples=60, deadline=None)
values = st.floats(-10, 10, allow_nan=False).map(lambda x: round(x, 3))


@st.composite
def rewards(draw: Any, smallest: int = 1) -> tuple[Tensor, Tensor]:
    """Rewards and groups of one to six rows each, the rows of different groups interleaved in any order."""
    sizes = draw(st.lists(st.integers(smallest, 6), min_size=1, max_size=5))
    group = draw(st.permutations([g for g, size in enumerate(sizes) for _ in range(size)]))
    reward = draw(st.lists(values, min_size=len(group), max_size=len(group)))
    return torch.tensor(reward, dtype=torch.float64), torch.tensor(group)


scales = st.sampled_from(["group", "batch", "none"])


@few
@given(rewards(), scales, st.integers(0, 1))
def test_definition_by_the_standard_library(case: tuple[Tensor, Tensor], std: Any, ddof: int) -> None:
    reward, group = case
    got = group_advantages(reward, group, std, ddof, 1e-4)

    def spread(rows: list[float]) -> float:
        if len(rows) <= ddof:
            return 0.0
        return statistics.stdev(rows) if ddof else statistics.pstdev(rows)

    by_group = {g: [r for r, h in zip(reward.tolist(), group.tolist(), strict=True) if h == g] for g in set(group.tolist())}
    for row, (r, g) in enumerate(zip(reward.tolist(), group.tolist(), strict=True)):
        scale = {"group": spread(by_group[g]) + 1e-4, "batch": spread(reward.tolist()) + 1e-4, "none": 1.0}[std]
        assert got[row].item() == pytest.approx((r - statistics.fmean(by_group[g])) / scale, rel=1e-6, abs=1e-8)


@few
@given(rewards(), scales, st.floats(-100, 100))
def test_adding_a_constant_changes_nothing(case: tuple[Tensor, Tensor], std: Any, shift: float) -> None:
    reward, group = case
    torch.testing.assert_close(
        group_advantages(reward + shift, group, std, 1, 1e-4),
        group_advantages(reward, group, std, 1, 1e-4),
        rtol=1e-6,
        atol=1e-7,
    )


@few
@given(rewards(), st.lists(st.floats(-100, 100), min_size=5, max_size=5))
def test_adding_a_constant_to_each_group_changes_nothing(case: tuple[Tensor, Tensor], shifts: list[float]) -> None:
    """As in a prompt that is easier for everyone; not for std=batch, whose scale sees all groups."""
    reward, group = case
    shifted = reward + torch.tensor(shifts, dtype=torch.float64)[group]
    for std in ("group", "none"):
        torch.testing.assert_close(
            group_advantages(shifted, group, std, 1, 1e-4), group_advantages(reward, group, std, 1, 1e-4), rtol=1e-6, atol=1e-7
        )


@few
@given(rewards(), st.sampled_from(["group", "batch"]), st.floats(0.1, 100))
def test_scaling_changes_nothing_where_a_standard_deviation_divides(
    case: tuple[Tensor, Tensor], std: Any, factor: float
) -> None:
    reward, group = case
    torch.testing.assert_close(
        group_advantages(reward * factor, group, std, 1, 0.0),
        group_advantages(reward, group, std, 1, 0.0),
        rtol=1e-6,
        atol=1e-7,
    )


@few
@given(rewards(), st.floats(0.1, 100))
def test_scaling_scales_where_nothing_divides(case: tuple[Tensor, Tensor], factor: float) -> None:
    reward, group = case
    torch.testing.assert_close(
        group_advantages(reward * factor, group, "none", 1, 0.0), factor * group_advantages(reward, group, "none", 1, 0.0)
    )


@few
@given(rewards(), scales, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(case: tuple[Tensor, Tensor], std: Any, random: Any) -> None:
    reward, group = case
    order = list(range(len(reward)))
    random.shuffle(order)
    names = list(range(int(group.max()) + 1))
    random.shuffle(names)  # nor the groups' numbers
    expected = group_advantages(reward, group, std, 1, 1e-4)[order]
    torch.testing.assert_close(group_advantages(reward[order], torch.tensor(names)[group][order], std, 1, 1e-4), expected)


@few
@given(rewards(), scales)
def test_advantages_of_a_group_sum_to_zero(case: tuple[Tensor, Tensor], std: Any) -> None:
    reward, group = case
    total = torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add(
        0, group, group_advantages(reward, group, std, 1, 1e-4)
    )
    assert total.abs().max().item() < 1e-6


@few
@given(st.floats(-1e3, 1e3, width=32), st.integers(1, 12), scales, st.sampled_from([0.0, 1e-4]), st.integers(0, 1))
def test_equal_rewards_have_advantage_exactly_zero(value: float, size: int, std: Any, eps: float, ddof: int) -> None:
    """In float32, where the mean of equal numbers is often another number: 0.1 three times. A second group has contrast."""
    reward = torch.tensor([value] * size + [0.0, 1.0], dtype=torch.float32)
    group = torch.tensor([0] * size + [1, 1])
    advantage = group_advantages(reward, group, std, ddof, eps)
    assert torch.equal(advantage[:size], torch.zeros(size))
    assert advantage[-1] > 0


@few
@given(values, scales)
def test_a_group_of_one_has_advantage_zero(value: float, std: Any) -> None:
    reward = torch.tensor([value, 3.0, 5.0], dtype=torch.float64)
    assert group_advantages(reward, torch.tensor([1, 0, 0]), std, 1, 1e-4)[0] == 0
    assert group_advantages(reward[:1], torch.tensor([0]), std, 1, 1e-4).tolist() == [0]


@few
@given(values, values)
def test_groups_of_two_know_the_order_alone(a: float, b: float) -> None:
    assume(a != b)
    sign = 1 if a > b else -1
    advantage = group_advantages(torch.tensor([a, b], dtype=torch.float64), torch.tensor([0, 0]), "group", 1, 0.0)
    assert advantage.tolist() == pytest.approx([sign * 0.5**0.5, -sign * 0.5**0.5])


def test_values_published_for_one_example() -> None:
    """TRL 1.10.0.dev0 and verl (2026-08), group mean and sample standard deviation with eps 1e-6, and without one."""
    reward, group = torch.tensor([1.0, 0.0, 0.5, 0.0], dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    expected = [0.7071057811879616, -0.7071057811879616, 0.7071047811922043, -0.7071047811922043]
    assert group_advantages(reward, group, "group", 1, 1e-6).tolist() == pytest.approx(expected, abs=1e-9)
    assert group_advantages(reward, group, "none", 1, 1e-6).tolist() == [0.5, -0.5, 0.25, -0.25]


def test_interleaved_groups_by_hand() -> None:
    reward, group = torch.tensor([1.0, 10.0, 3.0, 20.0, 5.0]), torch.tensor([0, 1, 0, 1, 0])
    assert group_mean(reward, group).tolist() == [3, 15, 3, 15, 3]
    assert group_std(reward, group, 1).tolist() == pytest.approx([2, 50**0.5, 2, 50**0.5, 2])
    assert group_std(reward, group, 0).tolist() == pytest.approx([(8 / 3) ** 0.5, 5, (8 / 3) ** 0.5, 5, (8 / 3) ** 0.5])
    assert contrast(torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0]), group).tolist() == [False, True, False, True, False]
    assert contrast(torch.tensor([1.0, 2.0, 1.5, 2.0, 1.0]), group).tolist() == [True, False, True, False, True]
