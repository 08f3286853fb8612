"""Losses and KL terms against values of published implementations, which are not computed by the code under test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_exp import losses
from grpo_exp.algos.grpo import GRPO
from grpo_exp.batch import LossSum, Outputs, TokenBatch
from grpo_exp.errors import ConfigError
from grpo_exp.kl import KL, Reference
from grpo_exp.metrics import Meter

REFERENCE = Path(__file__).parents[2] / "shared" / "reference" / "loss_values.json"

# One small input, and what TRL 1.10.0.dev0 (2026-07) and verl (2026-08) make of it in float64; natural logarithms.
LOGP = [[-0.5, -1, -2, -0.3], [-1.2, -0.7, -0.1, 0], [-0.9, -2.5, 0, 0], [-0.4, -0.6, -1.1, -3]]
OLD_LOGP = [[-0.7, -1, -1.5, -0.3], [-1, -0.7, -0.6, 0], [-0.9, -2, 0, 0], [-0.4, -1.1, -1, -2.2]]
REF_LOGP = [[-0.6, -1.1, -1.7, -0.5], [-1.1, -0.9, -0.3, 0], [-1, -2.2, 0, 0], [-0.5, -0.8, -1.3, -2.5]]
LENGTHS = [4, 3, 2, 4]
ADVANTAGES = [1, -1, 0.5, -2]
POLICY_LOSS = {  # aggregation -> loss, gradient with respect to rows 0 and 3 of LOGP
    "sequence_mean": (
        0.49349516655776365,
        [-0.07633767238501062, -0.0625, -0.03790816623203959, -0.0625],
        [0.125, 0.20609015883751605, 0.11310467725449494, 0.0],
    ),
    "token_mean": (
        0.5802592810400896,
        [-0.09395405832001306, -0.07692307692307693, -0.046656204593279495, -0.07692307692307693],
        [0.15384615384615385, 0.25364942626155823, 0.13920575662091686, 0.0],
    ),
    "constant_length": (
        0.47146066584507285,
        [-0.07633767238501062, -0.0625, -0.03790816623203959, -0.0625],
        [0.125, 0.20609015883751605, 0.11310467725449494, 0.0],
    ),
}
WITH_K3 = {  # the same, with 0.05 * k3 added
    "sequence_mean": (
        0.4948561674176096,
        [-0.076040289316373, -0.06220261693136237, -0.039001475005714596, -0.061933533603368694],
        [0.12529738306863764, 0.20665662523414735, 0.11367114365112625, -0.002027253970937901],
    ),
    "token_mean": (0.581669331968788, None, None),
}
CLIP_FRACTION_LOW = 1 / 13
KL_TOKEN_MEAN = {"k1": 0.01538461537278109, "k2": 0.026153846133727808, "k3": 0.02820101855227075}
KL_GRADIENT_ROW0 = {
    ("k1", "estimator"): [1 / 13] * 4,
    ("k2", "estimator"): [0.00769230768639053, 0.00769230768639053, -0.023076923059171597, 0.015384615372781064],
    ("k3", "estimator"): [0.007320198606987571, 0.007320198606987571, -0.026912215946683152, 0.013943788214044642],
    ("k3", "unbiased"): [0.00769230768639053, 0.00769230768639053, -0.023076923059171597, 0.015384615372781064],
}
CLOSE = {"rtol": 0, "atol": 1e-6}


def double(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def mask() -> Tensor:
    return torch.arange(4) < torch.tensor(LENGTHS)[:, None]


def batch(**fields: Any) -> TokenBatch:
    """The reference input as the loop hands it over."""
    values: dict[str, Any] = {
        "prompt_tokens": torch.zeros(2, 1, dtype=torch.long),
        "prompt_mask": torch.ones(2, 1, dtype=torch.bool),
        "group": torch.tensor([0, 0, 1, 1]),
        "tokens": torch.zeros(4, 4, dtype=torch.long),
        "mask": mask(),
        "loss_mask": mask(),
        "old_logp": double(OLD_LOGP),
        "ref_logp": double(REF_LOGP),
        "advantages": double(ADVANTAGES)[:, None].expand(4, 4),
    }
    return TokenBatch(**(values | fields))


def kl(place: str, estimator: str, gradient: str, **changes: Any) -> KL:
    """A KL term of fixed weight on the rows of one rollout."""
    values: dict[str, Any] = {
        "ratio_correction": False,
        "credit": "sequence",
        "target": None,
        "horizon": 10.0,
        "report_every": 0,
    }
    return KL(place, estimator, gradient, **(values | changes))


def grpo(**changes: Any) -> GRPO:
    """GRPO with the reference's clip range and without a KL term."""
    values: dict[str, Any] = {
        "name": "grpo",
        "kind": "grpo",
        "beta": 0.0,
        "G": 2,
        "max_length": 4,
        "ratio": "token",
        "surrogate": "clip",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "dual_clip": None,
        "tau_pos": 1.0,
        "tau_neg": 1.05,
        "aggregation": "sequence_mean",
        "baseline": "group_mean",
        "std": "group",
        "std_ddof": 1,
        "std_eps": 1e-6,
        "whiten": False,
        "kl": kl("loss", "k3", "estimator"),
        "reference": Reference("fixed", 1, 0.6),
        "entropy_coef": 0.0,
        "top_entropy": 1.0,
        "mask_truncated": False,
        "updates_per_rollout": 2,
        "minibatch_count": 1,
    }
    return GRPO(**(values | changes))


def evaluate(algorithm: GRPO, of: TokenBatch) -> tuple[float, Tensor, LossSum]:
    """The loss and its gradient with respect to the log-probs, divided as the loop divides."""
    logp = double(LOGP).requires_grad_()
    loss = algorithm.loss(Outputs(logp, torch.zeros(4, 4)), of)
    total = loss.total / algorithm.count(of).clamp(min=1)
    total.backward()
    assert logp.grad is not None
    return total.item(), logp.grad, loss


@pytest.mark.parametrize("aggregation", POLICY_LOSS)
def test_policy_loss_and_gradient(aggregation: str) -> None:
    value, row0, row3 = POLICY_LOSS[aggregation]
    total, gradient, loss = evaluate(grpo(aggregation=aggregation), batch())
    assert total == pytest.approx(value, abs=1e-6)
    torch.testing.assert_close(gradient[0], double(row0), **CLOSE)
    torch.testing.assert_close(gradient[3], double(row3), **CLOSE)
    assert not gradient[~mask()].any()
    assert set(loss.sums) == {"loss/policy", "clip/low", "clip/high"}  # no KL term without beta


@pytest.mark.parametrize("aggregation", WITH_K3)
def test_kl_term_in_the_loss(aggregation: str) -> None:
    value, row0, row3 = WITH_K3[aggregation]
    total, gradient, loss = evaluate(grpo(aggregation=aggregation, beta=0.05), batch())
    assert total == pytest.approx(value, abs=1e-6)
    if row0 is not None and row3 is not None:
        torch.testing.assert_close(gradient[0], double(row0), **CLOSE)
        torch.testing.assert_close(gradient[3], double(row3), **CLOSE)
    policy, kl = (float(total / count) for total, count in (loss.sums["loss/policy"], loss.sums["loss/kl"]))
    assert policy == pytest.approx(POLICY_LOSS[aggregation][0], abs=1e-6)
    assert policy + 0.05 * kl == pytest.approx(value, abs=1e-6)
    if aggregation == "token_mean":
        assert kl == pytest.approx(KL_TOKEN_MEAN["k3"], abs=1e-6)


def test_clip_fractions_and_largest_ratio() -> None:
    meter = Meter()
    meter.add(evaluate(grpo(), batch())[2])
    metrics = meter.result()
    assert metrics["clip/low"] == pytest.approx(CLIP_FRACTION_LOW, abs=1e-6)
    # Row 1's third token has ratio exp(0.5), above 1.28, but a negative advantage: no gradient is taken away.
    assert metrics["clip/high"] == 0
    assert metrics["ratio/max"] == pytest.approx(torch.e**0.5, abs=1e-6)
    meter = Meter()
    meter.add(evaluate(grpo(), batch(advantages=-double(ADVANTAGES)[:, None].expand(4, 4)))[2])
    assert meter.result()["clip/high"] == pytest.approx(2 / 13, abs=1e-6)  # now this one and row 3's second token


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_values(estimator: Any) -> None:
    for gradient in ("estimator", "unbiased"):
        value = losses.kl_penalty(double(LOGP), double(REF_LOGP), estimator, gradient)
        assert value[mask()].mean().item() == pytest.approx(KL_TOKEN_MEAN[estimator], abs=1e-6)


@pytest.mark.parametrize(("estimator", "gradient"), KL_GRADIENT_ROW0)
def test_kl_gradients(estimator: Any, gradient: Any) -> None:
    logp = double(LOGP).requires_grad_()
    losses.kl_penalty(logp, double(REF_LOGP), estimator, gradient)[mask()].mean().backward()
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad[0], double(KL_GRADIENT_ROW0[estimator, gradient]), **CLOSE)


def test_the_gradient_switch_reaches_the_loss() -> None:
    """beta * k3 with the gradient of k2 changes the gradient and not the value."""
    zero = torch.zeros(4, 4, dtype=torch.float64)
    results = {
        how: evaluate(grpo(aggregation="token_mean", beta=0.5, kl=kl("loss", "k3", how)), batch(advantages=zero))
        for how in ("estimator", "unbiased")
    }
    assert results["estimator"][0] == pytest.approx(0.5 * KL_TOKEN_MEAN["k3"], abs=1e-6)
    assert results["unbiased"][0] == pytest.approx(0.5 * KL_TOKEN_MEAN["k3"], abs=1e-6)
    for how, (_, gradient, _) in results.items():
        torch.testing.assert_close(gradient[0], 0.5 * double(KL_GRADIENT_ROW0["k3", how]), **CLOSE)


def test_constants_above_are_those_of_the_reference_file() -> None:
    if not REFERENCE.is_file():
        pytest.skip(f"{REFERENCE.name} is not beside the repository")
    known = json.loads(REFERENCE.read_text(encoding="utf-8"))
    inputs = known["inputs"]
    assert [inputs[k] for k in ("logp", "old_logp", "ref_logp", "lengths", "advantages")] == [
        LOGP,
        OLD_LOGP,
        REF_LOGP,
        LENGTHS,
        ADVANTAGES,
    ]
    assert (inputs["eps_low"], inputs["eps_high"], inputs["max_length"]) == (0.2, 0.28, 4)
    names = {
        "sequence_mean": "per_sequence_mean (grpo)",
        "token_mean": "token_mean (dapo, bnpo)",
        "constant_length": "constant_length (dr_grpo)",
    }
    for ours, theirs in names.items():
        row = known["policy_loss"][theirs]
        assert POLICY_LOSS[ours] == (row["trl"], row["grad_row0"], row["grad_row3"])
        assert row["verl"] == pytest.approx(row["trl"], abs=1e-8)
    for ours, theirs in {"sequence_mean": "per_sequence_mean", "token_mean": "token_mean"}.items():
        row = known["policy_loss"][f"{theirs} + 0.05 * k3"]
        assert WITH_K3[ours] == (row["trl"], row.get("grad_row0"), row.get("grad_row3"))
    assert known["clip_fraction_low"] == pytest.approx(CLIP_FRACTION_LOW, abs=1e-8)
    assert {k: known["kl_token_mean"][k] for k in KL_TOKEN_MEAN} == KL_TOKEN_MEAN
    for (estimator, gradient), expected in KL_GRADIENT_ROW0.items():
        name = estimator if gradient == "estimator" else f"{estimator} value with the gradient of k2"
        assert known["kl_gradient_row0"][name] == pytest.approx(expected, abs=1e-8)


# ---- through the algorithm as the trainer uses it


def test_truncated_samples_can_be_left_out_of_the_loss() -> None:
    finished = torch.tensor([True, False, True, False])
    rows = batch(advantages=None, reward=double([1.0, 0.0, 0.5, 0.0]), finished=finished)
    assert torch.equal(grpo(mask_truncated=True).credit(rows).loss_mask, mask() & finished[:, None])
    assert torch.equal(grpo().credit(rows).loss_mask, mask())


def test_credit_matches_the_reference() -> None:
    """Group mean and sample standard deviation with eps 1e-6, and without a standard deviation (TRL and verl, as above)."""
    groups = [0.7071057811879616, -0.7071057811879616, 0.7071047811922043, -0.7071047811922043]
    for std, expected in (("group", groups), ("none", [0.5, -0.5, 0.25, -0.25])):
        credited = grpo(std=std).credit(batch(advantages=None, reward=double([1.0, 0.0, 0.5, 0.0])))
        assert credited.advantages is not None
        torch.testing.assert_close(credited.advantages, double(expected)[:, None].expand(4, 4), **CLOSE)


def test_kl_in_the_reward_is_taken_off_before_the_group_mean() -> None:
    """R - beta * sum of k1 over the row's tokens; the loss then has no KL term."""
    algorithm = grpo(std="none", beta=0.5, kl=kl("reward", "k1", "estimator"))
    dirty = double(OLD_LOGP).masked_fill(~mask(), 7.0)
    credited = algorithm.credit(batch(advantages=None, old_logp=dirty, reward=double([1.0, 0.0, 0.5, 0.0])))
    # old - ref, summed over the rows' tokens: -0.1+0.1+0.2+0.2, 0.1+0.2-0.3, 0.1+0.2, 0.1-0.3+0.3+0.3
    shaped = [1.0 - 0.5 * 0.4, 0.0, 0.5 - 0.5 * 0.3, -0.5 * 0.4]
    first, second = (shaped[0] - shaped[1]) / 2, (shaped[2] - shaped[3]) / 2
    assert credited.advantages is not None
    torch.testing.assert_close(credited.advantages[:, 0], double([first, -first, second, -second]), **CLOSE)
    assert "loss/kl" not in evaluate(algorithm, batch())[2].sums


def test_without_old_log_probs_the_ratio_is_one_and_the_gradient_is_reinforce() -> None:
    total, gradient, loss = evaluate(grpo(aggregation="token_mean"), batch(old_logp=None))
    expected = -double(ADVANTAGES)[:, None].expand(4, 4).masked_fill(~mask(), 0)
    assert total == pytest.approx(expected.sum().item() / 13, abs=1e-12)
    torch.testing.assert_close(gradient, expected / 13)
    assert loss.maxima["ratio/max"] == 1


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant_length"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_micro_batches_give_the_numbers_of_one(aggregation: str, size: int) -> None:
    """Loss, gradient and every metric, also where a micro-batch has no token in the loss."""
    algorithm = grpo(aggregation=aggregation, beta=0.05)
    whole = batch(loss_mask=mask() & torch.tensor([True, False, False, True])[:, None])
    total, gradient, loss = evaluate(algorithm, whole)
    expected, meter = Meter(), Meter()
    expected.add(loss)
    logp = double(LOGP).requires_grad_()
    split_total = torch.zeros((), dtype=torch.float64)
    for index, micro in whole.split(size):
        part = algorithm.loss(Outputs(logp[index, : micro.tokens.shape[1]], torch.zeros(micro.tokens.shape)), micro)
        split_total = split_total + part.total / algorithm.count(whole)
        meter.add(part)
    split_total.backward()
    assert split_total.item() == pytest.approx(total, abs=1e-12)
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad, gradient)
    assert meter.result() == pytest.approx(expected.result(), abs=1e-9)


def test_whatever_stands_in_the_padding_changes_nothing() -> None:
    outside = ~mask()
    dirty = {
        name: double(rows).masked_fill(outside, float("nan")) for name, rows in (("old_logp", OLD_LOGP), ("ref_logp", REF_LOGP))
    }
    algorithm = grpo(beta=0.05)
    clean_total, clean_gradient, _ = evaluate(algorithm, batch())
    total, gradient, loss = evaluate(algorithm, batch(**dirty))
    assert total == clean_total
    assert torch.equal(gradient, clean_gradient)
    assert all(torch.isfinite(value).all() for pair in loss.sums.values() for value in pair)


def test_rows_left_out_of_the_loss_have_no_gradient_and_no_nan() -> None:
    """All rows truncated: the loss is 0, not 0 / 0."""
    for aggregation in ("sequence_mean", "token_mean", "constant_length"):
        total, gradient, _ = evaluate(
            grpo(aggregation=aggregation, beta=0.05), batch(loss_mask=torch.zeros(4, 4, dtype=torch.bool))
        )
        assert total == 0
        assert not gradient.any()


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"G=1.*G=2"):
        grpo(G=1)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"beta": 0.05}, "+ 0.05 k3(pi, ref)"),
        ({"beta": 0.05, "kl": kl("loss", "k3", "unbiased")}, "gradient of k2"),
        ({"aggregation": "constant_length"}, "/ 4"),
        ({"clip_high": 0.4}, "clip(r, 0.8, 1.4)"),
        ({"std": "batch"}, "std_batch"),
        ({"mask_truncated": True}, "truncated"),
        ({"beta": 0.05, "kl": kl("reward", "k1", "estimator")}, "(R' - mean_group R')"),
        ({"beta": 0.05, "kl": kl("reward", "k1", "estimator")}, "R' = R - 0.05 sum over tokens of k1(pi, ref)"),
    ],
)
def test_the_formula_shows_what_is_computed(changes: dict[str, Any], shown: str) -> None:
    assert shown in grpo(**changes).formula()
    assert shown not in grpo().formula()
