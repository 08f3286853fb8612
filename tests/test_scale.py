"""The arithmetic of bench/scale.py: products against torch's own count, and what must hold whatever the assumptions."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
import torch
from command import ROOT
from torch.utils.flop_counter import FlopCounterMode
from toy_policy import batch, policy

from grpo_exp.footprint import Sizes

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture(scope="module")
def scale() -> Any:
    spec = importlib.util.spec_from_file_location("scale", ROOT / "bench" / "scale.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["scale"] = importlib.util.module_from_spec(spec)  # where dataclasses look
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("kind", "passes"), [("llama", 3), ("qwen", 3), ("lora", 2)])
def test_products_are_those_that_torch_counts(scale: Any, kind: str, passes: int) -> None:
    """Of a forward pass, and with the backward pass, where every token meets the head as well; attention is small here."""
    made = policy(kind, forward="modules")
    rows = batch(made, lengths=(8,) * 6)
    with FlopCounterMode(display=False) as forwards, torch.no_grad():
        made.forward(rows, 1.0)
    with FlopCounterMode(display=False) as both:
        made.forward(rows, 1.0, train=True).logp[rows.mask].mean().backward()
    sizes = Sizes.of(made.model)
    computed = rows.prompt_tokens.numel() + 6 * 7
    outer = 2 * sizes.vocab * sizes.hidden * (48 - computed)  # the head sees the completions' 48 tokens
    rank = sum(p.numel() for p in made.trainable()) if kind == "lora" else 0
    for counted, many in ((forwards, 1), (both, passes)):
        said = scale.products(sizes, computed, 0, many) + many * outer + 2 * rank * computed * (1 if many == 1 else 3)
        assert said == pytest.approx(counted.get_total_flops(), rel=0.1)


def test_more_gpus_take_less_time_and_less_memory(scale: Any) -> None:
    one, eight = (scale.plan("0.5b", "all", gpus) for gpus in (1, 8))
    assert eight.memory["weights"] == pytest.approx(one.memory["weights"] / 8)
    assert eight.time["update"] == pytest.approx(one.time["update"] / 8) and one.time["exchange"] == 0 < eight.time["exchange"]
    lora = scale.plan("0.5b", "LoRA", 8)
    assert lora.memory["weights"] < one.memory["weights"] and lora.time["sync"] < eight.time["sync"] / 10
