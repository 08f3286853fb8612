"""The numbers of a step by hand, with groups of different sizes in mixed order."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_exp.batch import Example, LossSum, Prompts, Rewards, Rollout
from grpo_exp.metrics import Meter, drift_metrics, mismatch_metrics, reward_metrics, text_metrics

GROUP = torch.tensor([0, 1, 0, 1, 2, 1])
TOTAL = torch.tensor([1.0, 0.5, 3.0, 0.5, 2.0, 0.5])
OUTCOME = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 0.5])  # a half is not right
NAN = float("nan")


def rewards(**parts: torch.Tensor) -> Rewards:
    return Rewards(total=TOTAL, parts=parts, outcome=OUTCOME)


def rollout() -> Rollout:
    lengths = torch.tensor([1, 2, 3, 4, 5, 9])
    mask = torch.arange(9) < lengths[:, None]
    tokens = torch.arange(9).repeat(6, 1)
    tokens[5] = 7  # a loop: of six n-grams of four tokens, five occurred before
    asked = torch.zeros(3, 1, dtype=torch.long)
    prompts = Prompts(asked, asked == 0, ["p"] * 3, [Example(str(i), "p") for i in range(3)])
    finished = torch.tensor([True, True, False, True, True, False])
    return Rollout(prompts, GROUP, tokens, mask, torch.zeros(6, 9), finished, ["a", "b", "a", "b", "b", "c"])


def test_reward_metrics() -> None:
    parts = {"math": torch.tensor([1.0, 0, 1, 0, NAN, 0.5]), "format": torch.tensor([1.0, 1, 0, 0.5, 1, 1])}
    found = reward_metrics(rewards(**parts), GROUP)
    assert found == pytest.approx(
        {
            "reward/mean": 1.25,
            "reward/std": math.sqrt(14.75 / 6 - 1.25**2),  # over all six rows
            "reward/group_std": 1 / 3,  # of the groups' own: 1, 0, 0
            "reward/zero_std_frac": 2 / 3,
            "reward/all_right_frac": 1 / 3,
            "reward/all_wrong_frac": 2 / 3,
            "reward/part/math": 2.5 / 5,  # where it applies
            "reward/part/format": 4.5 / 6,
            "format/rate": 4 / 6,
        },
        rel=1e-6,
    )


def test_a_group_that_is_half_right_is_neither() -> None:
    found = reward_metrics(Rewards(TOTAL[:2], {}, torch.tensor([1.0, 0.0])), torch.tensor([0, 0]))
    assert found["reward/all_right_frac"] == found["reward/all_wrong_frac"] == 0
    assert "format/rate" not in found


def test_text_metrics() -> None:
    found = text_metrics(rollout(), rewards())
    assert found == pytest.approx(
        {
            "length/mean": 4,
            "length/p50": 3.5,
            "length/p95": 8,
            "length/right": 2,  # rows 0 and 2
            "length/wrong": 5,
            "length/truncated_frac": 2 / 6,
            "text/unique_frac": 4 / 6,  # group 0 says one thing, group 1 two, group 2 one
            "text/repetition": (5 / 6) / 6,
            "wasted/token_frac": 20 / 24,  # all but group 0
        }
    )
    wrong = text_metrics(rollout(), Rewards(TOTAL, {}, torch.zeros(6)))
    assert "length/right" not in wrong and wrong["length/wrong"] == 4


def test_drift_metrics_take_the_mask_alone() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    logp = torch.tensor([[-1.0, -2.0, NAN], [-3.0, NAN, 5.0]])
    ref = torch.tensor([[-1.5, -1.0, 0.0], [-3.0, 0.0, NAN]])
    d = [0.5, -1.0, 0.0]
    k3 = [math.exp(-x) - 1 + x for x in d]
    expected = {"kl/k1": sum(d) / 3, "kl/k2": sum(x * x / 2 for x in d) / 3, "kl/k3": sum(k3) / 3}
    expected |= {"kl/mean": sum(k3) / 3, "kl/median": sorted(k3)[1], "kl/p95": max(k3)}
    assert drift_metrics(logp, ref, mask) == pytest.approx(expected, rel=1e-6)
    assert mismatch_metrics(logp, ref, mask) == pytest.approx({"mismatch/abs_mean": 0.5, "mismatch/abs_max": 1.0})


def test_the_meter_divides_once_and_keeps_the_largest() -> None:
    meter = Meter()
    zero = torch.zeros(())
    for total, count, largest in ((1.0, 1, 3.0), (9.0, 4, -1.0), (0.0, 0, 2.0)):
        meter.add(LossSum(zero, {"x": (torch.tensor(total), torch.tensor(count))}, {"y": torch.tensor(largest)}))
    meter.add(LossSum(zero, {"z": (zero, zero)}))
    assert meter.result() == {"x": 2.0, "z": 0.0, "y": 3.0}
