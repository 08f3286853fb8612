"""Losses of preference pairs against values worked by hand from the papers, in float64, and which samples make a pair."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grpo_exp import preferences
from grpo_exp.preferences import PairLoss, best_and_worst, bradley_terry, difference, pair_loss, row_logp

EXACT = {"rtol": 0.0, "atol": 1e-12}

# Two pairs, three tokens at most; a padded position holds rubbish and has mask 0.
LOGP = torch.tensor([[-0.5, -1.0, -2.0], [-1.2, -0.7, 9.0], [-0.9, 9.0, 9.0], [-0.4, -0.6, -1.1]], dtype=torch.float64)
REF = torch.tensor([[-0.7, -1.0, -1.5], [-1.0, -0.7, -9.0], [-1.9, -9.0, -9.0], [-0.4, -1.1, -1.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=torch.bool)


def gap(kind: PairLoss, logp: Tensor = LOGP) -> Tensor:
    against = REF if preferences.needs_reference(kind) else torch.zeros_like(REF)
    return difference(row_logp(logp - against, MASK, preferences.over_tokens(kind)))


def softplus(x: float) -> float:
    """-log s(-x), worked with another formula than the code's."""
    return math.log(1 + math.exp(x))


def test_log_ratios_of_rows_are_sums_and_means_over_the_mask() -> None:
    """log pi - log ref, summed: 0.2 + 0 - 0.5 = -0.3; -0.2 + 0 = -0.2; 1.0; 0 + 0.5 - 0.1 = 0.4. So h = -0.1 and 0.6.

    Means: -0.1, -0.1, 1.0, 0.4 / 3. So h = 0 and 0.8666... Mean log pi: -3.5 / 3, -1.9 / 2, -0.9, -2.1 / 3.
    """
    torch.testing.assert_close(row_logp(LOGP - REF, MASK), torch.tensor([-0.3, -0.2, 1.0, 0.4], dtype=torch.float64), **EXACT)
    torch.testing.assert_close(gap("sigmoid"), torch.tensor([-0.1, 0.6], dtype=torch.float64), **EXACT)
    torch.testing.assert_close(gap("ipo_mean"), torch.tensor([0.0, 1 - 0.4 / 3], dtype=torch.float64), **EXACT)
    torch.testing.assert_close(gap("simpo"), torch.tensor([-3.5 / 3 + 0.95, -0.9 + 0.7], dtype=torch.float64), **EXACT)


@pytest.mark.parametrize(
    ("kind", "beta", "options", "wanted"),
    [
        # DPO, arXiv 2305.18290, equation 7: -log s(beta h), here log(1 + exp(-beta h)) with beta h = -0.05 and 0.3
        ("sigmoid", 0.5, {}, [softplus(0.05), softplus(-0.3)]),
        # cDPO: with probability e the label is wrong: (1 - e) log(1 + exp(-beta h)) + e log(1 + exp(beta h)), e = 0.1
        (
            "sigmoid",
            0.5,
            {"smoothing": 0.1},
            [0.9 * softplus(0.05) + 0.1 * softplus(-0.05), 0.9 * softplus(-0.3) + 0.1 * softplus(0.3)],
        ),
        # robust DPO, arXiv 2403.00409: ((1 - e) L(h) - e L(-h)) / (1 - 2 e)
        (
            "robust",
            0.5,
            {"smoothing": 0.1},
            [(0.9 * softplus(0.05) - 0.1 * softplus(-0.05)) / 0.8, (0.9 * softplus(-0.3) - 0.1 * softplus(0.3)) / 0.8],
        ),
        # hinge on log-ratios, arXiv 2309.06657: max(0, 1 - beta h) with beta h = -0.2 and 1.2
        ("hinge", 2.0, {}, [1.2, 0.0]),
        # IPO, arXiv 2310.12036, equation 17: (h - 1 / (2 tau))^2 with tau = 0.5: (-0.1 - 1)^2, (0.6 - 1)^2
        ("ipo", 0.5, {}, [1.21, 0.16]),
        # the same on means over tokens: (0 - 1)^2, (1 - 0.4 / 3 - 1)^2
        ("ipo_mean", 0.5, {}, [1.0, (0.4 / 3) ** 2]),
        # SimPO, arXiv 2405.14734, equation 6: -log s(beta / |y_w| log pi_w - beta / |y_l| log pi_l - gamma)
        ("simpo", 2.0, {"gamma": 1.0}, [softplus(1 - 2 * (-3.5 / 3 + 0.95)), softplus(1 - 2 * (-0.9 + 0.7))]),
    ],
)
def test_the_losses_by_hand(kind: PairLoss, beta: float, options: dict[str, Any], wanted: list[float]) -> None:
    loss = pair_loss(gap(kind), kind, beta, **options)
    torch.testing.assert_close(loss, torch.tensor(wanted, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        # d/dh of -log s(beta h) is -beta s(-beta h)
        ("sigmoid", [-0.5 / (1 + math.exp(-0.05)), -0.5 / (1 + math.exp(0.3))]),
        ("ipo", [2 * (-0.1 - 1.0), 2 * (0.6 - 1.0)]),
        ("hinge", [-0.5, -0.5]),
    ],
)
def test_the_gradients_by_hand(kind: PairLoss, wanted: list[float]) -> None:
    """Each token of a chosen row gets d loss / dh, each of a rejected row its negative, padding nothing."""
    logp = LOGP.clone().requires_grad_()
    pair_loss(gap(kind, logp), kind, 0.5).sum().backward()
    sign = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    each = torch.tensor(wanted, dtype=torch.float64).repeat_interleave(2) * sign  # [4]
    torch.testing.assert_close(logp.grad, each[:, None] * MASK, **EXACT)


@pytest.mark.parametrize("kind", ["sigmoid", "robust", "hinge", "ipo", "ipo_mean", "simpo"])
def test_every_loss_raises_the_chosen_and_lowers_the_rejected(kind: PairLoss) -> None:
    logp = LOGP.clone().requires_grad_()
    smoothing = 0.1 if kind == "robust" else 0.0
    pair_loss(gap(kind, logp), kind, 0.1, smoothing).sum().backward()
    assert logp.grad is not None
    assert (logp.grad[0::2][MASK[0::2]] < 0).all() and (logp.grad[1::2][MASK[1::2]] > 0).all()


def test_robust_is_right_on_average_over_wrong_labels() -> None:
    """arXiv 2403.00409: the expectation over labels flipped with probability e is the loss of the true label."""
    h = torch.tensor([-3.0, 0.0, 0.7], dtype=torch.float64)
    mean = 0.8 * pair_loss(h, "robust", 0.3, 0.2) + 0.2 * pair_loss(-h, "robust", 0.3, 0.2)
    torch.testing.assert_close(mean, pair_loss(h, "sigmoid", 0.3), **EXACT)
    torch.testing.assert_close(pair_loss(h, "robust", 0.3, 0.0), pair_loss(h, "sigmoid", 0.3), **EXACT)


def test_the_start_and_far_ends() -> None:
    """Where the policy is the reference h is 0 and the loss is log 2; far off nothing overflows."""
    assert pair_loss(torch.zeros(1), "sigmoid", 0.1).item() == pytest.approx(math.log(2), abs=1e-7)
    far = pair_loss(torch.tensor([-1e4, 1e4]), "sigmoid", 1.0)
    assert far.tolist() == [1e4, 0.0]


def test_bradley_terry_by_hand() -> None:
    """arXiv 2203.02155, equation 1: -log s(r_w - r_l), for r = (1, -0.5) and (0, 2); centring adds c (r_w + r_l)^2."""
    rewards = torch.tensor([1.0, -0.5, 0.0, 2.0], dtype=torch.float64)
    wanted = torch.tensor([softplus(-1.5), softplus(2.0)], dtype=torch.float64)
    torch.testing.assert_close(bradley_terry(rewards), wanted, **EXACT)
    centred = wanted + 0.1 * torch.tensor([0.25, 4.0], dtype=torch.float64)
    torch.testing.assert_close(bradley_terry(rewards, 0.1), centred, **EXACT)


# ---- mining


def test_the_best_against_the_worst_of_each_group() -> None:
    reward = torch.tensor([0.2, 1.0, 0.5, 0.5, 0.0, 0.5, 1.1])
    group = torch.tensor([0, 1, 0, 2, 1, 2, 0])
    assert best_and_worst(reward, group, 0.0).tolist() == [6, 0, 1, 4]  # group 2 is a tie


def test_among_equals_the_first_is_taken() -> None:
    reward = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])
    for _ in range(3):
        assert best_and_worst(reward, torch.zeros(5, dtype=torch.long), 0.0).tolist() == [1, 0]


def test_a_gap_must_be_greater_than_the_margin() -> None:
    reward, group = torch.tensor([1.0, 0.5, 1.0, 0.25]), torch.tensor([0, 0, 1, 1])
    assert best_and_worst(reward, group, 0.5).tolist() == [2, 3]
    assert best_and_worst(reward, group, 0.75).tolist() == []
    assert best_and_worst(torch.tensor([3.0]), torch.tensor([0]), 0.0).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2)), min_size=1, max_size=12))
def test_mined_pairs_are_of_one_group_and_ordered(rows: list[tuple[int, int]]) -> None:
    group, reward = (torch.tensor([row[i] for row in rows]) for i in (0, 1))
    index = best_and_worst(reward.float(), group, 0.0)
    best, worst = index[0::2], index[1::2]
    assert torch.equal(group[best], group[worst])
    for b, w in zip(best.tolist(), worst.tolist(), strict=True):
        mine = reward[group == group[b]]
        assert reward[b] == mine.max() > mine.min() == reward[w]
    with_contrast = {g for g in group.tolist() if len(set(reward[group == g].tolist())) > 1}
    assert group[best].tolist() == sorted(with_contrast)
