"""Intervals and unbiased estimates against exact values and simulations."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from grpo_exp.stats import (
    bootstrap_mean,
    crossed_interval,
    detectable,
    holm,
    iqm,
    items_needed,
    mcnemar,
    mean_interval,
    paired_bootstrap,
    paired_difference,
    pass_at_k,
    probability_of_improvement,
    seeds_needed,
    settings_difference,
    stratified_interval,
)


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


# ---- several runs


def test_iqm_is_the_mean_of_the_middle_half() -> None:
    """arXiv 2108.13264, section 4.3, as `scipy.stats.trim_mean(x, 0.25)`: int(n / 4) values go at each end."""
    assert iqm(np.array([100.0, 1, 3, 2])) == 2.5
    assert iqm(np.array([9.0, 1, 5])) == 5  # int(3 / 4) = 0: the mean
    assert iqm(np.array([5.0, 1, 2, 3, 4, 0, 90])) == 3  # one off at each end: (1 + 2 + 3 + 4 + 5) / 5
    assert iqm(np.array([[1.0, 2, 3, 100], [4, 4, 4, 4]])).tolist() == [2.5, 4]


def test_stratified_bootstrap_draws_runs_within_each_task() -> None:
    """Two runs on two tasks: each task's mean is its low, its middle or its high value with 1/4, 1/2, 1/4, independently.

    With tasks 0, 1 and 0, 10 the mean of all is 0 with probability 1/16 and 5.5 with 1/16, both beyond 2.5 %.
    """
    scores = np.array([[0.0, 0.0], [1.0, 10.0]])
    assert stratified_interval(scores, lambda x: x.mean(-1)) == pytest.approx((2.75, 0.0, 5.5))
    drawn = []
    stratified_interval(scores, lambda x: drawn.append(x.mean(-1)) or x.mean(-1), resamples=20_000)  # type: ignore[func-returns-value]
    values, counts = np.unique(drawn[0], return_counts=True)
    assert values.tolist() == [0, 0.25, 0.5, 2.5, 2.75, 3, 5, 5.25, 5.5]
    assert counts / 20_000 == pytest.approx([1 / 16, 1 / 8, 1 / 16, 1 / 8, 1 / 4, 1 / 8, 1 / 16, 1 / 8, 1 / 16], abs=0.012)
    assert stratified_interval(np.array([[0.5]])) == (0.5, 0.5, 0.5)


def test_probability_of_improvement() -> None:
    """arXiv 2108.13264, section 4.3: Mann-Whitney's U over the pairs. 1, 3 against 1, 2: 1/2, 0, 1, 1."""
    assert probability_of_improvement(np.array([1.0, 3]), np.array([1.0, 2])) == 0.625
    assert probability_of_improvement(np.array([2.0]), np.array([1.0, 2, 3])) == 0.5
    two_tasks = np.array([[1.0, 5], [3, 5]]), np.array([[1.0, 4], [2, 4]])
    assert probability_of_improvement(*two_tasks) == (0.625 + 1) / 2


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_crossed_interval_covers_the_truth_over_new_seeds_and_items(seeds: int) -> None:
    random, hits = np.random.default_rng(seeds), 0
    for _ in range(200):
        by_seed, by_item = 0.05 * random.standard_normal(seeds), 0.2 * random.standard_normal(80)
        x = 0.5 + by_seed[:, None] + by_item + 0.3 * random.standard_normal((seeds, 80))
        _, low, high = crossed_interval(x, resamples=600)
        hits += low <= 0.5 <= high
    assert 0.9 <= hits / 200 <= 1


def test_an_interval_of_shares_stays_among_shares() -> None:
    """Two seeds far apart, one all right: stretched deviations would pass 100 %."""
    x = np.vstack([np.ones(40), np.r_[np.ones(20), np.zeros(20)]])
    value, low, high = crossed_interval(x)
    assert value == 0.75 and 0 <= low < 0.5 and high == 1.0
    assert crossed_interval(x + 1)[2] > 2.0  # not shares


def test_crossed_interval_of_one_seed_is_that_over_items_and_of_equal_values_wilsons() -> None:
    x = (np.random.default_rng(0).random(400) < 0.3).astype(float)
    value, low, high = crossed_interval(x[None])
    by_items = bootstrap_mean(torch.tensor(x))
    assert value == by_items.value and (low, high) == pytest.approx((by_items.low, by_items.high), abs=0.01)
    assert crossed_interval(np.ones((3, 20))) == bootstrap_mean(torch.ones(20))


def test_crossed_interval_stretches_the_seeds_deviations() -> None:
    """Seeds 1 and 3 on one item lie 1 from their mean, stretched sqrt(2); both ends are drawn with probability 1/4."""
    assert crossed_interval(np.array([[1.0], [3.0]])) == pytest.approx((2, 2 - 2**0.5, 2 + 2**0.5))


def test_mean_interval_over_seeds() -> None:
    """1 and 3: standard error 1, t(0.975) with one degree of freedom 12.706."""
    assert mean_interval(np.array([1.0, 3])) == pytest.approx((2, 2 - 12.706, 2 + 12.706), abs=1e-3)
    assert math.isnan(mean_interval(np.array([1.0])).low)


def test_mcnemar_by_hand() -> None:
    """1 against 5: 2 (C(6,0) + C(6,1)) / 2^6 = 14 / 64."""
    assert mcnemar(1, 5) == mcnemar(5, 1) == pytest.approx(14 / 64)
    assert mcnemar(0, 10) == pytest.approx(2 / 1024) and mcnemar(3, 3) == 1 and mcnemar(0, 0) == 1


def test_paired_bootstrap_agrees_with_the_normal_approximation() -> None:
    difference = np.random.default_rng(1).standard_normal(300) + 0.12
    z = difference.mean() / (difference.std() / 300**0.5)
    assert paired_bootstrap(difference) == pytest.approx(math.erfc(abs(z) / 2**0.5), abs=0.015)
    assert paired_bootstrap(difference + 2) < 1e-20  # beyond what resamples can resolve
    assert paired_bootstrap(np.zeros(5)) == 1 and paired_bootstrap(np.full(5, 0.5)) == 2 / 2**5


def test_paired_bootstrap_finds_nothing_where_there_is_nothing() -> None:
    random = np.random.default_rng(2)
    found = sum(paired_bootstrap(random.standard_normal(60), 1000) < 0.05 for _ in range(300))
    assert 4 <= found <= 30


def test_settings_difference_with_one_column_is_welchs_test() -> None:
    """x = 1, 3, y = 0, 0: variance 2 / 2 + 0, t = 2, one degree of freedom: p = 1 - 2 arctan(2) / pi = 0.2952."""
    found = settings_difference(np.array([[1.0], [3]]), np.array([[0.0], [0]]))
    assert found == pytest.approx((2, 2 - 12.706, 2 + 12.706, 1 - 2 * math.atan(2) / math.pi), abs=1e-3)
    assert settings_difference(np.zeros((2, 3)), np.zeros((2, 3))).p == 1
    with pytest.raises(ValueError, match="two seeds"):
        settings_difference(np.zeros((1, 3)), np.zeros((2, 3)))


@pytest.mark.parametrize("seeds", [2, 5])
def test_equal_settings_are_rarely_told_apart(seeds: int) -> None:
    random, found = np.random.default_rng(seeds), 0
    for _ in range(500):
        common = 0.2 * random.standard_normal(50)
        x, y = (
            0.5 + common + 0.05 * random.standard_normal((seeds, 1)) + 0.3 * random.standard_normal((seeds, 50)) for _ in "xy"
        )
        found += settings_difference(x, y).p < 0.05
    assert found <= 40  # 25 expected of an exact test


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.03, 0.04 times 3, 2, 1: 0.03, 0.06, 0.04, and never falling: 0.06."""
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    assert holm(np.array([0.01, 0.04, 0.03]), family=6) == pytest.approx([0.06, 0.16, 0.15])
    assert holm(np.array([0.9, 0.8])).tolist() == [1, 1] and holm(np.zeros(0)).size == 0


def test_seeds_and_items_that_suffice() -> None:
    """17 of each for a difference of one standard deviation: tables of the two-sided t test at 5 % and 80 % power."""
    assert seeds_needed(1, 2) == 17 and seeds_needed(0.5, 2) == 64
    assert detectable(2, 17) == pytest.approx(1, abs=0.02)
    assert items_needed(0.1, 0.25) == math.ceil(0.25 * (1.959964 + 0.841621) ** 2 / 0.01)
    assert seeds_needed(0.1, 1, fixed=1) == math.inf and seeds_needed(0, 1) == math.inf  # no number of seeds is enough
    assert items_needed(1, 1, fixed=0.1) > items_needed(1, 1)


def test_so_many_seeds_find_it_four_times_in_five() -> None:
    random, n = np.random.default_rng(0), int(seeds_needed(1.2, 2))
    hits = sum(
        settings_difference(1.2 + random.standard_normal((n, 1)), random.standard_normal((n, 1))).p < 0.05 for _ in range(600)
    )
    assert 0.75 <= hits / 600 <= 0.87
