"""Fewer bits while training, by bitsandbytes: a frozen model in 4 bits under its adapter, an optimizer with moments in 8 bits.

Written against bitsandbytes 0.50, whose operations for both also run on a CPU. That is where they were tried.
"""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any

import torch
from torch import nn

from grpo_exp.errors import ConfigError

OLDEST = (0, 50)
INSTALL = "pip install 'bitsandbytes>=0.50'"


def check(wanted: list[str]) -> None:
    """Refuse, before a model loads, options that need bitsandbytes where it is not there.

    Raises:
        ConfigError: naming the options that want it.
    """
    if not wanted:
        return
    try:
        version = importlib.metadata.version("bitsandbytes")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"{', '.join(wanted)}: needs the package bitsandbytes, which is not installed: {INSTALL}. Without it: "
            f"{' '.join(word.partition('=')[0] + '=' + PLAIN[word] for word in wanted)}"
        ) from error
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < OLDEST:
        raise ConfigError(f"{', '.join(wanted)}: bitsandbytes {version} is too old for it: {INSTALL}")


PLAIN = {"model.quantize=4bit": "none", "optim.name=adamw_8bit": "adamw"}
"""What to set in place of each option that needs it."""


def adamw_8bit() -> Any:
    """The class of an AdamW whose moments are int8 by blocks of 256 (arXiv 2110.02861); tensors below 4096 keep float32."""
    import bitsandbytes

    return bitsandbytes.optim.AdamW8bit


def to_4bit(model: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Put NF4 layers with doubly quantised scales (arXiv 2305.14314, section 3) in place of the linear layers; the head and
    embeddings stay. Products are taken in `dtype`. A layer is on `device` afterwards, one at a time.
    """
    from bitsandbytes.nn import Linear4bit, Params4bit

    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if type(module) is not nn.Linear or module is head:
            continue
        made = Linear4bit(
            module.in_features,
            module.out_features,
            bias=module.bias is not None,
            compute_dtype=dtype,
            compress_statistics=True,
            quant_type="nf4",
            device="meta",
        )
        # On a CPU with AVX-512 its forward pass without gradients would repack the weight for a product that has none, and the
        # update after it would learn nothing from that layer on.
        made.support_avx512bf16_for_cpu = False
        made.weight = Params4bit(
            module.weight.detach(), requires_grad=False, compress_statistics=True, quant_type="nf4", module=made
        )
        made.bias = module.bias
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made.to(device))  # which packs the weight
    model.is_loaded_in_4bit = True  # peft chooses its layers by it
