"""How many bytes a run holds, part by part, from the sizes of its model alone.

One arithmetic for three uses: how many rows fit at a time, what preflight says of a run that it tried, and what it says on
paper of one that was not. What autograd keeps is counted term by term; `tests/test_footprint.py` holds it against torch's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from grpo_exp.head import ELEMENTS

FLOAT = 4
GIB = 2**30
NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in NF4: a half, a scale in int8 for each 64, and one in float32 for 256 of these (arXiv 2305.14314)."""
MOMENTS = {"adamw": 2.0 * FLOAT, "adamw_8bit": 2 * (1 + 4 / 256)}
"""Bytes of AdamW's two moments for each weight: in int8 by blocks of 256, each with a scale in float32."""


@dataclass(frozen=True)
class Sizes:
    """A decoder's sizes.

    Attributes:
        layers, hidden, inner, queries, keys, vocab: layers; widths of the hidden state, the MLP, all queries, all keys; tokens.
        weights: all of its weights, an adapter's left out.
        linear: those of them in matrices of linear layers, the head left out.
        layered: all of linear layers that the embeddings do not share: their biases too, and a head of its own.
        outer: those of the embeddings and the head, once where they share a matrix.
        rows: rows of all these matrices: scales of int8.
        trained: weights that learn.
        adapted: whether these are an adapter's.
    """

    layers: int
    hidden: int
    inner: int
    queries: int
    keys: int
    vocab: int
    weights: int
    linear: int
    layered: int
    outer: int
    rows: int
    trained: int
    adapted: bool

    @classmethod
    def of(cls, model: Any) -> Sizes:
        """Of a model of transformers, with an adapter of peft on it or without, also on torch's meta device."""
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        config, head, words = base.config.get_text_config(), base.get_output_embeddings(), base.get_input_embeddings()
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        outer = {id(m.weight): m.weight for m in (head, words)}.values()
        adapter = {id(p) for name, p in model.named_parameters() if ".lora_" in name}
        shared = head.weight is words.weight
        layers = [m for n, m in model.named_modules() if isinstance(m, nn.Linear) and ".lora_" not in n]
        linear = [m.weight for m in layers if m is not head]
        biases = [m.bias for m in layers if m.bias is not None]
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            inner=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
            queries=config.num_attention_heads * size,
            keys=(getattr(config, "num_key_value_heads", None) or config.num_attention_heads) * size,
            vocab=config.vocab_size,
            weights=sum(p.numel() for p in model.parameters() if id(p) not in adapter),
            linear=sum(_numel(w) for w in linear),
            layered=sum(_numel(w) for w in linear) + sum(p.numel() for p in biases) + (0 if shared else head.weight.numel()),
            outer=sum(w.numel() for w in outer),
            rows=sum(w.shape[0] for w in [*linear, *outer]),
            trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
            adapted=bool(adapter),
        )


@dataclass(frozen=True)
class Way:
    """How a model is computed: what its bytes depend on besides its sizes.

    Attributes:
        bytes: of a number in matrix products: 4 or 2.
        stream: by operations of our own (`trunk`), or else by transformers' modules.
        checkpointing: activations are recomputed in the backward pass.
    """

    bytes: int
    stream: bool
    checkpointing: bool

    @classmethod
    def of(cls, policy: Any) -> Way:
        """How a loaded policy is computed."""
        return cls(policy.dtype.itemsize, policy.streams, policy.options.gradient_checkpointing)


def frozen(sizes: Sizes, way: Way, quantize: str) -> float:
    """Bytes of the weights under an adapter: in 4 bits, or all in the dtype of the products."""
    if quantize == "4bit":
        return sizes.linear * NF4 + (sizes.weights - sizes.linear) * way.bytes
    return float(sizes.weights * way.bytes)


def weights(sizes: Sizes, way: Way, quantize: str) -> float:
    """Bytes of the policy's weights; those that learn are float32."""
    return frozen(sizes, way, quantize) + FLOAT * sizes.trained if sizes.adapted else float(FLOAT * sizes.weights)


def reference(sizes: Sizes, way: Way, place: str, moves: bool) -> float:
    """Bytes of the reference: of a copy by its place, of a moving one exact, or none with the adapter off."""
    if place == "adapter_off":
        return float(FLOAT * sizes.trained if moves else 0)
    if place == "8bit":
        return float(sizes.linear + sizes.outer + FLOAT * (sizes.rows + sizes.weights - sizes.linear - sizes.outer))
    if moves:
        return float(FLOAT * sizes.weights)
    return float(sizes.layered * way.bytes + (sizes.weights - sizes.layered) * FLOAT)


def critic(sizes: Sizes, trunk: str | None) -> int:
    """Weights that a critic adds, all learning: a row for its head, with a trunk of its own the decoder's or an adapter's."""
    if trunk is None:
        return 0
    decoder = sizes.trained if sizes.adapted else sizes.weights - (sizes.outer - sizes.vocab * sizes.hidden)
    return sizes.hidden + (decoder if trunk == "own" else 0)


def held(
    sizes: Sizes, way: Way, *, quantize: str, optimizer: str, place: str, moves: bool, remembers: bool, critic: int
) -> dict[str, float]:
    """Bytes that are held all along, by part; `remembers`: there is a reference; `critic`: its weights on this device."""
    learn = sizes.trained + critic
    return {
        "weights": weights(sizes, way, quantize),
        "gradients": float(FLOAT * learn),
        "optimizer": MOMENTS[optimizer] * learn,
        "reference": reference(sizes, way, place, moves) if remembers else 0.0,
        "critic": float(FLOAT * critic),
    }


class Whole(NamedTuple):
    """Bytes of weights that are whole for a while where ranks have parts of them: all, or while a unit computes its share."""

    all: float
    unit: float


def whole(sizes: Sizes, way: Way) -> Whole:
    """Layers in the dtype of products, what is around them in float32: all for sampling; in a pass two layers, since the next
    one comes meanwhile, and what is around, with the gradients of both units."""
    layer = way.bytes * sizes.linear / sizes.layers
    return Whole(way.bytes * sizes.linear + FLOAT * (sizes.weights - sizes.linear), 3 * layer + 2 * FLOAT * sizes.outer)


def sampler(sizes: Sizes, way: Way, quantize: str) -> float:
    """Bytes of a process that samples ahead on the same device: the model again, the copies that it samples with, and of the
    weights that learn those on their way to it and those of a checkpoint."""
    return weights(sizes, way, quantize) + merged(sizes, way) + 2.0 * FLOAT * sizes.trained


def sampling(sizes: Sizes, way: Way, tokens: int) -> int:
    """Bytes of a row that is sampled: its keys and values, twice while rows that ended leave the others, and its logits.

    `tokens`: of its prompt and its longest completion. Keys and values of our own trunk are float32 on a CPU.
    """
    number = FLOAT if way.stream else way.bytes
    return 2 * number * tokens * sizes.layers * 2 * sizes.keys + 4 * FLOAT * sizes.vocab


def activations(sizes: Sizes, way: Way, tokens: int, context: int) -> int:
    """Bytes that the backward pass of a row keeps: of `tokens` computed for it, which see `context` tokens.

    By our own trunk, for each token and layer: what both norms keep (the hidden state in float32, their output in `bytes`), the
    queries and attention's output in float32, that again for the next product, and three of the MLP; keys and values of all
    that the row sees, in float32. Modules keep more: three copies in float32 for each norm, and the parts of the MLP's product
    apart; under LoRA, whose products are float32's, an input of each layer again. With checkpointing only what enters each
    layer, and one layer whole.
    """
    b, h, q, i = way.bytes, sizes.hidden, sizes.queries, sizes.inner
    if way.stream:
        layer = tokens * (2 * FLOAT * h + 2 * b * h + 2 * FLOAT * q + b * q + 3 * b * i) + 2 * FLOAT * sizes.keys * context
    else:
        again = b * (5 * h + q + i) if sizes.adapted and b < FLOAT else 0
        layer = tokens * (6 * FLOAT * h + 2 * b * h + 3 * b * q + 4 * b * i + again) + 2 * b * sizes.queries * context
    kept = layer + tokens * sizes.layers * FLOAT * h if way.checkpointing else sizes.layers * layer
    return kept + 3 * tokens * b * h


def head(sizes: Sizes, trains: bool, tokens: int) -> int:
    """Bytes of the logits of `tokens` that exist at a time, three times over, and of the head's gradient while it adds up."""
    at_once = min(tokens, max(1, ELEMENTS // sizes.vocab))
    return 3 * FLOAT * at_once * sizes.vocab + FLOAT * sizes.vocab * sizes.hidden * trains


def merged(sizes: Sizes, way: Way) -> int:
    """Bytes of the copies of weights that our own trunk samples with, adapters added."""
    return sizes.linear * way.bytes if way.stream else 0


def _numel(weight: Any) -> int:
    """Weights of a matrix, also where they are packed in 4 bits."""
    shape = getattr(getattr(weight, "quant_state", None), "shape", None)
    return int(shape.numel()) if shape is not None else int(weight.numel())
