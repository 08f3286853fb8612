"""The GRPO family against values of published implementations, and each switch against numbers worked by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from test_losses import CLOSE, LENGTHS, LOGP, REF_LOGP, REFERENCE, batch, double, evaluate, grpo, kl, mask

from grpo_exp import advantages, losses, ops
from grpo_exp.algos.grpo import GRPO
from grpo_exp.batch import Outputs
from grpo_exp.errors import ConfigError
from grpo_exp.kl import Reference

# On the input of test_losses.py: options -> loss, gradient with respect to rows 0 and 3 of the log-probs (None: not known).
POLICY_LOSS: dict[str, tuple[dict[str, Any], float, list[float] | None, list[float] | None]] = {
    "sequence_sum_mean": ({"aggregation": "constant_length", "max_length": 1}, 1.8858426633802914, None, None),
    "gspo, per_sequence_mean": (
        {"ratio": "sequence"},
        0.39942546907082793,
        [-0.057983967895534554] * 4,
        [0.11310467725449495] * 4,
    ),
    "sapo tau_pos 1.0 tau_neg 1.05, per_sequence_mean": (
        {"surrogate": "sapo"},
        0.7495811670009052,
        [-0.0754097600235473, -0.0625, -0.03647799319982083, -0.0625],
        None,
    ),
    "cispo, upper clamp at 1.28 only, token_mean": (
        {"surrogate": "cispo", "aggregation": "token_mean"},
        -0.34624361422537514,
        None,
        [0.15384615384615385, 0.19692307692307695, 0.13920575662091686, 0.06912753294111103],
    ),
    "cispo, clamp 0.8..1.28, token_mean": (
        {"surrogate": "cispo_two_sided", "aggregation": "token_mean"},
        -0.45972444956096964,
        None,
        None,
    ),
    "token_mean + 0.05 * ratio * k3 (bias-corrected)": (
        {"aggregation": "token_mean", "beta": 0.05, "kl": kl("loss", "k3", "estimator", ratio_correction=True)},
        0.581290566499087,
        None,
        None,
    ),
}
ELSEWHERE = {"per_sequence_mean (grpo)", "token_mean (dapo, bnpo)", "constant_length (dr_grpo)"} | {
    "per_sequence_mean + 0.05 * k3",
    "token_mean + 0.05 * k3",
}
"""Those that test_losses.py has."""

REWARDS = [1.0, 0.0, 0.5, 0.0]
ADVANTAGES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "group mean and sample std, eps 1e-6": (
        {},
        [0.7071057811879616, -0.7071057811879616, 0.7071047811922043, -0.7071047811922043],
    ),
    "group mean, no std": ({"std": "none"}, [0.5, -0.5, 0.25, -0.25]),
    "leave-one-out (rloo)": ({"std": "none", "baseline": "leave_one_out"}, [1.0, -1.0, 0.5, -0.5]),
    "length-weighted baseline (opo)": (
        {"std": "none", "baseline": "length_weighted"},
        [0.4285714285714286, -0.5714285714285714, 0.33333333333333337, -0.16666666666666666],
    ),
    "group mean, whitened over tokens (reinforce++ baseline)": (
        {"std": "none", "whiten": True},
        [1.1881770184804732, -1.1881770184804732, 0.5940885092402366, -0.5940885092402366],
    ),
    "whitened over tokens, gamma 1 (reinforce++)": (
        {"std": "none", "baseline": "none", "whiten": True},
        [1.327964668970391, -0.8299779170690218, 0.2489933759506846, -0.8299779170690218],
    ),
}


@pytest.mark.parametrize("name", POLICY_LOSS)
def test_losses_and_gradients(name: str) -> None:
    options, value, row0, row3 = POLICY_LOSS[name]
    total, gradient, _ = evaluate(grpo(**options), batch())
    assert total == pytest.approx(value, abs=1e-6)
    for got, expected in ((gradient[0], row0), (gradient[3], row3)):
        if expected is not None:
            torch.testing.assert_close(got, double(expected), **CLOSE)
    assert not gradient[~mask()].any()


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages(name: str) -> None:
    options, expected = ADVANTAGES[name]
    credited = grpo(**options).credit(batch(advantages=None, reward=double(REWARDS)))
    assert credited.advantages is not None
    torch.testing.assert_close(credited.advantages[mask()], double(expected)[:, None].expand(4, 4)[mask()], **CLOSE)


def test_constants_above_are_those_of_the_reference_file() -> None:
    """And no value of it is left out."""
    if not REFERENCE.is_file():
        pytest.skip(f"{REFERENCE.name} is not beside the repository")
    known = json.loads(REFERENCE.read_text(encoding="utf-8"))
    assert set(known["policy_loss"]) == set(POLICY_LOSS) | ELSEWHERE
    for name, (_, value, row0, row3) in POLICY_LOSS.items():
        row = known["policy_loss"][name]
        assert value == row.get("trl", row.get("verl"))
        for ours, theirs in ((row0, row.get("grad_row0")), (row3, row.get("grad_row3"))):
            assert ours is theirs is None or ours == pytest.approx(theirs, abs=1e-12)
    theirs = dict(known["advantages"])
    assert (theirs.pop("rewards"), theirs.pop("group"), theirs.pop("lengths")) == (REWARDS, [0, 0, 1, 1], LENGTHS)
    assert theirs == {name: expected for name, (_, expected) in ADVANTAGES.items()}


# ---- one switch at a time, by hand


def test_dual_clip_bounds_the_loss_of_negative_advantages() -> None:
    """arXiv 1912.09729: max(min(r A, clip(r) A), c A) where A < 0. With c = 3 and A = -2: r = 4 gives -6 and no gradient,
    r = 2 gives -4 as before; A = 1 is as without it."""
    logr = double([[4.0, 2.0, 4.0]]).log().requires_grad_()
    a = double([[-2.0, -2.0, 1.0]])
    got = losses.clipped_surrogate(logr.exp(), a, 0.2, 0.28, 3.0)
    torch.testing.assert_close(got.loss.detach(), double([[6.0, 4.0, -1.28]]))
    assert got.high.tolist() == [[True, False, True]]
    got.loss.sum().backward()
    assert logr.grad is not None
    torch.testing.assert_close(logr.grad, double([[0.0, 4.0, 0.0]]))
    assert losses.clipped_surrogate(logr.detach().exp(), a, 0.2, 0.28).loss[0, 0] == 8
    assert evaluate(grpo(dual_clip=1.5), batch())[0] < evaluate(grpo(), batch())[0]  # row 1's ratio exp(0.5) is above 1.5


def test_sapo_is_the_plain_gradient_at_ratio_one() -> None:
    logr = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    got = losses.sapo(logr.exp(), double([[3.0, -2.0]]), 1.0, 1.05)
    torch.testing.assert_close(got.loss.detach(), double([[-2 * 3.0, 2 / 1.05 * 2.0]]))
    got.loss.sum().backward()
    torch.testing.assert_close(logr.grad, double([[-3.0, 2.0]]))


def test_cispo_drops_no_token_and_counts_those_it_holds() -> None:
    far = batch(old_logp=double([[-9.0] * 4] * 4))  # every ratio is above the bound
    _, gradient, loss = evaluate(grpo(surrogate="cispo", aggregation="token_mean"), far)
    torch.testing.assert_close(gradient[mask()], (-1.28 * double([1, -1, 0.5, -2])[:, None].expand(4, 4) / 13)[mask()])
    assert loss.sums["clip/high"][0] == 13
    low = batch(old_logp=double([[2.0] * 4] * 4))
    assert evaluate(grpo(surrogate="cispo"), low)[2].sums["clip/low"][0] == 0
    assert evaluate(grpo(surrogate="cispo_two_sided"), low)[2].sums["clip/low"][0] == 13


def test_each_token_pays_for_the_kl_still_to_come() -> None:
    """REINFORCE++ (arXiv 2501.03262): A_t = R - beta sum_{s >= t} k1_s. Row 0 has k1 = old - ref = -0.1, 0.1, 0.2, 0.2, so from
    each token on 0.4, 0.5, 0.4, 0.2; with beta 0.5 and R = 1 that leaves 0.8, 0.75, 0.8, 0.9. Row 2: 0.1, 0.2 of R = 0.5."""
    algorithm = grpo(std="none", baseline="none", beta=0.5, kl=kl("reward", "k1", "estimator", credit="token"))
    got = algorithm.credit(batch(advantages=None, reward=double(REWARDS))).advantages
    assert got is not None
    torch.testing.assert_close(got[0], double([0.8, 0.75, 0.8, 0.9]))
    torch.testing.assert_close(got[2, :2], double([0.35, 0.4]))
    assert "loss/kl" not in evaluate(algorithm, batch())[2].sums


def test_ratio_correction_gives_k3_the_gradient_of_the_kl_itself() -> None:
    """Five symbols, sampled from p_old, weighed by p / p_old: E_old[r k3] is KL(p || q), and so is its gradient."""
    p, old, q = (double(x) for x in ([0.5, 0.2, 0.15, 0.1, 0.05], [0.2] * 5, [0.3, 0.3, 0.2, 0.1, 0.1]))
    kl_pq = [0.20715775170019635, -0.1003950456947525, -0.057628828922606866, -0.009651012036559829, -0.03948286504627719]
    for gradient in ("estimator", "unbiased"):
        logits = p.log().requires_grad_()
        logp = torch.log_softmax(logits, -1)
        term = losses.kl_penalty(logp, q.log(), "k3", gradient, torch.exp(logp - old.log()))  # type: ignore[arg-type]
        value = (old * term).sum()
        value.backward()
        assert value.item() == pytest.approx(0.09651012036559815, abs=1e-12)
        assert logits.grad is not None
        torch.testing.assert_close(logits.grad, double(kl_pq), rtol=0, atol=1e-12)


def test_a_kl_of_the_row_keeps_the_ratio_of_the_token() -> None:
    """With one ratio a row, the KL term is still multiplied by its own token's."""
    options = {"aggregation": "token_mean", "beta": 0.05, "kl": kl("loss", "k3", "estimator", ratio_correction=True)}
    sums = [evaluate(grpo(ratio=ratio, **options), batch())[2].sums["loss/kl"][0] for ratio in ("token", "sequence")]
    assert sums[0] == sums[1]


def test_entropy_bonus() -> None:
    """-0.1 times the entropy, aggregated as the policy's term: its gradient is -0.1 / 13 for each token of a token mean."""
    algorithm = grpo(entropy_coef=0.1, aggregation="token_mean")
    assert algorithm.entropy_gradient and not grpo().entropy_gradient
    entropy = torch.full((4, 4), 2.0, dtype=torch.float64, requires_grad=True)
    loss = algorithm.loss(Outputs(double(REF_LOGP), entropy), batch())
    plain = grpo(aggregation="token_mean").loss(Outputs(double(REF_LOGP), entropy.detach()), batch())
    assert ((loss.total - plain.total) / 13).item() == pytest.approx(-0.2)
    (loss.total / 13).backward()
    assert entropy.grad is not None
    torch.testing.assert_close(entropy.grad, -0.1 / 13 * mask().double())


def test_only_tokens_of_high_entropy_have_an_advantage() -> None:
    """Of 13 tokens 0.2 are 2.6, so 3, taken over the whole batch; ties are kept; padding is no token."""
    entropy = torch.zeros(4, 4)
    entropy[0, 1], entropy[3, 0], entropy[3, 2] = 3.0, 2.0, 1.0
    entropy[~mask()] = 9.0
    rows = batch(advantages=None, reward=double(REWARDS), entropy=entropy)
    algorithm = grpo(top_entropy=0.2, aggregation="token_mean")
    assert algorithm.needs_entropy and not grpo().needs_entropy
    credited = algorithm.credit(rows)
    assert credited.advantages is not None
    assert credited.advantages.nonzero().tolist() == [[0, 1], [3, 0], [3, 2]]
    assert algorithm.count(credited) == 13  # the others stay in the mean, as in arXiv 2506.01939
    cut = grpo(top_entropy=0.2, mask_truncated=True).credit(rows.with_(finished=torch.tensor([True, True, True, False])))
    assert cut.advantages is not None and cut.advantages.nonzero()[:, 0].unique().tolist() == [0, 1, 2]  # of 9 tokens now
    entropy[2, 0] = 1.0
    assert advantages.top_share(entropy, mask(), 0.2).sum() == 4
    assert torch.equal(advantages.top_share(entropy, mask(), 1.0), mask())
    assert not advantages.top_share(entropy, torch.zeros_like(mask()), 0.2).any()


def test_sequence_ratio_is_the_geometric_mean_over_the_whole_row() -> None:
    """Also where only some tokens are in the loss; outside of it the ratio is 1, whatever stands there."""
    logp, old = double([[0.3, 0.1, -0.1, 50.0]]), double([[0.0, 0.0, 0.0, -5000.0]])
    there, some = torch.tensor([[True, True, True, False]]), torch.tensor([[True, False, True, False]])
    got = losses.policy_ratio(logp, old, there, some, "sequence")
    torch.testing.assert_close(got, double([[math.exp(0.1), 1.0, math.exp(0.1), 1.0]]))
    assert losses.policy_ratio(logp, old, torch.zeros_like(there), some, "sequence")[0, 0] == 1


def test_the_weight_of_cispo_is_a_constant() -> None:
    """Its gradient is the weight times that of log pi, nothing more."""
    ratio = double([[0.5, 1.1]]).requires_grad_()
    assert not losses.cispo(double([[-1.0, -2.0]]), ratio, double([[1.0, 1.0]]), None, 0.2).loss.requires_grad


# ---- options that do not go together


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"G": 1}, r"G=1.*algo=reinforce_pp"),
        ({"G": 1, "baseline": "leave_one_out", "std": "none"}, r"G=1.*G=2"),
        ({"baseline": "none"}, r"algo\.baseline=none with algo\.std=group.*algo\.whiten"),
        ({"dual_clip": 3.0, "surrogate": "sapo"}, r"algo\.dual_clip=3 belongs to algo\.surrogate=clip"),
        ({"kl": kl("loss", "k3", "estimator", target=0.1)}, r"algo\.kl\.target=0\.1.*beta=0"),
        ({"beta": 0.1, "kl": kl("none", "k3", "estimator", target=0.1)}, r"place=none"),
        ({"reference": Reference("ema", 1, 0.6)}, r"algo\.reference\.update=ema: with beta=0.*report_every=0.*no reference"),
    ],
)
def test_options_that_do_not_go_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        grpo(**changes)


def test_a_group_of_one_will_do_without_a_baseline() -> None:
    assert grpo(G=1, baseline="none", std="none", whiten=True).G == 1


# ---- the formula

KL_ON = {"beta": 0.05, "kl": kl("loss", "k3", "estimator")}
IN_REWARD = {"beta": 0.05, "kl": kl("reward", "k1", "estimator")}
SILENT = {"name", "kind", "G", "kl.report_every"}
"""What does not change the loss."""
OTHER: dict[str, tuple[dict[str, Any], Any]] = {  # option -> options it acts with, another value
    "beta": (KL_ON, 0.1),
    "max_length": ({"aggregation": "constant_length"}, 7),
    "ratio": ({}, "sequence"),
    "surrogate": ({}, "sapo"),
    "clip_low": ({}, 0.1),
    "clip_high": ({"surrogate": "cispo"}, 4.0),
    "dual_clip": ({}, 3.0),
    "tau_pos": ({"surrogate": "sapo"}, 2.0),
    "tau_neg": ({"surrogate": "sapo"}, 2.0),
    "aggregation": ({}, "token_mean"),
    "baseline": ({}, "leave_one_out"),
    "std": ({}, "batch"),
    "std_ddof": ({}, 0),
    "std_eps": ({}, 1e-4),
    "whiten": ({}, True),
    "kl.place": (KL_ON, "reward"),
    "kl.estimator": (IN_REWARD, "k3"),
    "kl.gradient": (KL_ON, "unbiased"),
    "kl.ratio_correction": (KL_ON, True),
    "kl.credit": (IN_REWARD, "token"),
    "kl.target": (KL_ON, 0.1),
    "kl.horizon": ({"beta": 0.05, "kl": kl("loss", "k3", "estimator", target=0.1)}, 20.0),
    "reference.update": (KL_ON, "ema"),
    "reference.every": (KL_ON | {"reference": Reference("sync", 1, 0.6)}, 5),
    "reference.alpha": (KL_ON | {"reference": Reference("ema", 1, 0.6)}, 0.5),
    "entropy_coef": ({}, 0.01),
    "top_entropy": ({}, 0.2),
    "mask_truncated": ({}, True),
    "updates_per_rollout": ({}, 3),
    "minibatch_count": ({}, 4),
}


def test_every_option_is_there() -> None:
    """A new option comes with its place in the formula, or is known not to change the loss."""
    flat = set()
    for field in dataclasses.fields(GRPO):
        nested = getattr(grpo(), field.name)
        inner = dataclasses.fields(nested) if dataclasses.is_dataclass(nested) else ()
        flat |= {f"{field.name}.{f.name}" for f in inner} or {field.name}
    assert flat == set(OTHER) | SILENT


@pytest.mark.parametrize("name", OTHER)
def test_the_formula_shows_every_option(name: str) -> None:
    context, value = OTHER[name]
    before = grpo(**context)
    outer, _, inner = name.partition(".")
    changed = dataclasses.replace(getattr(before, outer), **{inner: value}) if inner else value
    after = dataclasses.replace(before, **{outer: changed})
    assert getattr(after, outer) != getattr(before, outer)
    assert after.formula() != before.formula()


def test_estimators_agree_with_their_masked_mean() -> None:
    """The values of the reference file's kl_token_mean, through the masked mean that the metrics use."""
    known = {"k1": 0.01538461537278109, "k2": 0.026153846133727808, "k3": 0.02820101855227075}
    for name, value in known.items():
        got = ops.masked_mean(ops.kl_estimate(double(LOGP), double(REF_LOGP), name), mask())  # type: ignore[arg-type]
        assert got.item() == pytest.approx(value, abs=1e-6)
