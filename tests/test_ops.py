"""Tensor operations against sums that can be done exactly, by hand or over a whole vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_exp import ops
from grpo_exp.losses import kl_penalty

REFERENCE = Path(__file__).parents[2] / "shared" / "reference" / "loss_values.json"

# A policy p and a reference q over five symbols. Expectations under p, gradients with respect to p's logits.
P = [0.5, 0.2, 0.15, 0.1, 0.05]
Q = [0.3, 0.3, 0.2, 0.1, 0.1]
EXPECTED = {"k1": 0.09651012036559815, "k2": 0.09989429832201135, "k3": 0.09651012036559797}
REVERSED_SIGN = 0.10765654630106868  # E[exp(d) - 1 - d], the form that is not used
GRADIENT_PQ = [0.20715775170019635, -0.1003950456947525, -0.057628828922606866, -0.009651012036559829, -0.03948286504627719]
GRADIENT_QP = [0.2, -0.1, -0.05, 0.0, -0.05]
GRADIENTS = {"k1": [0.0] * 5, "k2": GRADIENT_PQ, "k3": GRADIENT_QP}


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_expected_kl_over_the_whole_vocabulary(estimator: Any) -> None:
    value = (double(P) * ops.kl_estimate(double(P).log(), double(Q).log(), estimator)).sum().item()
    assert value == pytest.approx(EXPECTED[estimator], abs=1e-12)
    if estimator != "k2":  # unbiased
        assert value == pytest.approx(sum(p * (torch.log(double(p / q))) for p, q in zip(P, Q, strict=True)).item(), abs=1e-12)
    assert value != pytest.approx(REVERSED_SIGN, abs=1e-3)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("gradient", ["estimator", "unbiased"])
def test_expected_gradient_of_the_kl_term(estimator: Any, gradient: Any) -> None:
    """Averaged over samples of p, which do not depend on the logits: what the loss term does to the policy."""
    logits = double(P).log().requires_grad_()
    terms = kl_penalty(torch.log_softmax(logits, -1), double(Q).log(), estimator, gradient)
    (double(P) * terms).sum().backward()
    expected = GRADIENTS[estimator] if gradient == "estimator" else GRADIENT_PQ
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, double(expected), rtol=0, atol=1e-12)


def test_constants_above_are_those_of_the_reference_file() -> None:
    if not REFERENCE.is_file():
        pytest.skip(f"{REFERENCE.name} is not beside the repository")
    known = json.loads(REFERENCE.read_text(encoding="utf-8"))["exact_vocabulary"]
    assert (known["p"], known["q"]) == (P, Q)
    assert {k: known[f"E[{k}]"] for k in EXPECTED} == EXPECTED
    assert known["grad KL(p||q)"] == GRADIENT_PQ
    for name in ("k1", "k2"):
        assert known[f"grad of {name} as a loss"] == pytest.approx(GRADIENTS[name], abs=1e-12)
    assert known["grad of k3 as a loss, which is grad KL(q||p)"] == GRADIENT_QP
    assert known["E[exp(log p/q) - 1 - log p/q], the reversed sign"] == REVERSED_SIGN


def test_equal_policies_have_kl_exactly_zero_and_k3_is_never_negative() -> None:
    logp = -torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 30
    for estimator in ("k1", "k2", "k3"):
        assert not ops.kl_estimate(logp, logp.clone(), estimator).any()  # type: ignore[arg-type]
    # Close policies: the naive exp(-d) - 1 + d is all cancellation here, and negative for some.
    close = logp + 1e-4 * torch.randn(1000, generator=torch.Generator().manual_seed(1))
    k3 = ops.kl_estimate(close, logp, "k3")
    assert (k3 >= 0).all()
    d = (close - logp).double()
    torch.testing.assert_close(k3.double(), torch.expm1(-d) + d, rtol=0, atol=3e-11)


def test_half_precision_is_never_used_for_differences() -> None:
    """bfloat16 holds -10.0 and -9.9375 next to each other; the estimators work on float32 copies."""
    logp, ref = torch.tensor([-10.0], dtype=torch.bfloat16), torch.tensor([-9.9375], dtype=torch.bfloat16)
    for estimator in ("k1", "k2", "k3"):
        assert ops.kl_estimate(logp, ref, estimator).dtype == torch.float32  # type: ignore[arg-type]
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16)
    tokens = torch.tensor([1, 2, 3])
    exact = torch.log_softmax(logits.double(), -1)
    torch.testing.assert_close(ops.token_logp(logits, tokens).double(), exact[torch.arange(3), tokens], rtol=0, atol=1e-6)
    torch.testing.assert_close(ops.entropy(logits).double(), -(exact.exp() * exact).sum(-1), rtol=0, atol=1e-5)


# ---- masked sums


def test_masked_operations_ignore_nan_outside_the_mask_in_value_and_gradient() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    x = double([[1.0, 2.0, float("nan")], [6.0, float("inf"), float("nan")]]).requires_grad_()
    assert ops.masked_sum(x, mask).item() == 9
    assert ops.masked_mean(x, mask).item() == 3
    whitened = ops.whiten(x, mask)
    # mean 3, variance (4 + 1 + 9) / 2 = 7
    torch.testing.assert_close(whitened, double([[-2, -1, 0], [3, 0, 0]]) / 7**0.5, rtol=0, atol=1e-8)
    (whitened.square().sum() + ops.masked_mean(x, mask)).backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert not x.grad[~mask].any()


def test_masked_operations_on_an_empty_mask_and_on_one_value() -> None:
    x = double([[float("nan"), 5.0]])
    nothing, one = torch.zeros(1, 2, dtype=torch.bool), torch.tensor([[False, True]])
    assert ops.masked_mean(x, nothing).item() == 0
    assert ops.whiten(x, nothing).tolist() == [[0, 0]]
    assert ops.masked_mean(x, one).item() == 5
    assert ops.whiten(x, one).tolist() == [[0, 0]]


def test_whiten_gives_the_advantages_of_the_reference() -> None:
    """GAE advantages (returns - values) whitened over the mask, as TRL and verl do, in float64."""
    lengths = torch.tensor([4, 3, 2, 4])
    mask = torch.arange(4) < lengths[:, None]
    values = double([[0.1, 0.2, 0.3, 0.4], [0, 0.1, 0.2, 0], [0.5, 0.4, 0, 0], [0.2, 0.1, 0, -0.1]])
    returns = double(
        [[0.899675, 0.9365, 0.97, 1.0], [0.0145, 0.01, 0.0, 9.0], [0.495, 0.5, -7.0, 5.0], [0.0004875, -0.00475, -0.005, 0.0]]
    )  # with rubbish in the padding
    expected = double(
        [
            [1.6499004043302825, 1.4800845883110576, 1.3013310977645052, 1.113169528768134],
            [-0.4606675947657988, -0.7415659370532386, -1.0372484026189648, 0],
            [-0.5130840318433594, -0.23084167834880273, 0, 0],
            [-1.0359379916920257, -0.7812142676631882, -0.5130840318433594, -0.23084167834880265],
        ]
    )
    torch.testing.assert_close(ops.whiten(returns - values, mask), expected, rtol=0, atol=1e-6)


# ---- log-probs, entropy, repetition


def test_token_logp_on_a_support_is_renormalised() -> None:
    logits = double([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]])
    tokens = torch.tensor([2, 1])
    kept = torch.tensor([[True, False, True, False], [True, True, True, False]])
    e = torch.e
    expected = double([torch.log(double(e**3 / (e + e**3))).item(), torch.log(double(1 / 3)).item()])
    torch.testing.assert_close(ops.token_logp(logits, tokens, kept), expected)
    torch.testing.assert_close(ops.token_logp(logits, tokens), torch.log_softmax(logits, -1)[torch.arange(2), tokens])


def test_token_logp_on_a_support_has_a_gradient_within_it_alone() -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    kept = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.5
    kept[:, 0] = True
    ops.token_logp(logits, torch.zeros(5, dtype=torch.long), kept).sum().backward()
    assert logits.grad is not None
    assert not logits.grad[~kept].any()
    torch.testing.assert_close(logits.grad.sum(-1), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)


def test_token_logp_does_not_overflow() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]])
    assert ops.token_logp(logits, torch.tensor([0])).item() == 0
    assert ops.token_logp(logits, torch.tensor([1])).item() == -2e4


def test_entropy() -> None:
    assert ops.entropy(torch.zeros(1, 8)).item() == pytest.approx(torch.log(torch.tensor(8.0)).item(), abs=1e-6)
    assert ops.entropy(double(P).log()[None]).item() == pytest.approx(
        -sum(p * torch.log(double(p)).item() for p in P), abs=1e-12
    )
    assert ops.entropy(torch.tensor([[1000.0, 0.0]])).item() == 0


@pytest.mark.parametrize(
    ("tokens", "n", "expected"),
    [([1, 2, 3], 4, 0.0), ([1, 2, 3, 4, 5], 4, 0.0), ([7] * 13, 4, 0.9), ([1, 2, 1, 2, 1], 2, 0.5), ([], 4, 0.0)],
)
def test_repetition(tokens: list[int], n: int, expected: float) -> None:
    assert ops.repeat_ngram_fraction(tokens, n) == pytest.approx(expected)
