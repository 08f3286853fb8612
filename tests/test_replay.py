"""Batches put together, groups of earlier steps, and the importance weights of their tokens."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_policy import batch, gradients, move, policy

from grpo_exp import checkpoint, config, run
from grpo_exp.algos.base import Algorithm
from grpo_exp.batch import PairBatch, TokenBatch, concatenate
from grpo_exp.compose import compose
from grpo_exp.errors import CheckpointError, ConfigError
from grpo_exp.losses import importance_weights
from grpo_exp.metrics import replay_metrics
from grpo_exp.ops import pack
from grpo_exp.policy import Policy
from grpo_exp.replay import Replay, ReplayOptions

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


# ---- put together


def parts(model: Policy) -> list[TokenBatch]:
    """Three batches of different widths, of prompts and of completions."""
    made = [
        batch(model, lengths, seed=i) for i, lengths in enumerate([(5, 2, 1, 6, 4, 6), (1, 1, 2, 1, 1, 2), (3, 9, 1, 4, 4, 2)])
    ]
    return [made[0], made[1].rows(torch.tensor([3, 0, 2])), made[2]]


@pytest.mark.parametrize("architecture", ["llama", "qwen"])
def test_a_joined_batch_says_what_its_parts_say(architecture: str) -> None:
    model = policy(architecture)
    pieces = parts(model)
    whole = concatenate(pieces)
    assert whole.tokens.shape == (15, 9) and whole.group.tolist() == [0, 2, 1, 0, 2, 1, 3, 3, 4, 5, 7, 6, 5, 7, 6]
    said = model.forward(whole, 0.7)
    row = 0
    for piece in pieces:
        alone = model.forward(piece, 0.7)
        here = whole.rows(torch.arange(row, row + len(piece)))
        assert torch.equal(here.tokens[here.mask], piece.tokens[piece.mask])
        width = piece.tokens.shape[1]
        for name in ("logp", "entropy"):
            got = getattr(said, name)[row : row + len(piece)]
            torch.testing.assert_close(got[:, :width], getattr(alone, name), rtol=0, atol=2e-5)
            assert (got[:, width:] == 0).all()
        row += len(piece)


def test_every_field_is_joined() -> None:
    made = parts(policy())
    filled = []
    for piece in made:
        n, t = piece.tokens.shape
        rows = {name: torch.rand(n) for name in ("reward", "outcome", "normalized")}
        tokens = {f.name: torch.rand(n, t) for f in dataclasses.fields(piece) if f.name in TokenBatch._ROW_TOKENS[3:]}
        support = torch.randint(0, 255, (n, t, 3), dtype=torch.uint8)
        filled.append(piece.with_(**rows, **tokens, finished=torch.rand(n) > 0.5, age=torch.arange(n), support=support))
    whole = concatenate(filled)
    assert not [f.name for f in dataclasses.fields(whole) if getattr(whole, f.name) is None]
    last = whole.rows(torch.arange(9, 15))
    for field in dataclasses.fields(whole):
        assert torch.equal(getattr(last, field.name), getattr(filled[2].rows(torch.arange(6)), field.name)), field.name
    assert concatenate(filled[:1]) is filled[0]


def test_ages_and_other_fields_that_some_batches_lack() -> None:
    one, other, _ = parts(policy())
    assert concatenate([one, other]).age is None
    joined = concatenate([one, other.with_(age=torch.full((3,), 4))])
    assert joined.age is not None and joined.age.tolist() == [0] * 6 + [4] * 3
    with pytest.raises(ValueError, match="reward: some of the batches have it"):
        concatenate([one.with_(reward=torch.zeros(6)), other])
    pairs = one.rows(torch.tensor([0, 3, 1, 4]))
    pairs = PairBatch(**{f.name: getattr(pairs, f.name) for f in dataclasses.fields(pairs)})
    assert isinstance(concatenate([pairs, pairs]), PairBatch)


def test_supports_are_joined_with_their_rows() -> None:
    model = policy()
    one, other, _ = parts(model)
    generator = torch.Generator().manual_seed(0)
    pieces = []
    for piece in (one, other):
        kept = torch.rand((*piece.tokens.shape, len(model.tokenizer)), generator=generator) < 0.5
        pieces.append(piece.with_(support=pack(kept.scatter(-1, piece.tokens[..., None], True))))
    said, alone = model.forward(concatenate(pieces), 1.0).logp, [model.forward(piece, 1.0).logp for piece in pieces]
    torch.testing.assert_close(said[:6, :6], alone[0], rtol=0, atol=2e-5)
    torch.testing.assert_close(said[6:, :2], alone[1], rtol=0, atol=2e-5)
    assert (alone[0] - model.forward(one, 1.0).logp).abs().max() > 0.1


# ---- weights


def test_importance_weights_by_hand() -> None:
    """min(pi_old / pi_behaviour, 2) in replayed rows: 0.5 / 0.4, 0.1 / 0.4, 0.9 / 0.3 cut off; 1 in fresh rows and padding."""
    old = torch.tensor([[0.5, 0.1, 0.9], [0.5, 0.1, 0.9], [0.2, 0.4, 0.9]], dtype=torch.float64).log()
    behaviour = torch.tensor([[0.4, 0.4, 0.3], [0.4, 0.4, 0.3], [0.4, 0.1, 1e-300]], dtype=torch.float64).log()
    mask = torch.tensor([[True, True, True], [True, True, True], [True, True, False]])
    weights = importance_weights(old, behaviour, mask, torch.tensor([2.0, 0, 2.0]))
    torch.testing.assert_close(
        weights, torch.tensor([[1.25, 0.25, 2.0], [1, 1, 1], [0.5, 2.0, 1]], dtype=torch.float64), rtol=1e-12, atol=0
    )
    assert (weights[1] == 1).all() and weights[2, 2] == 1
    assert importance_weights(old, behaviour, mask, torch.tensor([math.inf, 0, math.inf]))[0, 2].item() == pytest.approx(3)


def grpo(*words: str) -> Algorithm:
    return config.build(compose(["model=tiny_random", "G=2", *words])).algo


VARIANTS = [
    ("beta=0.3",),
    ("beta=0.3", "algo.aggregation=token_mean", "algo.kl.gradient=unbiased", "algo.clip_high=0.05"),
]


def credited(model: Policy, algorithm: Algorithm, **fields: Any) -> TokenBatch:
    """A batch with rewards and the log-probs that the loss needs; the reference is another policy."""
    made = batch(model)
    with torch.no_grad():
        now = model.forward(made, 1.0).logp
    ref = now + 0.3 * torch.sin(torch.arange(now.numel()).reshape(now.shape).float()) * made.mask
    reward = torch.tensor([1.0, 0, 1, 0, 1, 0.5])
    made = made.with_(reward=reward, outcome=reward, finished=torch.ones(6).bool(), old_logp=now, ref_logp=ref)
    return algorithm.credit(made.with_(**fields))


@pytest.mark.parametrize("words", VARIANTS)
def test_replayed_rows_of_the_same_policy_have_the_gradient_of_fresh_ones(words: tuple[str, ...]) -> None:
    model, algorithm = policy(), grpo(*words)
    plain = credited(model, algorithm)
    age = torch.tensor([0, 3, 0, 0, 3, 0])
    assert plain.old_logp is not None
    weights = importance_weights(plain.old_logp, plain.old_logp.clone(), plain.mask, 2.0 * (age > 0))
    replayed = plain.with_(age=age, weights=weights)
    one, other = (gradients(model, algorithm.loss(model.forward(b, 1.0, train=True), b).total) for b in (plain, replayed))
    assert max(g.abs().max().item() for g in one.values()) > 1e-3
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("words", VARIANTS)
def test_a_weight_multiplies_the_terms_of_its_token(words: tuple[str, ...]) -> None:
    """The gradient is linear in the weights: that of 2 w is twice that of w, and rows with weight 0 have none."""
    model, algorithm = policy(), grpo(*words)
    plain = credited(model, algorithm)
    w = torch.rand(plain.tokens.shape, generator=torch.Generator().manual_seed(1))
    found = [
        gradients(model, algorithm.loss(model.forward(plain, 1.0, train=True), plain.with_(weights=weights)).total)
        for weights in (w, 2 * w, 1 - w, torch.ones_like(w))
    ]
    for name, one in found[0].items():
        torch.testing.assert_close(found[1][name], 2 * one, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found[2][name] + one, found[3][name], rtol=1e-4, atol=5e-6)
    none = algorithm.loss(model.forward(plain, 1.0), plain.with_(weights=torch.zeros_like(w)))
    assert none.total == 0


def test_weighted_samples_of_an_older_policy_estimate_the_new_ones_gradient() -> None:
    """One-token completions: summed over all tokens with the behaviour's probabilities, w A is the policy's own mean of A."""
    model = policy()
    vocabulary = len(model.tokenizer)
    asked = batch(model).rows(torch.tensor([0]))
    tokens = torch.arange(vocabulary)[:, None]
    full = torch.ones_like(tokens).bool()
    every = TokenBatch(asked.prompt_tokens, asked.prompt_mask, torch.zeros(vocabulary).long(), tokens, full, full)
    behaviour = model.forward(every, 1.0).logp.detach()
    move(model, 0.02)
    old = model.forward(every, 1.0).logp.detach()
    weights = importance_weights(old, behaviour, full, torch.full((vocabulary,), math.inf))
    assert (weights - 1).abs().max() > 0.1
    advantages = torch.randn(vocabulary, 1, generator=torch.Generator().manual_seed(2))
    mean = (behaviour.exp() * weights * advantages).sum()
    torch.testing.assert_close(mean, (old.exp() * advantages).sum(), rtol=1e-4, atol=1e-5)


def test_replay_metrics() -> None:
    made = batch(policy())
    assert replay_metrics(made) == {}
    age = torch.tensor([0, 2, 0, 5, 0, 0])
    weights = torch.ones(made.tokens.shape)
    weights[1, :2] = torch.tensor([0.5, 2.0])
    weights[1, 2:] = 7.0  # outside the mask
    found = replay_metrics(made.with_(age=age, weights=weights))
    assert found == {
        "replay/frac": pytest.approx(2 / 6),
        "replay/age_mean": 3.5,
        "replay/weight_mean": pytest.approx(8.5 / 8),
        "replay/weight_max": 2.0,
    }
    assert replay_metrics(made.with_(age=torch.zeros(6).long(), weights=weights)) == {}


# ---- the groups that are kept


def sampled(reward: list[float], outcome: list[float], step: int = 0) -> TokenBatch:
    made = batch(policy(), seed=step)
    logp = torch.rand(made.tokens.shape) * made.mask
    return made.with_(reward=torch.tensor(reward), outcome=torch.tensor(outcome).float(), behaviour_logp=logp)


SHAPED = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
"""Rewards that differ in every group; groups are rows 0 3, 1 4 and 2 5."""


def test_groups_with_contrast_in_their_outcomes_come_back_as_they_were() -> None:
    made = sampled(SHAPED, [1, 1, 0, 1, 0, 0])  # of groups 0, 2, 1 only rows 1 and 4 differ
    replay = Replay(ReplayOptions(2, 4, 2.0), (0, 3))
    assert replay.draw(1, "cpu") is None
    replay.add(made, 1)
    assert len(replay) == 1
    back = replay.draw(4, "cpu")
    assert back is not None and back.age is not None and back.age.tolist() == [3, 3]
    expected = made.rows(torch.tensor([1, 4]))
    for name in ("prompt_tokens", "tokens", "mask", "reward", "outcome", "behaviour_logp"):
        assert torch.equal(getattr(back, name), getattr(expected, name)), name


def test_the_newest_groups_are_kept_and_every_one_of_them_is_chosen_now_and_then() -> None:
    replay = Replay(ReplayOptions(2, 5, 2.0), (0, 3))
    for step in range(1, 5):
        replay.add(sampled(SHAPED, [1, 0, 0, 0, 1, 1], step), step)  # three groups each
    assert replay.state() == {"steps": [3, 3, 4, 4, 4]}
    chosen = [replay.draw(step, "cpu") for step in range(5, 60)]
    seen = {
        tuple(group)
        for one in chosen
        if one is not None and one.reward is not None
        for group in one.reward.reshape(-1, 2).tolist()
    }
    assert len(seen) == 3 and all(one is not None and len(one.prompt_tokens) == 2 for one in chosen)
    ages = {int(age) for step, one in enumerate(chosen, 5) if one is not None and one.age is not None for age in step - one.age}
    assert ages == {3, 4}
    again, other = replay.draw(9, "cpu"), Replay(ReplayOptions(2, 5, 2.0), (0, 3))
    other.load(json.loads(json.dumps(replay.state())), replay.tensors())
    same = other.draw(9, "cpu")
    assert again is not None and same is not None and torch.equal(again.tokens, same.tokens)


def test_a_damaged_state_is_refused() -> None:
    replay = Replay(ReplayOptions(1, 5, 2.0), (0, 3))
    replay.add(sampled(SHAPED, [1, 0, 0, 0, 1, 1]), 1)
    tensors = replay.tensors()
    for state, broken in (
        ({"steps": [1]}, tensors),
        ({"steps": [1, 1, 1]}, {name: x for name, x in tensors.items() if name != "1.tokens"}),
        ({"steps": [1, 1, 1]}, tensors | {"0.mask": tensors["0.mask"][:1]}),
    ):
        with pytest.raises(CheckpointError, match="damaged"):
            Replay(ReplayOptions(1, 5, 2.0), (0, 3)).load(state, broken)


# ---- whole runs


def train(folder: Path, *words: str) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    score = "sum(c.isdigit() for c in text) / 8 + len(set(text)) / 80"  # differs between nearly all samples
    Path(folder.parent / "rewards.py").write_text(f"def digits(completions):\n    return [{score} for text in completions]\n")
    composed = compose(
        [
            *("model=tiny_random", "track=quiet", "hardware=cpu", "hardware.threads=1", "reward=custom", "prompts_per_step=4"),
            *("G=4", "max_new_tokens=8", "data.train=24", "data.heldout=6", "eval.start=false", "eval.max_items=1"),
            *("optim.warmup_steps=0", "checkpoint.export=false", f"reward.path={folder.parent / 'rewards.py'}:digits", *words),
        ]
    )
    run.train(config.build(composed), config.resolved(composed), set(), folder)
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if row["kind"] == "train"]


@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_a_run_with_replay(tmp_path: Path, algo: str) -> None:
    """What is said of the policy is said of its own samples: with replay the first two steps' numbers are what they were."""
    words = (f"algo={algo}", "algo.minibatch_count=1", "lr=3e-3", "steps=3")
    plain = train(tmp_path / "plain", *words)
    found = train(tmp_path / "run", *words, "experience.replay.groups=2", "experience.replay.capacity=6")
    assert "replay/frac" not in found[0]
    assert [row["replay/frac"] for row in found[1:]] == [pytest.approx(2 / 6)] * 2
    assert found[1]["replay/age_mean"] == 1 and 1 <= found[2]["replay/age_mean"] <= 2
    assert 0.3 < found[1]["replay/weight_mean"] < 2 and 1 < found[1]["replay/weight_max"] <= 2
    for name in ("entropy/mean", "mismatch/abs_max", "kl/k1", "reward/mean", "length/mean"):
        assert found[1][name] == pytest.approx(plain[1][name], rel=1e-4, abs=1e-6), name
    assert found[1]["mismatch/abs_max"] < 1e-4  # with older rows it would be that of a whole step
    assert found[1]["grad/norm"] != pytest.approx(plain[1]["grad/norm"], rel=1e-3)
    assert found[1]["tokens"] == plain[1]["tokens"]  # replayed tokens cost no sampling
    saved = checkpoint.load(tmp_path / "run/checkpoints/step-000003")
    assert len(saved.progress["source"]["replay"]["steps"]) == 6
    assert saved.source["5.tokens"].shape[0] == 4
    assert "pi_old / pi_behaviour, 2" in json.loads((tmp_path / "run/run.json").read_text())["formula"]
    assert not checkpoint.load(tmp_path / "plain/checkpoints/step-000003").source


def test_minibatches_of_a_step_with_few_groups(tmp_path: Path) -> None:
    """A reward whose outcome is hardly ever different leaves fewer rows than there are minibatches."""
    words = ("experience.dynamic_sampling=true", "algo.minibatch_count=16", "experience.max_rounds=1", "steps=2")
    assert all(row["signal/rounds"] == 1 for row in train(tmp_path / "run", *words))


def test_an_algorithm_without_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_exp.algos.grpo.GRPO.weighs_replay", False)
    with pytest.raises(ConfigError, match="has no importance weights"):
        config.build(compose(["model=tiny_random", "experience.replay.groups=1"]))
