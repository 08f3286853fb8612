"""Intervals and unbiased estimates against exact values and simulations."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch

from grpo_exp.stats import bootstrap_mean, paired_difference, pass_at_k


@pytest.mark.parametrize("samples", [1, 4, 6])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(samples: int) -> None:
    for right in range(samples + 1):
        outcomes = [True] * right + [False] * (samples - right)
        for k in range(1, samples + 1):
            subsets = list(combinations(outcomes, k))
            assert pass_at_k(right, samples, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_does_not_overflow() -> None:
    assert pass_at_k(1, 10_000, 5_000) == pytest.approx(0.5)


def test_interval_of_a_mean_by_the_normal_approximation() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 3
    value, low, high = bootstrap_mean(x)
    error = (x.std() / 1000**0.5).item()
    assert value == pytest.approx(x.mean().item(), abs=1e-12)
    assert low == pytest.approx(value - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(value + 1.96 * error, abs=0.15 * error)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = torch.Generator().manual_seed(2)
    hits = 0
    for _ in range(200):
        x = (torch.rand(60, generator=generator) < 0.3).float()
        _, low, high = bootstrap_mean(x, resamples=400)
        hits += low <= 0.3 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_interval_repeats_and_its_seed_matters() -> None:
    x = torch.arange(10.0)
    assert bootstrap_mean(x) == bootstrap_mean(x)
    assert bootstrap_mean(x, seed=1) != bootstrap_mean(x)


def test_equal_values_get_wilsons_interval() -> None:
    z2 = 1.959963984540054**2
    assert bootstrap_mean(torch.ones(20)) == pytest.approx((1.0, 20 / (20 + z2), 1.0))
    assert bootstrap_mean(torch.zeros(20)) == pytest.approx((0.0, 0.0, z2 / (20 + z2)))
    value, low, high = bootstrap_mean(torch.full((1,), 0.5))
    assert 0 < low < value == 0.5 < high < 1
    assert bootstrap_mean(torch.full((5,), 7.0)) == (7.0, 7.0, 7.0)


def test_interval_of_nothing_is_unknown() -> None:
    assert all(math.isnan(x) for x in bootstrap_mean(torch.zeros(0)))


def test_paired_difference_uses_the_pairing() -> None:
    """Items differ a lot from each other, and each gained about 0.1: unpaired intervals would not see it."""
    generator = torch.Generator().manual_seed(3)
    before = torch.rand(100, generator=generator) * 10
    after = before + 0.1 + 0.02 * torch.randn(100, generator=generator)
    value, low, high = paired_difference(before, after)
    assert value == pytest.approx((after.double() - before.double()).mean().item(), abs=1e-9)
    assert 0.09 < low < 0.1 < high < 0.11
    flipped = paired_difference(after, before)
    assert flipped.value == pytest.approx(-value) and flipped.low < flipped.high < 0
    assert paired_difference(before, before) == (0, 0, 0)
