"""PPO: credit by GAE against numbers from outside, the value loss, and whole steps with a critic."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_exp import checkpoint, config, losses, run
from grpo_exp.advantages import gae
from grpo_exp.algos.ppo import PPO
from grpo_exp.batch import Outputs, TokenBatch
from grpo_exp.compose import compose
from grpo_exp.critic import Critic
from grpo_exp.errors import ConfigError
from grpo_exp.metrics import value_metrics
from grpo_exp.ops import masked_mean
from grpo_exp.policy import Policy

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

REFERENCE = Path(__file__).parents[2] / "shared" / "reference" / "loss_values.json"

# What TRL 1.10.0.dev0 (2026-07) and verl (2026-08) make of one small input in float64, gamma 1 and lambda 0.95.
LENGTHS = [4, 3, 2, 4]
REWARDS = [1.0, 0.0, 0.5, 0.0]
VALUES = [[0.1, 0.2, 0.3, 0.4], [0, 0.1, 0.2, 0], [0.5, 0.4, 0, 0], [0.2, 0.1, 0, -0.1]]
RETURNS = [[0.899675, 0.9365, 0.97, 1.0], [0.0145, 0.01, 0.0, 0.0], [0.495, 0.5, 0.0, 0.0], [0.0004875, -0.00475, -0.005, 0.0]]
WHITENED = [
    [1.6499004043302825, 1.4800845883110576, 1.3013310977645052, 1.113169528768134],
    [-0.4606675947657988, -0.7415659370532386, -1.0372484026189648],
    [-0.5130840318433594, -0.23084167834880273],
    [-1.0359379916920257, -0.7812142676631882, -0.5130840318433594, -0.23084167834880265],
]
VALUE_LOSS = (0.08428222714543268, 0.30769230745562126)
"""Of values + 0.3 against the old ones, clipped at 0.2: the loss, and the share of tokens that are clipped."""
CLOSE = {"rtol": 0, "atol": 1e-6}


def double(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def mask() -> Tensor:
    return torch.arange(4) < torch.tensor(LENGTHS)[:, None]


def ppo(*words: str) -> PPO:
    made = config.build(compose(["algo=ppo", "model=tiny_random", *words])).algo
    assert isinstance(made, PPO)
    return made


def rollout(**fields: Any) -> TokenBatch:
    """The reference input as the loop hands it over, before credit."""
    values: dict[str, Any] = {
        "prompt_tokens": torch.zeros(4, 1, dtype=torch.long),
        "prompt_mask": torch.ones(4, 1, dtype=torch.bool),
        "group": torch.arange(4),
        "tokens": torch.zeros(4, 4, dtype=torch.long),
        "mask": mask(),
        "loss_mask": mask(),
        "finished": torch.tensor([True, False, True, True]),
        "reward": double(REWARDS),
        "values": double(VALUES),
        "old_logp": torch.full((4, 4), -1.0, dtype=torch.float64),
    }
    return TokenBatch(**(values | fields))


# ---- the mathematics


def test_constants_above_are_those_of_the_reference_file() -> None:
    if not REFERENCE.is_file():
        pytest.skip(f"{REFERENCE.name} is not beside the repository")
    whole = json.loads(REFERENCE.read_text(encoding="utf-8"))
    known = whole["gae"]
    assert (known["values"], whole["inputs"]["lengths"], whole["advantages"]["rewards"]) == (VALUES, LENGTHS, REWARDS)
    torch.testing.assert_close(double(known["returns"]), double(RETURNS), rtol=0, atol=1e-12)
    assert [row[:n] for row, n in zip(known["advantages_whitened"], LENGTHS, strict=True)] == WHITENED
    assert next(v for k, v in known.items() if k.startswith("value_loss")) == list(VALUE_LOSS)


def test_gae_is_that_of_published_code() -> None:
    made = ppo("beta=0").credit(rollout())
    assert made.returns is not None and made.advantages is not None
    torch.testing.assert_close(made.returns, double(RETURNS), **CLOSE)
    torch.testing.assert_close(made.advantages[mask()], double([x for row in WHITENED for x in row]), **CLOSE)
    assert not made.advantages[~mask()].any()


def test_gae_by_hand() -> None:
    """Three steps, gamma 0.5, lambda 0.5; rewards 1, 0, 2 and values 2, 4, 1, with 0 after the end (arXiv 1506.02438).

    delta, equation 11:  2 + 0.5 x 0 - 1 = 1;   0 + 0.5 x 1 - 4 = -3.5;   1 + 0.5 x 4 - 2 = 1, from the last to the first
    A, equation 16:      A_2 = 1;   A_1 = -3.5 + 0.25 x 1 = -3.25;   A_0 = 1 + 0.25 x -3.25 = 0.1875
    returns:             A + V = 2.1875, 0.75, 2
    """
    three = torch.ones(1, 3, dtype=torch.bool)
    advantages, returns = gae(double([[1, 0, 2]]), double([[2, 4, 1]]), three, 0.5, 0.5)
    assert advantages.tolist() == [[0.1875, -3.25, 1.0]]
    assert returns.tolist() == [[2.1875, 0.75, 2.0]]


def test_gae_between_its_two_ends_and_blind_outside_the_mask() -> None:
    """Lambda 1: rewards to come minus the value. Lambda 0: one step ahead. Rubbish after the end changes nothing."""
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    zeros = rewards.masked_fill(~mask(), 0)
    to_come = zeros.flip(1).cumsum(1).flip(1)
    long, _ = gae(rewards, values, mask(), 1.0, 1.0)
    torch.testing.assert_close(long, (to_come - values).masked_fill(~mask(), 0))
    short, returns = gae(rewards, values, mask(), 0.9, 0.0)
    after = torch.cat([values.masked_fill(~mask(), 0)[:, 1:], torch.zeros(4, 1)], 1)
    torch.testing.assert_close(short, (rewards + 0.9 * after - values).masked_fill(~mask(), 0))
    dirty = gae(rewards.masked_fill(~mask(), math.nan), values.masked_fill(~mask(), math.nan), mask(), 0.9, 0.0)
    assert torch.equal(dirty[0], short) and torch.equal(dirty[1], returns)
    one = gae(rewards[:, :1], values[:, :1], mask()[:, :1], 0.9, 0.7)
    torch.testing.assert_close(one[0], rewards[:, :1] - values[:, :1])


def test_value_loss_is_that_of_published_code() -> None:
    found = losses.value_loss(double(VALUES) + 0.3, double(VALUES), double(RETURNS), 0.2)
    assert masked_mean(found.loss, mask()).item() == pytest.approx(VALUE_LOSS[0], abs=1e-6)
    assert masked_mean(found.clipped.double(), mask()).item() == pytest.approx(VALUE_LOSS[1], abs=1e-6)


def test_values_are_held_only_where_they_come_nearer() -> None:
    """Old value 0, return 1, clip 0.2: at 0.5 the loss is that of 0.2 and has no gradient, at -0.5 it is the plain one."""
    values = double([[0.5, -0.5, 0.1]]).requires_grad_()
    found = losses.value_loss(values, double([[0, 0, 0]]), double([[1, 1, 1]]), 0.2)
    found.loss.sum().backward()
    assert found.loss.tolist() == [pytest.approx([0.32, 1.125, 0.405])]
    assert values.grad is not None and values.grad.tolist() == [pytest.approx([0, -1.5, -0.9])]
    assert found.clipped.tolist() == [[True, False, False]]
    near, old = torch.rand(2, 999, generator=torch.Generator().manual_seed(0)) / 10  # V - V_old is rounded, which holds nothing
    assert not losses.value_loss(near, old, torch.zeros(999), 0.2).clipped.any()
    plain = losses.value_loss(values, double([[0, 0, 0]]), double([[1, 1, 1]]), 0.0)
    assert plain.loss.tolist() == [pytest.approx([0.125, 1.125, 0.405])] and not plain.clipped.any()


def test_explained_variance_by_hand() -> None:
    """Returns 0, 2, 4, variance 8/3. No error or a constant one: 1. Values -2, 2, 6, errors of variance 8/3: 0."""
    returns, all_of_it = double([[0, 2, 4]]), torch.ones(1, 3, dtype=torch.bool)

    def explained(values: Any) -> float:
        return value_metrics(double([values]), returns, all_of_it)["value/explained_var"]

    assert explained([0, 2, 4]) == 1 and explained([5, 7, 9]) == 1
    assert explained([1, 1, 1]) == 0 and explained([-2, 2, 6]) == pytest.approx(0, abs=1e-12)
    assert explained([4, 2, 0]) == pytest.approx(-3)
    assert value_metrics(returns, returns * 0 + 1, all_of_it)["value/explained_var"] == 0
    assert value_metrics(returns, returns + 1, all_of_it)["value/loss"] == 0.5
    assert value_metrics(returns, returns, ~all_of_it) == {}


# ---- credit and loss


def test_each_token_pays_for_its_kl_and_the_last_brings_the_reward() -> None:
    ref = torch.full((4, 4), -1.0, dtype=torch.float64) - torch.arange(4) / 10  # d = t / 10
    made = ppo("beta=0.5", "algo.whiten=false", "algo.gae_lambda=1")
    credited = made.credit(rollout(ref_logp=ref, values=double(VALUES) * 0))
    #                     0.3 + 0.2 + 0.1 = 0.6 of KL, then 0.6, 0.5, 0.3, half of it paid
    expected = double([[0.7, 0.7, 0.75, 0.85], [-0.15, -0.15, -0.1, 0], [0.45, 0.45, 0, 0], [-0.3, -0.3, -0.25, -0.15]])
    torch.testing.assert_close(credited.advantages, expected, **CLOSE)
    assert torch.equal(credited.reward, double(REWARDS)), "reward never changes meaning"


def test_a_missing_end_costs_the_penalty() -> None:
    plain, charged = (
        ppo("beta=0", "algo.whiten=false", "algo.gae_lambda=1", f"algo.missing_eos_penalty={p}").credit(rollout()).advantages
        for p in (0, 0.75)
    )
    assert plain is not None and charged is not None
    difference = plain - charged
    assert difference[1].tolist() == pytest.approx([0.75, 0.75, 0.75, 0])
    assert not difference[[0, 2, 3]].any()


@pytest.mark.parametrize("masked", [False, True])
def test_whitened_advantages_have_mean_0_and_variance_1_over_the_tokens_that_learn(masked: bool) -> None:
    made = ppo("beta=0", f"algo.mask_truncated={str(masked).lower()}").credit(rollout())
    assert made.advantages is not None and made.returns is not None
    assert made.loss_mask.sum(-1).tolist() == [4, 0 if masked else 3, 2, 4]
    learn = made.advantages[made.loss_mask]
    assert learn.mean().item() == pytest.approx(0, abs=1e-12) and learn.var().item() == pytest.approx(1, rel=1e-6)
    torch.testing.assert_close(made.returns, double(RETURNS), **CLOSE)  # which whitening does not touch


def test_nothing_is_learned_where_every_sample_was_cut_off() -> None:
    made = ppo("beta=0", "algo.mask_truncated=true")
    batch = made.credit(rollout(finished=torch.zeros(4, dtype=torch.bool)))
    logp, values = (torch.full((4, 4), -1.0, dtype=torch.float64, requires_grad=True) for _ in range(2))
    found = made.loss(Outputs(logp, torch.zeros(4, 4), values), batch)
    found.total.backward()
    assert made.count(batch) == 0 and found.total == 0
    assert logp.grad is not None and values.grad is not None and not logp.grad.any() and not values.grad.any()


def test_the_loss_is_the_sum_of_its_terms() -> None:
    """At the old policy and old values, token mean: -mean(A) + coef mean((V - R)^2) / 2 - entropy_coef mean(entropy)."""
    made = ppo("beta=0", "algo.entropy_coef=0.1", "algo.critic.coef=0.3", "algo.whiten=false")
    batch = made.credit(rollout())
    entropy = torch.rand(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert batch.old_logp is not None and batch.advantages is not None and batch.values is not None
    found = made.loss(Outputs(batch.old_logp, entropy, batch.values), batch)
    error = (double(VALUES) - double(RETURNS)).square() / 2
    parts = [masked_mean(x, mask()) for x in (-batch.advantages, error, entropy)]
    assert (found.total / made.count(batch)).item() == pytest.approx((parts[0] + 0.3 * parts[1] - 0.1 * parts[2]).item())
    assert made.entropy_gradient and not ppo().entropy_gradient
    total, count = found.sums["loss/value"]
    assert (total / count).item() == pytest.approx(parts[1].item())


def test_padding_changes_no_credit() -> None:
    made = ppo("beta=0.1")
    ref = torch.full((4, 4), -1.3, dtype=torch.float64)
    rows, wide = rollout(ref_logp=ref), {}
    for name in ("tokens", "mask", "loss_mask", "values", "old_logp", "ref_logp"):
        x = getattr(rows, name)
        rubbish = torch.full((4, 2), 0 if x.dtype == torch.bool else 7, dtype=x.dtype)
        wide[name] = torch.cat([x, rubbish], 1)
    one, other = made.credit(rows), made.credit(rows.with_(**wide))
    assert other.advantages is not None and other.returns is not None
    torch.testing.assert_close(other.advantages[:, :4], one.advantages)
    torch.testing.assert_close(other.returns[:, :4], one.returns)
    assert not other.advantages[:, 4:].any() and not other.returns[:, 4:].any()


def test_a_beta_that_adapts_is_kept() -> None:
    made, other = ppo("algo.kl.target=0.1"), ppo("algo.kl.target=0.1")
    made.observe({"kl/mean": 1.0})
    assert made.weight.value == pytest.approx(0.05 * 1.02)
    other.load(json.loads(json.dumps(made.state())))
    assert other.weight.value == made.weight.value
    assert ppo().state() == {} and "beta = 0.05 at first" in made.formula()
    acts = made.credit(rollout(ref_logp=torch.full((4, 4), -2.0, dtype=torch.float64)))
    values = torch.zeros(4, 4, dtype=torch.float64)
    found = made.loss(Outputs(acts.old_logp, values, values), acts)  # type: ignore[arg-type]
    assert float(found.maxima["kl/beta"]) == pytest.approx(0.05 * 1.02)


def test_a_kl_that_is_only_reported_costs_no_reward() -> None:
    made = ppo("beta=0", "algo.kl.report_every=3", "algo.kl.estimator=k3")
    assert [made.wants_reference(step) for step in range(1, 7)] == [False, False, True, False, False, True]
    assert made.keeps_reference and not made.needs_reference and not ppo("beta=0", "algo.kl.report_every=0").keeps_reference
    far = rollout(old_logp=torch.full((4, 4), -5000.0, dtype=torch.float64))  # the k3 is inf, and 0 x inf no number
    near = far.with_(ref_logp=torch.zeros(4, 4, dtype=torch.float64))
    assert torch.equal(made.credit(near).returns, made.credit(far).returns)  # type: ignore[arg-type]


def test_the_largest_ratio_is_that_of_tokens() -> None:
    """Not the 1 that stands in the padding."""
    made = ppo("beta=0")
    batch = made.credit(rollout())
    assert batch.old_logp is not None and batch.values is not None
    found = made.loss(Outputs(batch.old_logp - 1, batch.old_logp, batch.values), batch)
    assert float(found.maxima["ratio/max"]) == pytest.approx(math.exp(-1))


def test_the_formula_says_what_is_computed() -> None:
    plain = ppo().formula()
    other = ppo(
        "beta=0", "algo.clip_low=0.3", "algo.critic.clip=0", "algo.missing_eos_penalty=1", "algo.whiten=false"
    ).formula()
    for words in ("clip(r, 0.8, 1.2)", "lambda 0.95), whitened", "0.05 k1(pi_old, ref)", "within 0.2"):
        assert words in plain and words not in other
    assert "clip(r, 0.7, 1.2)" in other and "R - 1 where cut off" in other


# ---- whole steps

BASE = [
    *("algo=ppo", "model=tiny_random", "track=quiet", "hardware=cpu", "hardware.threads=1", "reward=custom", "steps=2"),
    *("prompts_per_step=4", "G=4", "max_new_tokens=8", "data.train=24", "data.heldout=6", "eval.samples=2", "lr=1e-3"),
    *("optim.warmup_steps=0", "checkpoint.export=false", "eval.start=false", "eval.max_items=1"),
]
REWARD = """
def digits(completions):
    return [sum(c.isdigit() for c in text) / 8 + len(set(text)) / 80 for text in completions]
"""


def train(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Run with options changed; the training rows of metrics.jsonl."""
    folder.mkdir(parents=True)
    (folder.parent / "rewards.py").write_text(REWARD)
    composed = compose([*BASE, f"reward.path={folder.parent / 'rewards.py'}:digits", *words])
    run.train(config.build(composed), config.resolved(composed), set(), folder)
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if row["kind"] == "train"]


def saved(folder: Path, step: int) -> checkpoint.State:
    return checkpoint.load(folder / "checkpoints" / f"step-{step:06d}")


def started(*words: str) -> dict[str, Tensor]:
    made = config.build(compose([*BASE[:2], *words]))
    policy = Policy.load(made.model, torch.device("cpu"), torch.float32, 0)
    assert made.algo.critic is not None
    policy.attach_critic(made.algo.critic)
    return policy.state()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((), marks=pytest.mark.slow),
        ("algo.critic.trunk=shared", "algo.aggregation=sequence_mean", "algo.critic.clip=0"),
        ("model.adapter=lora", "algo.mask_truncated=true", "rollout.stop=[a,e,i,o,u,'0','1']", "beta=1"),
    ],
)
def test_rows_at_a_time_do_not_change_the_step(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Gradients of policy and critic, and all metrics; without beta1 AdamW's mean of gradients is the last one."""
    plain = ("steps=1", "optim.clip_grad=0", "optim.beta1=0", "algo.minibatch_count=1", "algo.updates_per_rollout=2")
    start, states, metrics = started(*words), [], []
    for rows in (16, 3):
        folder = tmp_path / str(rows)
        (row,) = train(folder, *plain, *words, f"hardware.update_rows={rows}", "hardware.rollout_rows=16")
        states.append(saved(folder, 1).optimizer["state"])
        metrics.append({k: v for k, v in row.items() if k.startswith(("value/", "loss/", "grad/", "adv/", "kl/", "ratio/"))})
    assert len(states[0]) == len(start)
    largest = max(state["exp_avg"].abs().max().item() for state in states[0].values())
    for i, name in enumerate(start):
        one, other = (state[i]["exp_avg"] for state in states)
        assert one.shape == start[name].shape, "the critic's parameters come after the policy's"
        torch.testing.assert_close(other, one, rtol=0, atol=2e-5 * largest)
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-4, abs=1e-5)
    assert {"value/loss", "value/explained_var", "value/mean", "value/clip_frac", "value/grad_norm"} <= metrics[0].keys()


def test_before_the_first_update_kl_is_0_the_ratio_1_and_the_values_0(tmp_path: Path) -> None:
    (row,) = train(tmp_path / "run", "steps=1", "algo.minibatch_count=1", "rollout.stop=[a,e,i,o,u,'0','1']")
    assert row["length/p50"] < row["length/p95"]  # so there is padding
    assert (row["kl/k1"], row["kl/k2"], row["ratio/max"], row["value/mean"], row["value/clip_frac"]) == (0, 0, 1, 0, 0)
    assert row["value/explained_var"] == 0
    # Without KL and values the returns are GAE's of the reward alone: the value loss is what is left of it.
    assert row["value/loss"] == pytest.approx(row["loss/value"]) and row["value/loss"] > 0
    assert row["loss/total"] == pytest.approx(row["loss/policy"] + 0.5 * row["loss/value"], abs=1e-6)


@pytest.mark.parametrize(
    "words",
    [("algo.critic.trunk=shared",), ("model.adapter=lora",), pytest.param(("optim.weight_decay=0.1",), marks=pytest.mark.slow)],
)
def test_in_the_warm_up_the_critic_alone_learns(tmp_path: Path, words: tuple[str, ...]) -> None:
    changes = ("algo.critic.warmup_steps=2", "steps=3", "checkpoint.every=1", "checkpoint.keep_last=9")
    found = train(tmp_path / "run", *changes, *words)
    states = [started(*words), *(saved(tmp_path / "run", step).weights for step in (1, 2, 3))]
    of_policy = [name for name in states[0] if not name.startswith("critic.")]
    assert all(torch.equal(states[2][name], states[0][name]) for name in of_policy)
    assert not all(torch.equal(states[3][name], states[2][name]) for name in of_policy)
    heads = [state["critic.head.weight"] for state in states]
    assert not heads[0].any() and all(not torch.equal(one, other) for one, other in itertools.pairwise(heads))
    assert all(row["kl/mean"] == 0 and row["grad/norm"] > 0 for row in found[:3])  # measured before each step's update


def test_the_critic_has_a_rate_and_a_clip_of_its_own(tmp_path: Path) -> None:
    """AdamW's first step is the rate, whatever the gradient's size."""
    words = ("steps=1", "algo.minibatch_count=1", "algo.critic.lr_factor=7", "optim.clip_grad=0.01")
    (row,) = train(tmp_path / "run", *words)
    end, start, optimizer = saved(tmp_path / "run", 1).weights, started(), saved(tmp_path / "run", 1).optimizer
    moved = {name: (end[name] - start[name]).abs().max().item() for name in start}
    assert moved["critic.head.weight"] == pytest.approx(7e-3, rel=1e-3)
    assert max(x for name, x in moved.items() if not name.startswith("critic.")) == pytest.approx(1e-3, rel=1e-3)
    assert row["lr"] == pytest.approx(1e-3) and row["grad/norm"] > 0.01 and row["value/grad_norm"] > 0.01
    for parameters in (group["params"] for group in optimizer["param_groups"]):
        gradients = [optimizer["state"][i]["exp_avg"] / 0.1 for i in parameters]
        assert torch.cat([g.flatten() for g in gradients]).norm().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(("beta", "references"), [(0.05, 1), (0, 0)])
def test_the_critic_is_asked_once_before_and_once_in_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beta: float, references: int
) -> None:
    """Not while sampling, not in an evaluation, not for the reference; and without beta there is no reference pass."""
    asked, passes = [], []
    forward, whole = Critic.forward, Policy.forward
    monkeypatch.setattr(Critic, "forward", lambda self, hidden: asked.append(1) or forward(self, hidden))
    monkeypatch.setattr(Policy, "forward", lambda self, *args, **kw: passes.append(1) or whole(self, *args, **kw))
    train(tmp_path / "run", "steps=1", "algo.minibatch_count=1", "eval.start=true", f"beta={beta}")
    assert (len(asked), len(passes)) == (2, 2 + references)


@pytest.mark.parametrize("words", [("G=1",), ("max_new_tokens=1",), ("G=1", "prompts_per_step=1", "algo.minibatch_count=1")])
def test_one_sample_a_prompt_or_one_token_is_enough(tmp_path: Path, words: tuple[str, ...]) -> None:
    found = train(tmp_path / "run", *words)
    assert all(math.isfinite(value) for row in found for value in row.values() if isinstance(value, float))
    assert not math.isnan(found[-1]["loss/total"]) and found[-1]["value/grad_norm"] > 0


def test_the_card_counts_the_critic_apart(tmp_path: Path) -> None:
    train(tmp_path / "own", "steps=1")
    train(tmp_path / "head", "steps=1", "algo.critic.trunk=detached", "model.adapter=lora")
    batch = json.loads((tmp_path / "own" / "run.json").read_text())["batch"]
    assert (batch["rows"], batch["updates_per_rollout"], batch["rows_per_update"]) == (16, 4, 4)
    own, head = (json.loads((tmp_path / name / "run.json").read_text())["model"] for name in ("own", "head"))
    assert own["trainable"] == own["parameters"]
    assert own["critic"] == own["parameters"] + 128  # the head of this model is its embedding
    assert head["critic"] == 128


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("algo.critic.warmup_steps=5", "steps=5"), r"algo\.critic\.warmup_steps=5.*steps=5.*4 at most"),
        (("algo.missing_eos_penalty=1", "algo.mask_truncated=true"), r"missing_eos_penalty=1.*mask_truncated=true"),
        (("algo.kl.target=0.1", "beta=0"), r"algo\.kl\.target=0\.1"),
        (("beta=-1",), r"beta=-1"),
        (("beta=much",), r"beta='much'"),
        (("algo.critic.trunk=owned",), r"algo\.critic\.trunk='owned'.*own, shared, detached"),
        (("algo.critic.lr_factor=0",), r"algo\.critic\.lr_factor=0.*greater than 0"),
        (("algo.gae_lambda=1.5",), r"algo\.gae_lambda=1\.5"),
    ],
)
def test_wrong_options_are_refused_before_the_model_loads(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ppo(*words)
