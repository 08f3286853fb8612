"""Decoders over a stream against transformers' own modules: architectures, adapters, what is left to the modules, decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toy_policy import CPU, batch, gradients, llama, options, policy, prompts, qwen

from grpo_exp import tiny
from grpo_exp.errors import ModelError
from grpo_exp.policy import Policy
from grpo_exp.rollout.states import ModuleState, StreamState, beginning
from grpo_exp.trunk import fits

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "initializer_range": 0.25, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES |= {"vocab_size": len(tiny.tokenizer())}


def made(name: str, **more: Any) -> Any:
    import transformers

    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**SIZES, **more)
    return getattr(transformers, f"{name}ForCausalLM")(config)


MODELS = {
    "llama": llama,
    "llama, biases": lambda: made("Llama", attention_bias=True, mlp_bias=True),
    "llama, positions stretched": lambda: made(
        "Llama",
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    "qwen2": qwen,
    "qwen3": lambda: made("Qwen3", head_dim=12),
    "mistral": lambda: made("Mistral", sliding_window=None),
}
OTHERS = {
    "gelu": lambda: made("Llama", hidden_act="gelu"),
    "a window": lambda: made("Mistral", sliding_window=4),
    "some windows": lambda: made("Qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "another kind": lambda: made("Granite"),
    "positions by length": lambda: made(
        "Llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, max_position_embeddings=16
    ),
}


def loaded(model: Any, **changes: Any) -> Policy:
    return Policy(options(**changes), model, tiny.tokenizer(), CPU, torch.float32)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_it_computes_what_the_modules_compute(name: str, adapter: str) -> None:
    model = loaded(MODELS[name](), adapter=adapter)
    assert model.streams and fits(model.body)
    for parameter in model.trainable():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    rows = batch(model)
    rows.tokens[0, 1] = model.pad_id  # which a model may write too, and whose embedding does not learn
    found = []
    for model.streams in (True, False):
        out = model.forward(rows, 0.8, train=True)
        found.append((out.logp.detach(), out.entropy, gradients(model, (out.logp * (rows.tokens % 7 - 3)).sum())))
    (logp, entropy, grads), (other_logp, other_entropy, other_grads) = found
    torch.testing.assert_close(logp, other_logp, rtol=3e-6, atol=2e-5)
    torch.testing.assert_close(entropy, other_entropy, rtol=3e-6, atol=2e-5)
    one, other = (torch.cat([x.flatten() for x in g.values()]) for g in (grads, other_grads))
    assert (one - other).norm() < 1e-5 * other.norm()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_decoding_goes_the_same_way(name: str, adapter: str) -> None:
    """Hidden states after prompts of several lengths, tokens one by one, and rows that leave."""
    model = loaded(MODELS[name](), adapter=adapter)
    for parameter in model.trainable():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    weights = {key: value.clone() for key, value in model.model.state_dict().items()}
    asked = prompts(model)
    local = torch.tensor([0, 0, 1, 1])
    with torch.no_grad():
        states = []
        for model.streams in (True, False):
            states.append(beginning(model)(model, asked.tokens, asked.mask, local, 6))
        assert [type(state) for state in states] == [StreamState, ModuleState]
        for token in range(6):
            one, other = (state.hidden for state in states)
            torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-5)
            if token == 3:
                local = local[torch.tensor([0, 2, 3])]
                for state in states:
                    state.keep(torch.tensor([0, 2, 3]))
            if token < 5:
                for state in states:
                    state.advance(torch.arange(len(local)) + 10 + token)
    assert all(torch.equal(value, weights[key]) for key, value in model.model.state_dict().items())


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_to_the_modules(name: str) -> None:
    model = loaded(OTHERS[name]())
    assert not model.streams
    with pytest.raises(ModelError, match=r"model\.forward=stream, but .*; use model\.forward=auto"):
        loaded(OTHERS[name](), forward="stream")


def test_a_model_that_only_looks_the_same_is_left_to_the_modules() -> None:
    """Known by its class, but its layers do something else: told by the numbers."""
    model = llama()
    model.model.layers[0].mlp.act_fn = torch.nn.Tanh()
    assert not loaded(model).streams


def test_the_modules_on_request() -> None:
    assert policy("llama").streams and not policy("llama", forward="modules").streams


@pytest.mark.filterwarnings("ignore")  # peft's, of what it cannot merge or tie
def test_other_forms_of_lora_are_left_to_the_modules() -> None:
    from peft import LoraConfig, get_peft_model

    assert fits(get_peft_model(llama(), LoraConfig(r=2, target_modules="all-linear")).get_base_model().get_decoder())
    projections = ["q_proj", "down_proj"]
    for config in (
        LoraConfig(r=2, target_modules="all-linear", use_dora=True),
        LoraConfig(r=2, target_modules="all-linear", lora_bias=True),
        LoraConfig(r=2, target_modules=[*projections, "embed_tokens"]),
        LoraConfig(r=2, target_modules=projections, modules_to_save=["norm"]),
        LoraConfig(r=2, target_modules=projections, modules_to_save=["input_layernorm"]),
    ):
        assert not fits(get_peft_model(llama(), config).get_base_model().get_decoder()), config
