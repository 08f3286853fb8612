"""Decoders in the manner of Llama over a stream of tokens: what transformers' modules compute, with less in between.

A stream is all tokens that are computed, one after another, without padding; only the attention knows which of them belong
together, and it is handed in. The modules keep their weights, adapters among them; nothing is copied or changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from grpo_exp import kernels, sharded
from grpo_exp.frozen import Int8Embedding, Int8Linear

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries `[n, heads, D]`, keys and values `[n, key heads, D]`) -> `[n, heads x D]`."""

KNOWN = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
LENGTHS_APART = ("dynamic", "longrope")  # rotary positions that depend on the longest row of a batch


class Trunk:
    """The decoder's layers, with products in `dtype` and the sum along the layers in float32.

    `checkpointing` keeps only what enters each layer for the backward pass.
    """

    def __init__(self, decoder: Any, dtype: torch.dtype, checkpointing: bool = False) -> None:
        self.decoder, self.dtype, self.checkpointing = decoder, dtype, checkpointing
        self._cast: dict[int, Tensor] = {}

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Last hidden states: `[n], [n] -> [n, H]`."""
        with torch.autocast(tokens.device.type, enabled=False):
            return self._computed(tokens, positions, attend)

    def _computed(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        words = self.decoder.embed_tokens
        x = words(tokens) if isinstance(words, Int8Embedding) else _embedded(words, tokens)
        width = x.new_empty(0)  # rotary embeddings ask for a tensor's dtype
        cos, sin = (y[0, :, None, : y.shape[-1] // 2].to(self.dtype) for y in self.decoder.rotary_emb(width, positions[None]))
        for index, layer in enumerate(self.decoder.layers):
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(self._unit, index, layer, x, cos, sin, attend, use_reentrant=False)
            else:
                x = self._unit(index, layer, x, cos, sin, attend)
        return self._norm(self.decoder.norm, x)

    def _unit(self, index: int, layer: Any, *rest: Any) -> Tensor:
        """A layer, its weights whole meanwhile."""
        return sharded.within(layer, self._layer, index, layer, *rest)

    def _layer(self, index: int, layer: Any, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        own, mlp = layer.self_attn, layer.mlp
        h = self._norm(layer.input_layernorm, x)
        q, k, v = (self._linear(m, h).unflatten(-1, (-1, own.head_dim)) for m in (own.q_proj, own.k_proj, own.v_proj))
        if hasattr(own, "q_norm"):  # Qwen 3
            q, k = self._norm(own.q_norm, q), self._norm(own.k_norm, k)
        x = x + self._linear(own.o_proj, attend(index, kernels.rotate(q, cos, sin), kernels.rotate(k, cos, sin), v))
        h = self._norm(layer.post_attention_layernorm, x)
        return x + self._linear(mlp.down_proj, kernels.swiglu(self._linear(mlp.gate_proj, h), self._linear(mlp.up_proj, h)))

    def _norm(self, module: Any, x: Tensor) -> Tensor:
        return kernels.rms_norm(x, module.weight, module.variance_epsilon, self.dtype)

    def _linear(self, module: Any, x: Tensor) -> Tensor:
        if isinstance(module, Int8Linear):
            y: Tensor = module(x)
            return y
        base = _without_adapter(module)
        weight, bias = self._in_dtype(base.weight), None if base.bias is None else self._in_dtype(base.bias)
        if base is module or module.disable_adapters:
            return nn.functional.linear(x, weight, bias)
        (name,) = module.active_adapters
        a, b, scale = module.lora_A[name].weight, module.lora_B[name].weight, module.scaling[name]
        dropout = module.lora_dropout[name]
        if isinstance(dropout, nn.Dropout) and dropout.training:
            down: Tensor = dropout(x) @ a.to(x.dtype).T  # [n, r]
            return nn.functional.linear(x, weight, bias).addmm(down, b.to(x.dtype).T, alpha=scale)
        return kernels.lora(x, weight, bias, a, b, scale)

    def _in_dtype(self, parameter: Tensor) -> Tensor:
        """The parameter as the products take it; without gradients, rounded once for all calls."""
        if parameter.dtype == self.dtype:
            return parameter
        if torch.is_grad_enabled():
            return parameter.to(self.dtype)
        if id(parameter) not in self._cast:
            self._cast[id(parameter)] = parameter.to(self.dtype)
        return self._cast[id(parameter)]


class Frozen(Trunk):
    """The same without gradients, for many calls with few tokens: adapters are added to the weights, projections of one input
    joined. These are copies, made at the first call; the modules are left as they are.
    """

    def __init__(self, decoder: Any, dtype: torch.dtype) -> None:
        super().__init__(decoder, dtype)
        self._joints: dict[int, tuple[Tensor, Tensor | None]] = {}

    def _unit(self, index: int, layer: Any, *rest: Any) -> Tensor:
        return self._layer(index, layer, *rest)  # whose weights are whole all along

    def _layer(self, index: int, layer: Any, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        own, mlp = layer.self_attn, layer.mlp
        h = self._norm(layer.input_layernorm, x)
        heads = self._joined(h, own.q_proj, own.k_proj, own.v_proj).unflatten(-1, (-1, own.head_dim))  # [n, all heads, D]
        shared = own.num_key_value_groups
        keys = heads.shape[1] // (shared + 2)
        q, k, v = heads.split((shared * keys, keys, keys), 1)
        if hasattr(own, "q_norm"):
            q, k = self._norm(own.q_norm, q), self._norm(own.k_norm, k)
            q, k = kernels.rotate(q, cos, sin), kernels.rotate(k, cos, sin)
        else:
            q, k = kernels.rotate(heads[:, : (shared + 1) * keys], cos, sin).split((shared * keys, keys), 1)
        x += self._joined(attend(index, q, k, v), own.o_proj)
        gate, up = self._joined(self._norm(layer.post_attention_layernorm, x), mlp.gate_proj, mlp.up_proj).chunk(2, -1)
        x += self._joined(kernels.swiglu(gate, up), mlp.down_proj)
        return x

    def _joined(self, x: Tensor, *modules: Any) -> Tensor:
        """The outputs of projections of one input, side by side."""
        known = self._joints.get(id(modules[0]))
        if known is None:
            weights, biases = zip(*(_merged(module, self.dtype) for module in modules), strict=True)
            bias = None if biases[0] is None else torch.cat(biases)
            known = self._joints[id(modules[0])] = (weights[0] if len(weights) == 1 else torch.cat(weights), bias)
        return nn.functional.linear(x, *known)


def _embedded(words: nn.Embedding, tokens: Tensor) -> Tensor:
    """Rows of the matrix in float32, without what transformers or peft may have hooked to the module."""
    return nn.functional.embedding(tokens, words.weight, words.padding_idx).float()


def _without_adapter(module: Any) -> Any:
    """The linear layer of a projection."""
    return module.get_base_layer() if hasattr(module, "base_layer") else module


def _merged(module: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a projection with its adapter added, W + scale B A, rounded once."""
    base = _without_adapter(module)
    weight, bias = base.weight, None if base.bias is None else base.bias.to(dtype)
    if base is not module and not module.disable_adapters:
        for name in module.active_adapters:
            a, b = module.lora_A[name].weight, module.lora_B[name].weight
            weight = torch.addmm(weight.float(), b.float(), a.float(), alpha=module.scaling[name])
    return weight.to(dtype), bias


def fits(decoder: Any) -> bool:
    """Whether a decoder is one that `Trunk` computes."""
    config = decoder.config
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return (
        type(decoder).__name__ in KNOWN
        and config.hidden_act == "silu"
        and layers == {"full_attention"}
        and (type(decoder).__name__ != "MistralModel" or config.sliding_window is None)
        and not config.attention_dropout
        and rope.get("rope_type", "default") not in LENGTHS_APART
        and type(decoder.embed_tokens) is nn.Embedding
        and all(_plain(module) for name, module in decoder.named_modules() if name.endswith("_proj"))
        and all(type(module).__name__.endswith("RMSNorm") for name, module in decoder.named_modules() if name.endswith("norm"))
    )


def _plain(module: nn.Module) -> bool:
    """Whether a projection is a linear layer, or one with LoRA in its first form: two products without a bias."""
    if type(module) is nn.Linear:
        return True
    if type(getattr(module, "base_layer", None)) is not nn.Linear or getattr(module, "lora_variant", True):
        return False
    ups: Any = module.lora_B
    return all(up.bias is None for up in ups.values())
