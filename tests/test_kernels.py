"""Each operation with a gradient of its own against the textbook formula, and its gradient against differences, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from grpo_exp import kernels


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As transformers writes it."""
    first, second = x.chunk(2, -1)
    return x * torch.cat([cos, cos], -1) + torch.cat([-second, first], -1) * torch.cat([sin, sin], -1)


X, ANGLE = draw(5, 6), torch.linspace(0, 3, 15, dtype=torch.float64).view(5, 1, 3)
TOKENS = torch.tensor([3, 0, 8, 3, 7])
CASES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "rms_norm": (
        lambda x, w: kernels.rms_norm(x, w, 1e-3, torch.float64),
        lambda x, w: x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * w,
        (X, draw(6, seed=1)),
    ),
    "swiglu": (kernels.swiglu, lambda gate, up: gate * torch.sigmoid(gate) * up, (X, draw(5, 6, seed=1))),
    "rotate": (
        lambda x: kernels.rotate(x, ANGLE.cos(), ANGLE.sin()),
        lambda x: turned(x, ANGLE.cos(), ANGLE.sin()),
        (draw(5, 2, 6),),
    ),
    "lora": (
        lambda x, a, b: kernels.lora(x, draw(4, 6, seed=1).detach(), draw(4, seed=2).detach(), a, b, 0.5),
        lambda x, a, b: x @ (draw(4, 6, seed=1).detach() + 0.5 * b @ a).T + draw(4, seed=2).detach(),
        (X, draw(3, 6, seed=3), draw(4, 3, seed=4)),
    ),
    "token_logp, head frozen": (
        lambda h: kernels.token_logp(h, draw(9, 6, seed=1).detach(), TOKENS, 0.7, 2)[0],
        lambda h: -functional.cross_entropy(h @ draw(9, 6, seed=1).detach().T / 0.7, TOKENS, reduction="none"),
        (X,),
    ),
    "token_logp, head learns": (
        lambda h, w: kernels.token_logp(h, w, TOKENS, 0.7, 2)[0],
        lambda h, w: -functional.cross_entropy(h @ w.T / 0.7, TOKENS, reduction="none"),
        (X, draw(9, 6, seed=1)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    ours, textbook, given = CASES[name]
    torch.testing.assert_close(ours(*given), textbook(*given), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(ours, given)


@pytest.mark.parametrize("name", CASES)
def test_without_gradients_the_same_to_the_bit(name: str) -> None:
    """The reference's pass has none and the policy's has: at the first step their difference must be exactly 0."""
    ours, _, given = CASES[name]
    with torch.no_grad():
        assert torch.equal(ours(*given), ours(*(x.detach() for x in given)))
        expected = ours(*given)
    assert torch.equal(ours(*given).detach(), expected)


@pytest.mark.parametrize("name", CASES)
def test_what_comes_in_is_left_as_it_was(name: str) -> None:
    ours, _, given = CASES[name]
    before = [x.detach().clone() for x in given]
    ours(*given).sum().backward()
    with torch.no_grad():
        ours(*given)
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))


def test_entropy_has_no_gradient_and_is_that_of_the_softmax() -> None:
    weight = draw(9, 6, seed=1).detach()
    logp, entropy = kernels.token_logp(X, weight, TOKENS, 0.7, 2)
    expected = torch.distributions.Categorical(logits=X.detach() @ weight.T / 0.7).entropy()
    torch.testing.assert_close(entropy, expected)
    assert logp.requires_grad and not entropy.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_keep_their_own_dtype(dtype: torch.dtype) -> None:
    x, a, b = (
        y.detach().to(d).requires_grad_() for y, d in ((X, dtype), (draw(3, 6), torch.float32), (draw(4, 3), torch.float32))
    )
    out = kernels.lora(x, draw(4, 6).detach().to(dtype), None, a, b, 0.5)
    out.sum().backward()
    assert out.dtype == x.grad.dtype == dtype and a.grad.dtype == b.grad.dtype == torch.float32  # type: ignore[union-attr]
