"""Operations of a transformer with their gradients written out: fewer passes over memory than autograd's own would make.

Each is the textbook formula, and tests hold it against torch's. Products are taken in the dtype of `x`; parameters may be more
exact than that, and their gradients are in their own dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (arXiv 1910.07467, eq. 4), rounded to `dtype` at the end."""
    y: Tensor = _run(_RMSNorm, x, weight, eps, dtype)
    return y


class _RMSNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=_exact(x))
        scale = torch.rsqrt(norm.square() / x.shape[-1] + eps).to(x.dtype)  # [..., 1]
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight.to(x.dtype)).to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, scale = ctx.saved_tensors
        g = grads[0].to(x.dtype)
        dweight = None
        if ctx.needs_input_grad[1]:
            dweight = (g * x).mul_(scale).flatten(0, -2).sum(0).to(weight.dtype)
        if not ctx.needs_input_grad[0]:
            return None, dweight, None, None
        g = g * weight.to(x.dtype)
        inner = (g * x).sum(-1, keepdim=True).mul_(scale.square() / x.shape[-1])  # [..., 1]
        return g.addcmul_(x, inner, value=-1).mul_(scale), dweight, None, None


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (arXiv 2002.05202, eq. 6), keeping the two and nothing in between."""
    y: Tensor = _run(_SwiGLU, gate, up)
    return y


class _SwiGLU(Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        (g,) = grads
        return torch.ops.aten.silu_backward(g * up, gate), functional.silu(gate).mul_(g)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (arXiv 2104.09864, eq. 34, pairs half a head apart): `x [n, heads, D]`, `cos, sin [n, 1, D / 2]`."""
    y: Tensor = _run(_Rotate, x, cos, sin)
    return y


class _Rotate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        return _turned(grads[0], cos, sin, -1), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    first, second = x.chunk(2, -1)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    left, right = y.chunk(2, -1)
    torch.mul(first, cos, out=left).addcmul_(second, sin, value=-sign)
    torch.mul(second, cos, out=right).addcmul_(first, sin, value=sign)
    return y


def lora(x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """x W^T + bias + scale (x A^T) B^T: `[n, i], [o, i], [o], [r, i], [o, r] -> [n, o]` (arXiv 2106.09685, eq. 3), W frozen."""
    y: Tensor = _run(_Lora, x, weight, bias, a, b, scale)
    return y


class _Lora(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        down = x @ a.to(x.dtype).T  # [n, r]
        ctx.save_for_backward(x, weight, a, b, down)
        ctx.scale = scale
        return functional.linear(x, weight, bias).addmm_(down, b.to(x.dtype).T, alpha=scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, a, b, down = ctx.saved_tensors
        (g,) = grads
        ddown = (g @ b.to(g.dtype)).mul_(ctx.scale)  # [n, r]
        dx = (g @ weight).addmm_(ddown, a.to(g.dtype)) if ctx.needs_input_grad[0] else None
        da, db = (ddown.T @ x).to(a.dtype), (g.T @ down).mul_(ctx.scale).to(b.dtype)
        return dx, None, None, da, db, None


def token_logp(hidden: Tensor, weight: Tensor, tokens: Tensor, temperature: float, rows: int) -> tuple[Tensor, Tensor]:
    """Log-probs of tokens, and entropies without gradient, under softmax(hidden W^T / temperature).

    `[n, H], [V, H], [n] -> [n], [n]`, `rows` at a time, so that no `[n, V]` tensor exists. The gradient of a log-prob by its
    hidden state, (W_token - p W) / temperature, does not depend on what comes after, so it is taken while p is at hand and the
    logits are not computed again; but where W learns too, they are, in the backward pass.
    """
    logp, entropy = _run(_TokenLogp, hidden, weight, tokens, temperature, rows)
    return logp, entropy


class _TokenLogp(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, tokens: Tensor, temperature: float, rows: int) -> Any:
        at_once = ctx.needs_input_grad[0] and not ctx.needs_input_grad[1]
        cast = weight.to(hidden.dtype)
        slopes, chosen, entropies = [], [], []
        for h, t in zip(hidden.split(rows), tokens.split(rows), strict=True):
            logp = _logp(h, cast, temperature)  # [rows, V]
            chosen.append(logp.gather(-1, t[:, None]).squeeze(-1))
            p = logp.exp()
            entropies.append(-(p[:, None] @ logp[:, :, None]).flatten())
            if at_once:
                slopes.append((cast[t] - p.to(cast.dtype) @ cast).div_(temperature))
        ctx.temperature, ctx.rows = temperature, rows
        ctx.save_for_backward(torch.cat(slopes) if at_once else hidden, weight, tokens)
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(chosen), entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        kept, weight, tokens = ctx.saved_tensors
        g = grads[0][:, None]  # [n, 1]
        if not ctx.needs_input_grad[1]:
            return (kept * g).to(kept.dtype), None, None, None, None
        cast, dhidden = weight.to(kept.dtype), []
        dweight = torch.zeros_like(weight)
        for h, t, slope in zip(kept.split(ctx.rows), tokens.split(ctx.rows), g.split(ctx.rows), strict=True):
            dlogits = _logp(h, cast, ctx.temperature).exp_().mul_(-slope)  # [rows, V]
            dlogits.scatter_add_(-1, t[:, None], slope)
            dlogits = dlogits.div_(ctx.temperature).to(cast.dtype)
            dhidden.append(dlogits @ cast)
            dweight += dlogits.T @ h
        return torch.cat(dhidden), dweight, None, None, None


class _NoGradient:
    """Stands in for autograd's context, whose making takes longer than some of what is computed while a token is sampled."""

    needs_input_grad = (False,) * 6

    def save_for_backward(self, *_: Tensor) -> None: ...

    def mark_non_differentiable(self, *_: Tensor) -> None: ...


def _run(function: Any, *given: Any) -> Any:
    return function.apply(*given) if torch.is_grad_enabled() else function.forward(_NoGradient(), *given)


def _exact(x: Tensor) -> torch.dtype:
    """What sums are taken in: float32, or more where `x` has more."""
    return torch.promote_types(x.dtype, torch.float32)


def _logp(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = (hidden @ weight.T).to(_exact(hidden))
    return torch.log_softmax(logits if temperature == 1 else logits.div_(temperature), -1)
