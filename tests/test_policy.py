"""The policy against plain transformers: one row at a time, without padding, shared prompts, caches or chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toy_policy import CPU, batch, examples, gradients, llama, move, options, plain_logp, policy, prompts, qwen

from grpo_exp import head as head_module
from grpo_exp import tiny
from grpo_exp.batch import TokenBatch
from grpo_exp.errors import ModelError
from grpo_exp.head import Head
from grpo_exp.ops import pack, unpack
from grpo_exp.policy import Policy
from grpo_exp.trunk import Trunk

# peft 0.21 asks transformers 5.24 by a name that goes away in its version 6; model.load silences this in a run
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

VOCABULARY = len(tiny.tokenizer())
ARCHITECTURES = ("llama", "qwen", "lora")
CLOSE = {"rtol": 3e-6, "atol": 1e-5}
WAYS = ("stream", "shared", "whole")


def take(model: Policy, way: str) -> None:
    """Have the model compute as a stream, by modules with prompts shared, or by modules row by row."""
    assert model.streams
    model.streams, model.share_prompt = way == "stream", way == "shared"


def weights(rows: TokenBatch) -> torch.Tensor:
    """Different weights for all tokens, so that a gradient that is swapped between rows or places shows."""
    return torch.linspace(-1, 1, rows.tokens.numel()).view(rows.tokens.shape)


def assert_same_gradients(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys() and one
    for name in one:
        assert one[name].abs().max() > 0, name
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("way", WAYS)
def test_log_probs_and_gradients_are_those_of_plain_transformers(architecture: str, way: str) -> None:
    model = policy(architecture)
    take(model, way)
    rows = batch(model)
    expected = plain_logp(model, rows, 0.7)
    expected_gradients = gradients(model, (expected * weights(rows)).sum())
    got = model.forward(rows, 0.7, train=True)
    torch.testing.assert_close(got.logp, expected.detach(), **CLOSE)
    assert got.logp.dtype == torch.float32
    assert not got.logp[~rows.mask].any() and not got.entropy[~rows.mask].any()
    assert_same_gradients(gradients(model, (got.logp * weights(rows)).sum()), expected_gradients)


def test_entropy_is_that_of_the_distribution_sampled_from() -> None:
    model = policy("qwen")
    rows = batch(model)
    entropy = model.forward(rows, 0.7).entropy
    prompt = rows.prompt_tokens[0][rows.prompt_mask[0]]  # row 3 is the second of group 0
    logits = model.model(input_ids=torch.cat([prompt, rows.tokens[3]])[None]).logits[0, len(prompt) - 1 : -1] / 0.7
    torch.testing.assert_close(entropy[3], torch.distributions.Categorical(logits=logits).entropy(), **CLOSE)
    assert not entropy.requires_grad


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("way", WAYS)
def test_padding_changes_nothing(architecture: str, way: str) -> None:
    model = policy(architecture)
    take(model, way)
    rows = batch(model)
    three, two = torch.full((3, 3), 11), torch.full((6, 2), 12)
    padded = rows.with_(
        prompt_tokens=torch.cat([three, rows.prompt_tokens], 1),
        prompt_mask=torch.cat([torch.zeros_like(three, dtype=torch.bool), rows.prompt_mask], 1),
        tokens=torch.cat([rows.tokens, two], 1),
        mask=torch.cat([rows.mask, torch.zeros_like(two, dtype=torch.bool)], 1),
        loss_mask=torch.cat([rows.mask, torch.zeros_like(two, dtype=torch.bool)], 1),
    )
    one, other = model.forward(rows, 1.0), model.forward(padded, 1.0)
    torch.testing.assert_close(other.logp[:, :6], one.logp, **CLOSE)
    assert not other.logp[:, 6:].any()
    assert_same_gradients(
        gradients(model, (one.logp * weights(rows)).sum()), gradients(model, (other.logp[:, :6] * weights(rows)).sum())
    )


def test_what_stands_in_the_padding_changes_nothing() -> None:
    model = policy("qwen")
    rows = batch(model)
    other = rows.with_(
        tokens=rows.tokens.masked_fill(~rows.mask, 2), prompt_tokens=rows.prompt_tokens.masked_fill(~rows.prompt_mask, 33)
    )
    torch.testing.assert_close(model.forward(other, 1.0).logp, model.forward(rows, 1.0).logp, **CLOSE)


def test_rows_do_not_see_each_other_and_order_does_not_matter() -> None:
    model = policy("llama")
    rows = batch(model)
    expected = model.forward(rows, 1.0).logp
    order = torch.tensor([4, 0, 5, 2, 3, 1])
    torch.testing.assert_close(model.forward(rows.rows(order), 1.0).logp, expected[order], **CLOSE)
    for index, micro in rows.split(2):
        torch.testing.assert_close(model.forward(micro, 1.0).logp, expected[index, : micro.tokens.shape[1]], **CLOSE)


def test_completions_of_one_token() -> None:
    model = policy("llama")
    rows = batch(model, lengths=(1,) * 6)
    torch.testing.assert_close(model.forward(rows, 1.0).logp, plain_logp(model, rows).detach(), **CLOSE)


def test_temperature_divides_the_logits() -> None:
    model = policy("llama")
    rows = batch(model)
    for temperature in (0.3, 1.0, 2.0):
        torch.testing.assert_close(
            model.forward(rows, temperature).logp, plain_logp(model, rows, temperature).detach(), **CLOSE
        )
    flat = model.forward(rows, 1e6).logp[rows.mask]
    torch.testing.assert_close(
        flat, torch.full_like(flat, -torch.log(torch.tensor(float(VOCABULARY))).item()), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("tokens_at_once", [1, 5, 10**6])
def test_the_head_in_chunks_gives_the_same(tokens_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = policy("qwen")
    rows = batch(model)
    support = (torch.rand(6, 6, VOCABULARY, generator=torch.Generator().manual_seed(2)) < 0.5).scatter(
        -1, rows.tokens[..., None], True
    )
    rows = rows.with_(support=pack(support))
    whole = model.forward(rows, 0.7, train=True)
    expected = gradients(model, (whole.logp * weights(rows)).sum())
    sizes: list[int] = []
    logits = Head.logits

    def counted(self: Head, hidden: torch.Tensor) -> torch.Tensor:
        sizes.append(len(hidden))
        return logits(self, hidden)

    monkeypatch.setattr(Head, "logits", counted)
    monkeypatch.setattr(head_module, "ELEMENTS", tokens_at_once * VOCABULARY + 1)
    chunked = model.forward(rows, 0.7, train=True)
    assert max(sizes) == min(tokens_at_once, int(rows.mask.sum()))
    torch.testing.assert_close(chunked.logp, whole.logp.detach(), rtol=1e-6, atol=3e-6)
    torch.testing.assert_close(chunked.entropy, whole.entropy, rtol=1e-6, atol=3e-6)
    assert_same_gradients(gradients(model, (chunked.logp * weights(rows)).sum()), expected)


def test_support_renormalises() -> None:
    """Where sampling kept few tokens, log-probs are those of the distribution on them."""
    model = policy("llama")
    rows = batch(model)
    kept = torch.zeros(6, 6, VOCABULARY, dtype=torch.bool).scatter(-1, rows.tokens[..., None], True)
    alone = model.forward(rows.with_(support=pack(kept)), 1.0).logp
    assert alone[rows.mask].abs().max() < 1e-6  # nothing but the token itself
    everything = model.forward(rows.with_(support=pack(torch.ones_like(kept))), 1.0).logp
    torch.testing.assert_close(everything, model.forward(rows, 1.0).logp)
    kept[..., 40] = True
    both = model.forward(rows.with_(support=pack(kept)), 1.0).logp
    mask = rows.mask & (rows.tokens != 40)
    full = model.forward(rows, 1.0).logp
    other = model.forward(
        rows.with_(tokens=torch.where(rows.mask, rows.tokens, 4)), 1.0
    ).logp  # rubbish in padding does not matter
    torch.testing.assert_close(other, full, **CLOSE)
    assert (both[mask] > full[mask]).all() and (both[mask] < 0).all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bfloat16_runs_near_float32(architecture: str) -> None:
    """Trained weights and log-probs stay in float32; only matrix products are rounded."""
    exact, rounded = policy(architecture), policy(architecture, torch.bfloat16)
    rows = batch(exact)
    one, other = exact.forward(rows, 1.0, train=True).logp, rounded.forward(rows, 1.0, train=True).logp
    assert other.dtype == torch.float32
    gap = (one - other)[rows.mask].abs()
    assert 0 < gap.mean() < 0.1
    found = gradients(rounded, other.sum())
    assert all(
        p.dtype == torch.float32 and g.dtype == torch.float32 and torch.isfinite(g).all()
        for p, g in zip(rounded.trainable(), found.values(), strict=True)
    )


@pytest.mark.parametrize("forward", ["stream", "modules"])
@pytest.mark.parametrize("architecture", ["qwen", "lora"])
def test_gradient_checkpointing_computes_layers_again_and_gives_the_same(
    architecture: str, forward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, saving = policy(architecture), policy(architecture, gradient_checkpointing=True, forward=forward)
    calls = []
    if forward == "modules":
        saving.model.get_decoder().layers[0].input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    else:
        layer = Trunk._layer

        def counted(self: Trunk, index: int, *given: Any) -> torch.Tensor:
            calls.extend([1] * (index == 0 and self.checkpointing))
            return layer(self, index, *given)

        monkeypatch.setattr(Trunk, "_layer", counted)
    rows = batch(plain)
    one, other = plain.forward(rows, 1.0, train=True).logp, saving.forward(rows, 1.0, train=True).logp
    assert len(calls) == 1
    torch.testing.assert_close(other, one, **CLOSE)
    assert_same_gradients(gradients(plain, (one * weights(rows)).sum()), gradients(saving, (other * weights(rows)).sum()))
    assert len(calls) == 2  # once more on the way back


def test_dropout_acts_while_training_alone() -> None:
    model = policy("lora", lora_dropout=0.5)
    rows = batch(model)
    still = model.forward(rows, 1.0).logp
    assert torch.equal(model.forward(rows, 1.0).logp, still)
    assert not torch.allclose(model.forward(rows, 1.0, train=True).logp, still, atol=1e-3)
    assert torch.equal(model.forward(rows, 1.0).logp, still)  # off again afterwards


# ---- the reference


def start_adapter(folder: Path) -> str:
    """An adapter that was trained a bit, saved by peft."""
    made = policy("lora")
    made.export(folder)
    return str(folder)


def with_reference(kind: str, folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Policy:
    torch.manual_seed(1)
    adapter = {"adapter": "none" if kind == "copy" else "lora", "start_adapter": None}
    if kind == "start_adapter":
        adapter["start_adapter"] = start_adapter(folder)
    made = Policy(options(**adapter, **changes), qwen(), tiny.tokenizer(), CPU, dtype)
    made.freeze_reference()
    return made


def reference_logp(model: Policy, rows: TokenBatch) -> torch.Tensor:
    with torch.no_grad(), model.reference():
        return model.forward(rows, 1.0).logp


@pytest.mark.parametrize("kind", ["copy", "lora", "start_adapter"])
def test_the_reference_is_the_starting_policy_and_stays_so(kind: str, tmp_path: Path) -> None:
    model = with_reference(kind, tmp_path)
    rows = batch(model)
    trainable = model.trainable()
    names, everything = list(model.state()), {name: p.detach().clone() for name, p in model.model.named_parameters()}
    start = model.forward(rows, 1.0).logp
    assert torch.equal(reference_logp(model, rows), start.detach())  # KL exactly 0
    if kind == "start_adapter":
        torch.testing.assert_close(start.detach(), plain_logp(policy("lora"), rows).detach(), **CLOSE)
        torch.manual_seed(0)
        assert not torch.allclose(start.detach(), policy("qwen").forward(rows, 1.0).logp, atol=0.01)  # not the bare model

    optimizer = torch.optim.SGD(trainable, lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        logp = model.forward(rows, 1.0, train=True).logp
        kl = (logp - reference_logp(model, rows))[rows.mask].square().sum()
        (kl - logp.sum() / 10).backward()
        optimizer.step()

    torch.testing.assert_close(reference_logp(model, rows), start.detach(), rtol=0, atol=0)
    assert (model.forward(rows, 1.0).logp - start).abs().max() > 0.01  # the policy did move
    # Leaving the reference restored what learns, object for object.
    assert [id(p) for p in model.trainable()] == [id(p) for p in trainable]
    assert list(model.state()) == names
    changed = {name for name, p in model.model.named_parameters() if not torch.equal(p, everything[name])}
    assert changed == set(names)
    assert all(p.grad is None for name, p in model.model.named_parameters() if name not in names)


@pytest.mark.parametrize("kind", ["copy", "lora", "start_adapter"])
@pytest.mark.parametrize(("dtype", "saving"), [(torch.float32, True), (torch.bfloat16, False), (torch.bfloat16, True)])
def test_kl_is_exactly_zero_before_the_first_update(kind: str, dtype: torch.dtype, saving: bool, tmp_path: Path) -> None:
    """Between the reference without gradients and the training forward, rounded or recomputed as it may be."""
    model = with_reference(kind, tmp_path, dtype, gradient_checkpointing=saving)
    rows = batch(model)
    assert torch.equal(reference_logp(model, rows), model.forward(rows, 1.0, train=True).logp.detach())


@pytest.mark.parametrize("kind", ["copy", "lora", "start_adapter"])
def test_an_error_within_the_reference_leaves_the_policy_whole(kind: str, tmp_path: Path) -> None:
    model = with_reference(kind, tmp_path)
    move(model, 0.1)
    rows, names = batch(model), list(model.state())
    before = model.forward(rows, 1.0).logp
    with pytest.raises(ZeroDivisionError), model.reference():
        raise ZeroDivisionError
    assert torch.equal(model.forward(rows, 1.0).logp, before)
    assert list(model.state()) == names


def test_gradients_never_reach_a_frozen_copy() -> None:
    model = with_reference("copy", Path())
    rows = batch(model)
    with model.reference():
        assert not model.forward(rows, 1.0, train=True).logp.requires_grad


def test_a_reference_that_was_not_frozen_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="freeze_reference"), policy().reference():
        pass


# ---- text, end of sequence, files


def test_several_ends_of_sequence_the_tokenizers_first() -> None:
    model = llama()
    model.generation_config.eos_token_id = [5, 2, 7]
    assert Policy(options(), model, tiny.tokenizer(), CPU, torch.float32).eos_ids == [2, 5, 7]
    tokenizer = tiny.tokenizer()
    tokenizer.eos_token = None
    assert Policy(options(), model, tokenizer, CPU, torch.float32).eos_ids == [5, 2, 7]
    model.generation_config.eos_token_id = None
    with pytest.raises(ModelError, match="end-of-sequence"):
        Policy(options(), model, tokenizer, CPU, torch.float32)


def test_padding_may_be_the_end_of_sequence() -> None:
    """Masks come from lengths: a sampled end of sequence counts, the same token as padding does not."""
    tokenizer = tiny.tokenizer()
    tokenizer.pad_token = None
    model = Policy(options(), llama(), tokenizer, CPU, torch.float32)
    assert model.pad_id == model.eos_ids[0] == 2
    asked = prompts(model)
    assert asked.mask.sum(-1).tolist() == [6, 5, 13]
    assert (asked.tokens[~asked.mask] == 2).all()
    rows = batch(model)
    rows = rows.with_(tokens=rows.tokens.scatter(1, (rows.mask.sum(-1) - 1)[:, None], 2).masked_fill(~rows.mask, 2))
    logp = model.forward(rows, 1.0).logp
    assert (logp[rows.mask] < 0).all()
    torch.testing.assert_close(logp, plain_logp(model, rows).detach(), **CLOSE)


def test_prompts_and_targets_keep_their_seam() -> None:
    model = policy()
    asked = model.prompts(examples("1+1=?", "12"))
    assert asked.texts == ["1+1=?", "12"]
    assert asked.mask.tolist() == [[True] * 5, [False] * 3 + [True] * 2]
    assert model.decode(asked.tokens.tolist()) == ["1+1=?", "12"]
    target = model.encode_target("2 <answer>2</answer>")
    assert target[-1] == 2 and target.count(2) == 1
    assert model.decode([target]) == ["2 <answer>2</answer>"]
    assert len(target) == 6  # 2, space, tag, 2, tag, end


@pytest.mark.parametrize(
    ("template", "has_one", "expected", "special"),
    [
        ("auto", True, "<chat>hi there", False),
        ("auto", False, "hi\nthere", True),
        ("plain", True, "hi\nthere", True),
        ("chat", True, "<chat>hi there", False),
    ],
)
def test_messages_become_text(template: str, has_one: bool, expected: str, special: bool) -> None:
    """A chat template brings its own special tokens; plain text gets the tokenizer's."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    if has_one:
        tokenizer.chat_template = (
            "<chat>{% for m in messages %}{{ m['content'] }}{% if not loop.last %} {% endif %}{% endfor %}"
        )
    model = Policy(options(template=template), llama(), tokenizer, CPU, torch.float32)
    messages = [{"role": "system", "content": "hi"}, {"role": "user", "content": "there"}]
    text = model.render(messages)
    assert text == expected
    assert (model.encode_prompt(messages, text)[0] == 1) == special
    assert model.encode_prompt("hi", model.render("hi"))[0] == 1


def test_a_chat_template_that_is_missing_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"model\.template=plain"):
        policy(template="chat").render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("vocabulary", [1, 7, 8, 9, VOCABULARY])
def test_sets_of_tokens_as_bits(vocabulary: int) -> None:
    kept = torch.rand(3, 4, vocabulary, generator=torch.Generator().manual_seed(0)) < 0.5
    bits = pack(kept)
    assert bits.dtype == torch.uint8 and bits.shape == (3, 4, -(-vocabulary // 8))
    assert torch.equal(unpack(bits, vocabulary), kept)
    assert unpack(pack(torch.ones(vocabulary, dtype=torch.bool)), vocabulary).all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_survive_a_round_trip(architecture: str) -> None:
    model, other = policy(architecture), policy(architecture)
    move(other, 0.2)
    rows = batch(model)
    assert not torch.allclose(other.forward(rows, 1.0).logp, model.forward(rows, 1.0).logp, atol=1e-3)
    other.load_state({name: value.clone() for name, value in model.state().items()})
    assert torch.equal(other.forward(rows, 1.0).logp, model.forward(rows, 1.0).logp)
    with pytest.raises(ModelError, match="do not fit"):
        other.load_state({"x": torch.zeros(1)})


def test_sizes_count_what_learns() -> None:
    total, trainable = policy("qwen").sizes()
    assert total == trainable == sum(p.numel() for p in qwen().parameters())
    adapted_total, adapter = policy("lora").sizes()
    assert adapted_total == total + adapter
    assert adapter == 2 * 4 * (3 * (32 + 64) + (32 + 32) * 2 + 2 * (32 + 16))  # two layers, rank 4: MLP, q and o, k and v


def test_an_architecture_that_computes_its_logits_in_another_way_is_refused() -> None:
    model: Any = llama()
    forward = model.forward

    def scaled(*args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        out.logits = out.logits * 3
        return out

    model.forward = scaled
    with pytest.raises(ModelError, match="computes its logits"):
        Policy(options(), model, tiny.tokenizer(), CPU, torch.float32)
