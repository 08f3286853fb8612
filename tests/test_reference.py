"""A reference that moves, a weight that adapts, a KL that is only reported: the rules, the policy's weights, whole runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command import call
from test_losses import batch as rows_of_four
from test_losses import double, evaluate, grpo, kl
from test_policy import reference_logp, with_reference
from test_train import of, train
from toy_policy import batch, move

from grpo_exp import checkpoint
from grpo_exp.algos.grpo import GRPO
from grpo_exp.batch import LossSum, Outputs, TokenBatch
from grpo_exp.errors import ModelError
from grpo_exp.kl import Reference, Weight
from grpo_exp.policy import Policy

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
KINDS = ["copy", "lora", "start_adapter"]


def moving(kind: str, folder: Path) -> Policy:
    """A policy whose reference was kept to be moved, and that has moved away from it."""
    made = with_reference(kind, folder)
    made.freeze_reference(moves=True)
    move(made, 0.1)
    return made


def kept(model: Policy) -> dict[str, torch.Tensor]:
    """The reference's weights, as they are in a checkpoint."""
    return {name[10:]: x.clone() for name, x in model.state().items() if name.startswith("reference.")}


def learnt(model: Policy) -> dict[str, torch.Tensor]:
    return {name: x.clone() for name, x in model.state().items() if not name.startswith("reference.")}


# ---- rules


def test_when_a_reference_moves_and_how_far() -> None:
    assert [Reference("fixed", 1, 0.6).shift(step) for step in (1, 2, 3)] == [0, 0, 0]
    assert [Reference("sync", 3, 0.6).shift(step) for step in range(1, 7)] == [0, 0, 1, 0, 0, 1]
    assert [Reference("ema", 2, 0.6).shift(step) for step in range(1, 5)] == [0, 0.6, 0, 0.6]
    assert grpo(beta=0.1, reference=Reference("sync", 1, 0.6)).reference_shift(1) == 1
    measured = {"beta": 0.0, "kl": kl("loss", "k3", "estimator", report_every=10)}
    assert grpo(**measured, reference=Reference("sync", 1, 0.6)).reference_shift(1) == 1


def test_a_weight_goes_towards_its_target() -> None:
    """Ziegler et al. (arXiv 1909.08593, section 2.2) with K = 0.1 and target 0.1. KL 0.11: e = 0.1, so beta x 1.01. KL 5: e is
    cut to 0.2, so x 1.02. KL 0: e = -1 is cut to -0.2, so x 0.98."""
    weight = Weight(0.5, kl("loss", "k3", "estimator", target=0.1, horizon=10.0))
    expected = 0.5
    for measured, factor in ((0.11, 1.01), (5.0, 1.02), (0.0, 0.98), (0.1, 1.0)):
        weight.observe({"kl/mean": measured})
        expected *= factor
        assert weight.value == pytest.approx(expected, rel=1e-12)
    weight.observe({"reward/mean": 1.0})  # a step without a KL
    assert weight.value == pytest.approx(expected, rel=1e-12)
    other = Weight(0.5, kl("loss", "k3", "estimator", target=0.1, horizon=10.0))
    other.load(json.loads(json.dumps(weight.state())))
    assert other.value == weight.value
    fixed = Weight(0.5, kl("loss", "k3", "estimator"))
    fixed.observe({"kl/mean": 9.0})
    assert (fixed.value, fixed.state()) == (0.5, {})


def test_the_weight_that_acts_is_the_one_that_adapts() -> None:
    """In the loss and in the reward."""
    for place in ("loss", "reward"):
        algorithm = grpo(beta=0.5, std="none", kl=kl(place, "k3", "estimator", target=1e-6, horizon=1.0))
        algorithm.observe({"kl/mean": 1.0})
        plain = grpo(beta=0.5 * 1.2, std="none", kl=kl(place, "k3", "estimator"))
        credited = [
            a.credit(rows_of_four(advantages=None, reward=double([1.0, 0, 0.5, 0]))).advantages for a in (algorithm, plain)
        ]
        assert credited[0] is not None and credited[1] is not None
        torch.testing.assert_close(credited[0], credited[1])
        assert evaluate(algorithm, rows_of_four())[0] == pytest.approx(evaluate(plain, rows_of_four())[0], rel=1e-12)
    assert float(evaluate(algorithm, rows_of_four())[2].maxima["kl/beta"]) == pytest.approx(0.6)


# ---- the policy's weights


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_the_policy_exactly(kind: str, tmp_path: Path) -> None:
    model = moving(kind, tmp_path)
    rows = batch(model)
    trainable = [id(p) for p in model.trainable()]
    before = model.forward(rows, 1.0).logp.detach()
    assert (reference_logp(model, rows) - before).abs().max() > 0.01
    model.update_reference(1.0)
    assert torch.equal(reference_logp(model, rows), before)  # KL exactly 0
    assert torch.equal(model.forward(rows, 1.0, train=True).logp.detach(), before)  # the policy stayed
    assert [id(p) for p in model.trainable()] == trainable
    move(model, 0.1)
    assert torch.equal(reference_logp(model, rows), before)  # and the copy stays behind


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_the_way_is_the_blend_of_the_weights(kind: str, tmp_path: Path) -> None:
    model = moving(kind, tmp_path)
    start, now = kept(model), learnt(model)
    assert start.keys() == now.keys()
    model.update_reference(0.25)
    for name, weight in kept(model).items():
        torch.testing.assert_close(weight, 0.25 * now[name] + 0.75 * start[name], rtol=0, atol=1e-7)
    assert all(torch.equal(weight, now[name]) for name, weight in learnt(model).items())


@pytest.mark.parametrize("kind", KINDS)
def test_until_it_moves_it_is_the_fixed_one(kind: str, tmp_path: Path) -> None:
    """Bit for bit, though an adapter has a second one for it, whose making leaves the run's random numbers alone."""
    fixed, other = with_reference(kind, tmp_path), with_reference(kind, tmp_path)
    torch.manual_seed(0)
    other.freeze_reference(moves=True)
    assert torch.initial_seed() == 0 and torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(0))
    rows = batch(fixed)
    for model in (fixed, other):
        move(model, 0.1)
    assert torch.equal(reference_logp(fixed, rows), reference_logp(other, rows))
    assert fixed.sizes() == other.sizes()
    assert not kept(fixed) and learnt(fixed).keys() == learnt(other).keys()
    with pytest.raises(RuntimeError, match="moves=True"):
        fixed.update_reference(1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_moved_reference_is_part_of_the_state(kind: str, tmp_path: Path) -> None:
    model, other, plain = moving(kind, tmp_path), moving(kind, tmp_path), with_reference(kind, tmp_path)
    model.update_reference(0.5)
    state = {name: x.clone() for name, x in model.state().items()}
    rows = batch(model)
    assert not torch.equal(reference_logp(other, rows), reference_logp(model, rows))
    other.load_state(state)
    assert torch.equal(reference_logp(other, rows), reference_logp(model, rows))
    assert torch.equal(other.forward(rows, 1.0).logp, model.forward(rows, 1.0).logp)
    plain.load_state(state)  # as an evaluation does, which needs no reference
    assert torch.equal(plain.forward(rows, 1.0).logp, model.forward(rows, 1.0).logp)
    with pytest.raises(ModelError, match="do not fit"):
        other.load_state(learnt(model))


def test_an_export_has_the_policy_alone(tmp_path: Path) -> None:
    moving("lora", tmp_path).export(tmp_path / "export")
    assert not (tmp_path / "export/reference").exists()
    assert (tmp_path / "export/adapter_model.safetensors").is_file()


# ---- whole runs

RUN = ("eval.start=false", "eval.max_items=1", "lr=1e-2")


@pytest.mark.parametrize("words", [(), ("model.adapter=lora",)])
def test_after_each_copy_the_kl_is_exactly_zero(tmp_path: Path, words: tuple[str, ...]) -> None:
    sync = ("algo.reference.update=sync", "algo.reference.every=2")
    found = of("train", train(tmp_path / "run", *RUN, *words, *sync, "steps=5"))
    assert [row["kl/k2"] == 0 for row in found] == [True, False, True, False, True]
    weights = checkpoint.load(tmp_path / "run/checkpoints/step-000005").weights
    assert {name[10:] for name in weights if name.startswith("reference.")} == {
        name for name in weights if not name.startswith("reference.")
    }


def test_a_checkpoint_with_a_reference_is_evaluated_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", *RUN, "algo.reference.update=ema", "algo.reference.every=1", "steps=1")
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, "evaluate", "run/checkpoints/step-000001", "eval.max_items=1")
    assert answer.code == 0, answer.err


def test_a_kl_that_is_only_reported(tmp_path: Path) -> None:
    """Every second step, and it changes nothing in the others."""
    runs = [
        of("train", train(tmp_path / f"every{every}", *RUN, "beta=0", f"algo.kl.report_every={every}", "steps=4"))
        for every in (0, 2)
    ]
    assert [["kl/k3" in row for row in run] for run in runs] == [[False] * 4, [False, True, False, True]]
    assert runs[1][3]["kl/k3"] > 0 and "loss/kl" not in runs[1][3]
    assert [row["loss/total"] for row in runs[0]] == [row["loss/total"] for row in runs[1]]


def test_what_is_measured_before_the_first_update_is_of_all_rows(tmp_path: Path) -> None:
    """Also where that update is on a share of them."""
    words = {"parts": ("algo.minibatch_count=4",), "whole": ("algo.updates_per_rollout=2",)}
    parts, whole = (of("train", train(tmp_path / name, *RUN, *more, "steps=1"))[0] for name, more in words.items())
    assert parts["mismatch/abs_mean"] == whole["mismatch/abs_mean"] > 0
    assert parts["mismatch/abs_max"] == whole["mismatch/abs_max"]


def test_a_weight_adapts_in_a_run_and_is_saved(tmp_path: Path) -> None:
    found = of("train", train(tmp_path / "run", *RUN, "beta=0.1", "algo.kl.target=1e-5", "steps=3"))
    # KL 0 in step 1: x 0.98; then it is far above the target: x 1.02
    assert [row["kl/beta"] for row in found] == pytest.approx([0.1, 0.098, 0.09996], rel=1e-6)
    progress: dict[str, Any] = checkpoint.load(tmp_path / "run/checkpoints/step-000003").progress
    assert progress["algorithm"] == {"kl_weight": pytest.approx(0.09996 * 1.02, rel=1e-6)}


def test_what_the_loss_is_given_has_no_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reference, old and behaviour log-probs, entropies, advantages; the policy's own log-probs have one."""
    seen: list[str] = []
    loss = GRPO.loss

    def watched(self: GRPO, now: Outputs, rows: TokenBatch) -> LossSum:
        assert now.logp.requires_grad
        for name in ("ref_logp", "old_logp", "behaviour_logp", "entropy", "advantages", "reward"):
            value = getattr(rows, name)
            assert value is not None and not value.requires_grad, name
            seen.append(name)
        return loss(self, now, rows)

    monkeypatch.setattr(GRPO, "loss", watched)
    train(tmp_path / "run", *RUN, "algo.top_entropy=0.5", "algo.minibatch_count=2", "algo.entropy_coef=0.01", "steps=1")
    assert seen


def test_more_minibatches_than_rows_leave_the_empty_ones_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows were left out after the draw."""

    def first(self: GRPO, rows: TokenBatch) -> TokenBatch:
        return rows.rows(torch.tensor([0, 1]))

    monkeypatch.setattr(GRPO, "select", first)
    (row,) = of("train", train(tmp_path / "run", *RUN, "algo.minibatch_count=4", "steps=1"))
    assert row["grad/norm"] >= 0
