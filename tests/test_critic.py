"""The critic: its first values, whose gradients it moves, and what is kept of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from toy_policy import CPU, batch, move, options, policy, qwen

from grpo_exp import tiny
from grpo_exp.batch import TokenBatch
from grpo_exp.critic import CriticOptions
from grpo_exp.errors import ModelError
from grpo_exp.policy import Policy

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

KINDS = ("copy", "lora", "start_adapter")


def critic(trunk: str = "own") -> CriticOptions:
    return CriticOptions(trunk=trunk, lr_factor=2.0, warmup_steps=0, clip=0.2, coef=0.5)


def with_critic(kind: str, trunk: str, folder: Path, head: float = 0.5, **changes: Any) -> Policy:
    """A policy with a critic whose head is no longer at its start; `start_adapter` has the adapter "reference" beside."""
    adapter: dict[str, Any] = {"adapter": "none" if kind == "copy" else "lora"}
    if kind == "start_adapter":
        policy("lora").export(folder)
        adapter["start_adapter"] = str(folder)
    torch.manual_seed(1)
    made = Policy(options(**adapter, **changes), qwen(), tiny.tokenizer(), CPU, torch.float32)
    if kind == "lora":
        move(made, 0.1)  # a fresh adapter does nothing, and its first matrix has no gradient
    made.attach_critic(critic(trunk))
    assert made.critic is not None
    with torch.no_grad():
        made.critic.head.weight.normal_(0, head, generator=torch.Generator().manual_seed(2))
    return made


def weights(rows: TokenBatch) -> Tensor:
    return torch.linspace(-1, 1, rows.tokens.numel()).view(rows.tokens.shape)


def gradients(made: Policy, loss: Tensor) -> dict[str, Tensor]:
    """Gradients of everything that learns, policy and critic, by the names of `state`."""
    assert made.critic is not None
    named = dict([*made.model.named_parameters(), *made.critic.named_parameters("critic")])
    for parameter in named.values():
        parameter.grad = None
    loss.backward()
    return {name: p.grad.clone() for name, p in named.items() if p.grad is not None}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys() and one
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def policy_loss(out: Any, rows: TokenBatch) -> Tensor:
    loss: Tensor = (out.logp * weights(rows)).sum()
    return loss


def value_loss(values: Tensor | None, rows: TokenBatch) -> Tensor:
    assert values is not None
    return ((values - 0.7 * weights(rows)).square() * rows.mask).sum() / 100


def plain_values(made: Policy, rows: TokenBatch, decoder: Any) -> Tensor:
    """Row by row, without padding and shared prompts: the head on the state before each token."""
    out = torch.zeros(rows.tokens.shape)
    assert made.critic is not None
    for row, g in enumerate(rows.group.tolist()):
        prompt = rows.prompt_tokens[g][rows.prompt_mask[g]]
        completion = rows.tokens[row][rows.mask[row]]
        hidden = decoder(input_ids=torch.cat([prompt, completion])[None], use_cache=False).last_hidden_state[0]
        out[row, : len(completion)] = (hidden[len(prompt) - 1 : -1] * made.critic.head.weight).sum(-1)
    return out


@pytest.mark.parametrize("trunk", ["own", "shared", "detached"])
def test_the_first_values_are_exactly_0(trunk: str) -> None:
    made = policy("qwen")
    assert made.forward(batch(made), 1.0).values is None
    before = made.forward(batch(made), 1.0).logp
    made.attach_critic(critic(trunk))
    rows = batch(made)
    out = made.forward(rows, 1.0, train=True)
    assert out.values is not None and not out.values.any() and out.values.shape == rows.tokens.shape
    assert torch.equal(out.logp, before)
    assert gradients(made, (out.values * weights(rows)).sum())["critic.head.weight"].abs().max() > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("saving", [False, True])
@pytest.mark.parametrize("trunk", ["own", "shared"])
def test_values_are_those_of_the_state_before_each_token(kind: str, saving: bool, trunk: str, tmp_path: Path) -> None:
    """Also with a trunk that went its own way, with the prompt shared and with layers recomputed."""
    made = with_critic(kind, trunk, tmp_path, gradient_checkpointing=saving)
    assert made.critic is not None
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in made.critic.trainable():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    rows = batch(made)
    decoder = made.critic.trunk if trunk == "own" else made._base.get_decoder()
    assert decoder is not None
    decoder.eval()
    got = made.forward(rows, 1.0, train=True)
    expected = plain_values(made, rows, decoder)
    torch.testing.assert_close(got.values, expected, rtol=0, atol=2e-5)
    assert_same(gradients(made, value_loss(got.values, rows)), gradients(made, value_loss(expected, rows)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("saving", [False, True])
def test_both_gradients_survive_one_backward_pass(kind: str, saving: bool, tmp_path: Path) -> None:
    """An own critic leaves the policy's gradient what it is without critic, and the policy the critic's."""
    made = with_critic(kind, "own", tmp_path, gradient_checkpointing=saving)
    made.freeze_reference()
    rows = batch(made)
    with torch.no_grad(), made.reference():  # as in a step: it switches adapters
        assert made.forward(rows, 1.0).values is None
    out = made.forward(rows, 1.0, train=True)
    both = gradients(made, policy_loss(out, rows) + value_loss(out.values, rows))
    of_policy = gradients(made, policy_loss(made.forward(rows, 1.0, train=True), rows))
    of_critic = gradients(made, value_loss(made.forward(rows, 1.0, train=True).values, rows))
    assert both.keys() == made.state().keys()
    assert all(g.abs().max() > 0 for g in both.values())
    assert {name for name, g in of_policy.items() if g.any()} == {name for name in both if not name.startswith("critic.")}
    assert {name for name, g in of_critic.items() if g.any()} == {name for name in both if name.startswith("critic.")}
    for name, gradient in both.items():
        part = of_critic if name.startswith("critic.") else of_policy
        torch.testing.assert_close(gradient, part[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_detached_head_leaves_the_trunk_alone_and_a_shared_one_does_not(kind: str, tmp_path: Path) -> None:
    found = {}
    for trunk in ("detached", "shared"):
        made = with_critic(kind, trunk, tmp_path)
        rows = batch(made)
        out = made.forward(rows, 1.0, train=True)
        alone = gradients(made, policy_loss(out, rows))
        out = made.forward(rows, 1.0, train=True)
        found[trunk] = gradients(made, policy_loss(out, rows) + value_loss(out.values, rows))
        differ = {name for name in alone if not torch.equal(alone[name], found[trunk][name])}
        assert differ == (set() if trunk == "detached" else {name for name in alone if "lm_head" not in name})
    assert torch.equal(found["detached"]["critic.head.weight"], found["shared"]["critic.head.weight"])


@pytest.mark.parametrize("kind", KINDS)
def test_an_own_critic_starts_as_the_policy_and_costs_what_learns(kind: str, tmp_path: Path) -> None:
    made = with_critic(kind, "own", tmp_path)
    assert made.critic is not None and made.critic.trunk is not None
    theirs = dict(made._base.get_decoder().named_parameters())
    for name, parameter in made.critic.trunk.named_parameters():
        assert torch.equal(parameter, theirs[name])
        shared = parameter.data_ptr() == theirs[name].data_ptr()
        assert shared == (not parameter.requires_grad), name
    trunk = sum(p.numel() for p in made._base.get_decoder().parameters() if p.requires_grad)
    assert sum(p.numel() for p in made.critic.trainable()) == trunk + 32
    assert made.critic.head.bias is None and made.critic.head.weight.dtype == torch.float32
    assert {id(p) for p in made.trainable()}.isdisjoint(id(p) for p in made.critic.trainable())


def test_values_are_float32_where_the_model_is_not() -> None:
    made = policy("lora", torch.bfloat16)
    made.attach_critic(critic("own"))
    assert made.critic is not None
    with torch.no_grad():
        made.critic.head.weight.fill_(0.1)
    out = made.forward(batch(made), 1.0, train=True)
    assert out.values is not None and out.values.dtype == torch.float32
    hidden = torch.full((1, 32), 1 + 2**-12)  # lost in bfloat16
    with made.autocast():
        assert made.critic(hidden).item() == pytest.approx(3.2 * (1 + 2**-12), abs=1e-5)


@pytest.mark.parametrize("trunk", ["own", "shared", "detached"])
def test_dropout_acts_while_training_alone(trunk: str) -> None:
    made = policy("lora", lora_dropout=0.5)
    made.attach_critic(critic(trunk))
    assert made.critic is not None
    with torch.no_grad():
        made.critic.head.weight.normal_()
    rows = batch(made)
    still, train = made.forward(rows, 1.0), made.forward(rows, 1.0, train=True)
    again = made.forward(rows, 1.0)
    assert still.values is not None and train.values is not None and again.values is not None
    assert torch.equal(again.values, still.values)
    assert not torch.allclose(train.values, still.values, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_survive_a_round_trip_and_an_evaluation_needs_no_critic(kind: str, tmp_path: Path) -> None:
    made, other = (with_critic(kind, "own", tmp_path, head) for head in (0.5, 0.1))
    move(made, 0.1, seed=5)
    rows = batch(made)
    saved = {name: value.clone() for name, value in made.state().items()}
    other.load_state(saved)
    one, two = made.forward(rows, 1.0), other.forward(rows, 1.0)
    assert one.values is not None and two.values is not None
    assert torch.equal(one.values, two.values) and torch.equal(one.logp, two.logp)
    other.critic = None
    move(other, 0.1)
    other.load_state(saved)
    assert torch.equal(other.forward(rows, 1.0).logp, one.logp)
    with pytest.raises(ModelError, match="do not fit"):
        made.load_state({name: value for name, value in saved.items() if not name.startswith("critic.")})


@pytest.mark.parametrize("kind", ["copy", "lora"])
def test_an_export_has_no_critic_and_loads_without_this_package(kind: str, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    made = with_critic(kind, "own", tmp_path)
    rows = batch(made)
    plain = [rows.prompt_tokens[:1], rows.prompt_mask[:1].long()]
    made.export(tmp_path / "export")
    (file,) = (tmp_path / "export").glob("*.safetensors")
    assert not [name for name in load_file(file) if "critic" in name or "value" in name or "score" in name]
    if kind == "lora":
        loaded = PeftModel.from_pretrained(qwen(), str(tmp_path / "export"))
    else:
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    with torch.no_grad():
        theirs, ours = (m.eval()(*plain).logits for m in (loaded, made.model))
    torch.testing.assert_close(theirs[0, -1], ours[0, -1], rtol=0, atol=1e-5)
