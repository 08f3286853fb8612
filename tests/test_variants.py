"""What must hold for every variant of conf/algo that is of kind grpo, found by listing, on batches that hypothesis makes up."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from command import algo_values
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_exp import config
from grpo_exp.algos.grpo import GRPO
from grpo_exp.batch import Outputs, TokenBatch
from grpo_exp.command_line import options
from grpo_exp.compose import compose

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
FEW = settings(max_examples=8, deadline=None)


@functools.cache
def composed(name: str) -> Any:
    return config.build(compose([f"algo={name}", "model=tiny_random", "max_new_tokens=6", "track=quiet"])).algo


VARIANTS = [name for name in options("algo") if algo_values(name)["kind"] == "grpo"]
WITHOUT_BASELINE = [name for name in VARIANTS if algo_values(name)["baseline"] == "none"]
WHITENED = [name for name in VARIANTS if algo_values(name)["whiten"]]
each = pytest.mark.parametrize("name", VARIANTS)


def variant(name: str, **changes: Any) -> GRPO:
    """A variant as its YAML has it, with all KL taken away (`beta=0`) or other options changed; no eps in the denominator."""
    made: GRPO = dataclasses.replace(composed(name), std_eps=0.0, **changes)
    return made


@dataclasses.dataclass
class Case:
    """A batch before credit, and what the policy says now of its tokens, `[N, T]`."""

    batch: TokenBatch
    logp: Tensor


@st.composite
def cases(draw: st.DrawFn, longest: int = 5, equal: bool = False, sizes: tuple[int, ...] = (1, 2, 3, 4)) -> Case:
    """One to three groups of different sizes, rows in mixed order; `equal`: all rewards of a group are the same."""
    groups = draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=3))
    rows = sum(groups)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    order = torch.randperm(rows, generator=generator)
    group = torch.tensor([g for g, size in enumerate(groups) for _ in range(size)])[order]
    lengths = torch.randint(1, longest + 1, (rows,), generator=generator)
    lengths[0] = longest
    mask = torch.arange(longest) < lengths[:, None]

    def noise() -> Tensor:
        return torch.randn(rows, longest, generator=generator, dtype=torch.float64)

    old = -noise().exp()
    reward = torch.randint(0, 4, (rows,), generator=generator).double() / 2
    if equal:
        reward = torch.rand(len(groups), generator=generator, dtype=torch.float64)[group]
    batch = TokenBatch(
        prompt_tokens=torch.zeros(len(groups), 1, dtype=torch.long),
        prompt_mask=torch.ones(len(groups), 1, dtype=torch.bool),
        group=group,
        tokens=torch.zeros(rows, longest, dtype=torch.long),
        mask=mask,
        loss_mask=mask,
        finished=torch.rand(rows, generator=generator) < 0.5,
        reward=reward,
        old_logp=old,
        ref_logp=old + 0.3 * noise(),
        entropy=noise().abs(),
    )
    return Case(batch, old + 0.5 * noise())


def step(algorithm: GRPO, case: Case, rows: int | None = None) -> tuple[float, Tensor]:
    """Loss and gradient of one optimizer step, in micro-batches of so many rows, divided as the loop divides."""
    batch, logp = algorithm.credit(case.batch), case.logp.clone().requires_grad_()
    entropy = logp.square()  # something that the bonus can be differentiated through
    total = torch.zeros((), dtype=torch.float64)
    for index, micro in batch.split(rows or len(batch)):
        t = micro.tokens.shape[1]
        total = total + algorithm.loss(Outputs(logp[index, :t], entropy[index, :t]), micro).total
    (total / algorithm.count(batch).clamp(min=1)).backward()
    assert logp.grad is not None
    return float(total.detach() / algorithm.count(batch).clamp(min=1)), logp.grad


def advantages(algorithm: GRPO, batch: TokenBatch) -> Tensor:
    """`[N, T]`, 0 outside the mask."""
    got = algorithm.credit(batch).advantages
    assert got is not None
    return got.masked_fill(~batch.mask, 0)


def test_all_are_here() -> None:
    names = "grpo dr_grpo dapo gspo cispo cispo_two_sided sapo rloo reinforce_pp reinforce_pp_baseline gdpo"
    assert set(names.split()) <= set(VARIANTS)
    assert len({composed(name).formula() for name in VARIANTS}) == len(VARIANTS), "each computes something else"
    assert [composed(name).name for name in VARIANTS] == VARIANTS
    for key in ("kind", "baseline", "whiten"):
        assert [getattr(composed(name), key) for name in VARIANTS] == [algo_values(name)[key] for name in VARIANTS]


@each
@FEW
@given(case=cases(), rows=st.integers(1, 4), more=st.booleans())
def test_micro_batches(name: str, case: Case, rows: int, more: bool) -> None:
    """k micro-batches give the loss and gradient of one, also with the switches that look at the whole batch."""
    algorithm = variant(name, **({"entropy_coef": 0.1, "top_entropy": 0.4, "mask_truncated": True} if more else {}))
    (one, whole), (other, split) = step(algorithm, case), step(algorithm, case, rows)
    assert other == pytest.approx(one, rel=1e-9, abs=1e-9)
    torch.testing.assert_close(split, whole, **CLOSE)
    assert torch.isfinite(whole).all() and not whole[~case.batch.mask].any()


@each
@FEW
@given(case=cases(), width=st.integers(1, 3))
def test_padding(name: str, case: Case, width: int) -> None:
    """More of it, with rubbish in it, changes nothing."""
    algorithm = variant(name, entropy_coef=0.1, top_entropy=0.4)
    before, gradient = step(algorithm, case)

    def wider(x: Tensor, value: Any) -> Tensor:
        return torch.nn.functional.pad(x, (0, width), value=value)

    b = case.batch
    rubbish = {n: wider(getattr(b, n).masked_fill(~b.mask, torch.nan), torch.nan) for n in ("old_logp", "ref_logp", "entropy")}
    rest = {n: wider(getattr(b, n), False) for n in ("tokens", "mask", "loss_mask")}
    padded = Case(b.with_(**rubbish, **rest), wider(case.logp, 1e3))
    after, wide = step(algorithm, padded)
    assert after == pytest.approx(before, rel=1e-9, abs=1e-9)
    torch.testing.assert_close(wide[:, : gradient.shape[1]], gradient, **CLOSE)
    assert not wide[:, gradient.shape[1] :].any()


@each
@FEW
@given(case=cases(), seed=st.integers(0, 999))
def test_order_of_rows(name: str, case: Case, seed: int) -> None:
    algorithm = variant(name, top_entropy=0.4)
    order = torch.randperm(len(case.batch), generator=torch.Generator().manual_seed(seed))
    fields = ("group", "tokens", "mask", "loss_mask", "finished", "reward", "old_logp", "ref_logp", "entropy")
    mixed = case.batch.with_(**{field: getattr(case.batch, field)[order] for field in fields})
    (one, gradient), (other, permuted) = step(algorithm, case), step(algorithm, Case(mixed, case.logp[order]))
    assert other == pytest.approx(one, rel=1e-9, abs=1e-9)
    torch.testing.assert_close(permuted, gradient[order], **CLOSE)


@each
@FEW
@given(case=cases(), shift=st.floats(-50, 50), factor=st.floats(0.1, 10))
def test_shift_and_scale_of_rewards(name: str, case: Case, shift: float, factor: float) -> None:
    """A shift changes nothing: a baseline or the whitening takes it off. A factor goes with a standard deviation or the
    whitening; without either it stays on the advantage. Without KL, which has a scale of its own."""
    algorithm = variant(name, beta=0.0)
    reward = case.batch.reward
    assert reward is not None
    before = advantages(algorithm, case.batch)
    near = {"rtol": 1e-5, "atol": 1e-5}  # the whitening's own 1e-8 does not scale
    torch.testing.assert_close(advantages(algorithm, case.batch.with_(reward=reward + shift)), before, **near)
    scaled = advantages(algorithm, case.batch.with_(reward=reward * factor))
    kept = algorithm.std != "none" or algorithm.whiten
    torch.testing.assert_close(scaled, before if kept else before * factor, **near)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in WITHOUT_BASELINE])
@FEW
@given(case=cases(equal=True), data=st.data())
def test_groups_of_equal_rewards_have_advantage_exactly_zero(name: str, case: Case, data: st.DataObject) -> None:
    """And so does a row alone in its group. With KL in the reward the rewards that count are those after it."""
    algorithm = variant(name, beta=0.0)
    assert not advantages(algorithm, case.batch).any()
    assert not step(algorithm, case)[1].any()
    if name not in WHITENED:  # which takes off the mean over the others' tokens
        mixed = data.draw(cases(sizes=(1, 3)))
        sizes = torch.bincount(mixed.batch.group)[mixed.batch.group]
        assert not advantages(algorithm, mixed.batch)[sizes == 1].any()


@pytest.mark.parametrize("name", WITHOUT_BASELINE)
def test_without_a_baseline_whitening_does_its_work(name: str) -> None:
    """Mean 0 over tokens and not over rows: what is known not to be 0 for a group of equal rewards."""
    algorithm = variant(name, beta=0.0)
    mask = torch.tensor([[True, True, True], [True, False, False], [True, False, False]])
    batch = TokenBatch(
        prompt_tokens=torch.zeros(2, 1, dtype=torch.long),
        prompt_mask=torch.ones(2, 1, dtype=torch.bool),
        group=torch.tensor([0, 1, 1]),
        tokens=torch.zeros(3, 3, dtype=torch.long),
        mask=mask,
        loss_mask=mask,
        reward=torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64),
    )
    # 3 of 5 tokens have reward 1: mean 0.6, variance (3 x 0.16 + 2 x 0.36) / 4 = 0.3
    expected = [0.4 / 0.3**0.5, -0.6 / 0.3**0.5, -0.6 / 0.3**0.5]
    assert advantages(algorithm, batch)[:, 0].tolist() == pytest.approx(expected, rel=1e-6)


@each
@FEW
@given(case=cases(longest=1))
def test_completions_of_one_token(name: str, case: Case) -> None:
    """A row's ratio is then its token's."""
    algorithm = variant(name)
    token, sequence = (step(dataclasses.replace(algorithm, ratio=ratio), case) for ratio in ("token", "sequence"))
    assert torch.isfinite(token[1]).all()
    assert sequence[0] == pytest.approx(token[0], abs=1e-12)
    torch.testing.assert_close(sequence[1], token[1], **CLOSE)


@each
@FEW
@given(case=cases())
def test_truncated_rows_can_be_left_out(name: str, case: Case) -> None:
    """They get no gradient, and what their tokens say changes nothing in that of the others; all of them truncated is 0."""
    algorithm = variant(name, mask_truncated=True)
    finished = case.batch.finished
    assert finished is not None
    one, gradient = step(algorithm, case)
    assert not gradient[~finished].any()
    other, same = step(algorithm, Case(case.batch, torch.where(finished[:, None], case.logp, 7.0)))
    assert (one, same.tolist()) == (other, gradient.tolist())
    none = Case(case.batch.with_(finished=torch.zeros_like(finished)), case.logp)
    assert step(algorithm, none)[0] == 0 and not step(algorithm, none)[1].any()
