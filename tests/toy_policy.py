"""Small models made in code, with weights so large that positions, masks and neighbours matter, and batches for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpo_exp import tiny
from grpo_exp.batch import Example, Prompts, TokenBatch
from grpo_exp.model import ModelOptions
from grpo_exp.policy import Policy

CPU = torch.device("cpu")

torch.set_num_threads(1)  # models this small gain nothing from threads and lose a lot where others compute too


def options(**changes: Any) -> ModelOptions:
    values: dict[str, Any] = {
        "name": "toy",
        "source": "random",
        "path": None,
        "revision": None,
        "package": None,
        "gguf_file": None,
        "trust_remote_code": False,
        "dtype": "float32",
        "quantize": "none",
        "template": "auto",
        "adapter": "none",
        "start_adapter": None,
        "lora_rank": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "lora_targets": ["all-linear"],
        "max_new_tokens": 8,
        "gradient_checkpointing": False,
        "forward": "auto",
        "lr_rl": 1e-3,
        "lr_sft": 1e-3,
    }
    return ModelOptions(**(values | changes))


def llama() -> Any:
    """The embedded model's architecture, smaller, its head tied to the embeddings."""
    from transformers import LlamaForCausalLM

    config = tiny.config(len(tiny.tokenizer()))
    config.update({"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "initializer_range": 0.25})
    config.update({"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8})
    torch.manual_seed(7)
    return LlamaForCausalLM(config)


def qwen() -> Any:
    """Two query heads for each key/value head, biases, and a head of its own."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(8)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tiny.tokenizer()),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            initializer_range=0.25,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    )


def policy(architecture: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> Policy:
    """`lora` is the qwen model with an adapter that is no longer at its start, where it would do nothing."""
    torch.manual_seed(9)
    if architecture == "lora":
        made = Policy(options(adapter="lora", **changes), qwen(), tiny.tokenizer(), CPU, dtype)
        move(made, 0.1)
        return made
    return Policy(options(**changes), {"llama": llama, "qwen": qwen}[architecture](), tiny.tokenizer(), CPU, dtype)


def move(policy: Policy, size: float, seed: int = 3) -> None:
    """Change every weight that learns a little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter += size * torch.randn(parameter.shape, generator=generator)


def examples(*prompts: str) -> list[Example]:
    return [Example(f"e{i}", prompt) for i, prompt in enumerate(prompts)]


def prompts(policy: Policy) -> Prompts:
    """Three prompts of different lengths."""
    return policy.prompts(examples("12+7=?", "3+4=?", "what is 100-1"))


def batch(policy: Policy, lengths: tuple[int, ...] = (5, 2, 1, 6, 4, 6), width: int | None = None, seed: int = 0) -> TokenBatch:
    """Six rows of three prompts in mixed order, of different lengths, with rubbish in the padding."""
    asked = prompts(policy)
    width = width or max(lengths)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, len(policy.tokenizer), (len(lengths), width), generator=generator)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    group = torch.tensor([0, 2, 1, 0, 2, 1])
    return TokenBatch(asked.tokens, asked.mask, group, tokens, mask, mask)


def plain_logp(policy: Policy, batch: TokenBatch, temperature: float = 1.0) -> Tensor:
    """What transformers gives for one row at a time, without padding, cache or adapter tricks: `[N, T]`, 0 outside the mask."""
    out = torch.zeros(batch.tokens.shape)
    for row, g in enumerate(batch.group.tolist()):
        prompt = batch.prompt_tokens[g][batch.prompt_mask[g]]
        completion = batch.tokens[row][batch.mask[row]]
        ids = torch.cat([prompt, completion])[None]
        logits = policy.model(input_ids=ids, use_cache=False).logits[0].float() / temperature
        logp = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
        out[row, : len(completion)] = logp.gather(-1, completion[:, None]).squeeze(-1)
    return out


def gradients(policy: Policy, value: Tensor) -> dict[str, Tensor]:
    """Gradient of the value for every weight that learns."""
    policy.model.zero_grad(set_to_none=True)
    value.backward()
    return {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.requires_grad and p.grad is not None}
