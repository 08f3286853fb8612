"""Copies of a model that never learn, such as a reference: in less memory than the original, or away from the device.

int8 is weight-only: each row of a matrix is whole numbers from -127 to 127 times a scale of its own, the row's largest
magnitude over 127 (LLM.int8, arXiv 2208.07339, section 2, its vector-wise form, without the part for outliers). Products are
taken in the dtype of what comes in, each matrix converted for its own product alone. torch's own operation for it
(`_weight_int8pack_mm`, 2.13) is not public, and on a CPU it was 3 to 80 times slower for the batches of a reference's pass.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Int8Linear(nn.Module):
    """y = (x Q^T) s + b: Q int8 `[o, i]`, s float32 `[o]`. It has no gradient."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """`[..., i] -> [..., o]`, in the dtype of `x`; under autocast in its dtype."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        y = nn.functional.linear(x, self.weight.to(x.dtype)).mul_(self.scale)  # whole numbers to 127 are exact in any dtype
        return y if self.bias is None else y.add_(self.bias)


class Int8Embedding(nn.Module):
    """Rows of Q s for tokens: long `[...] -> [..., H]`, float32."""

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight[tokens].float() * self.scale[tokens, None]


def int8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix `[o, i]` as int8 `[o, i]` and float32 scales `[o]`; a row of zeros stays one."""
    exact = weight.detach().float()
    scale = exact.abs().amax(-1) / 127  # [o]
    return (exact / scale.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round_().to(torch.int8), scale


def copied(model: Any, dtype: torch.dtype) -> Any:
    """A copy whose linear layers keep their weights in `dtype`, which their products are taken in anyway: the same, to the bit.

    Embeddings, and a head that shares their matrix, stay as they are; so does everything else.
    """
    shared = _embedded(model)
    kept = {
        id(p): nn.Parameter(p.detach().to(dtype, copy=True), requires_grad=False)
        for module in model.modules()
        if type(module) is nn.Linear
        for p in module.parameters(recurse=False)
        if id(p) not in shared
    }
    return copy.deepcopy(model, dict(kept)).requires_grad_(False)


def int8(model: Any, skip: tuple[str, ...] = ()) -> Any:
    """A copy whose linear layers and embeddings hold int8; a head that shares the embeddings' matrix shares their int8.

    `skip` names layers that stay exact. Layers of other kinds than torch's own plain ones stay as they are.
    """
    memo: dict[int, Any] = {}
    rows: dict[int, tuple[Tensor, Tensor]] = {}
    for name, module in model.named_modules():
        if type(module) not in (nn.Linear, nn.Embedding) or name.rpartition(".")[2] in skip:
            continue
        weight = module.weight
        if id(weight) not in rows:
            rows[id(weight)] = int8_rows(weight)
        if type(module) is nn.Linear:
            bias = None if module.bias is None else module.bias.detach().clone()
            memo[id(module)] = Int8Linear(*rows[id(weight)], bias)
        else:
            memo[id(module)] = Int8Embedding(*rows[id(weight)])
    return copy.deepcopy(model, memo).requires_grad_(False)


class Waiting:
    """A model whose weights wait in the CPU's memory and come to a device while they are needed.

    What waits is never written to by a pass, so nothing goes back afterwards: the device's copies are dropped.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model, self.device = model, device
        self._waiting: list[tuple[nn.Parameter, Tensor]] = []
        self.leave()

    def leave(self) -> None:
        """Take the weights to the CPU's memory: their values as they are now, on a GPU in pages that it reads directly."""
        self._waiting = []
        for parameter in self.model.parameters():
            waiting = parameter.data.to("cpu")
            parameter.data = waiting.pin_memory() if self.device.type == "cuda" else waiting
            self._waiting.append((parameter, parameter.data))

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Within, the weights are on the device."""
        for parameter, waiting in self._waiting:
            parameter.data = waiting.to(self.device, non_blocking=True)
        try:
            yield
        finally:
            for parameter, waiting in self._waiting:
                parameter.data = waiting


def _embedded(model: Any) -> set[int]:
    """The matrices that are also embeddings, by id."""
    return {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
