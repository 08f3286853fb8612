"""The language-model head: from hidden states to logits, and to log-probs and entropies without logits for all of them."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from grpo_exp import kernels, ops

ELEMENTS = 2**24
"""Logits that exist at a time: 64 MiB in float32."""


class Head:
    """The head of a transformers model, its weights where they are.

    `fused`: where the head is a product and nothing else, log-probs are computed by `kernels`.
    """

    def __init__(self, model: Any, fused: bool) -> None:
        self.fused = fused
        self.config = model.config.get_text_config()
        self.layer: Any = model.get_output_embeddings()

    def logits(self, hidden: Tensor) -> Tensor:
        """In float32: `[n, H] -> [n, V]`, with the soft cap or scale of architectures that have one."""
        logits: Tensor = self.layer(hidden).float()
        if scale := getattr(self.config, "logit_scale", None):  # Cohere
            logits = logits * scale
        if scale := getattr(self.config, "logits_scaling", None):  # Granite
            logits = logits / scale
        if cap := getattr(self.config, "final_logit_softcapping", None):  # Gemma 2
            logits = torch.tanh(logits / cap) * cap
        return logits

    def logp(
        self, hidden: Tensor, tokens: Tensor, temperature: float, support: Tensor | None, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """Log-probs of tokens and entropies, `[n, H], [n] -> [n], [n]`, in chunks, so that no `[n, V]` tensor ever exists.

        `support` (`[n, V / 8]`, packed): the tokens that were sampled from, all where it is None. Entropies have a gradient
        only with `entropy_gradient`.
        """
        rows = max(1, ELEMENTS // self.config.vocab_size)
        if self.fused and self._is_product and support is None and not entropy_gradient:
            with torch.autocast(hidden.device.type, enabled=False):
                return kernels.token_logp(hidden, self.layer.weight, tokens, temperature, rows)
        supports = itertools.repeat(None) if support is None else support.split(rows)
        chunks = list(zip(hidden.split(rows), tokens.split(rows), supports, strict=False))
        results = [
            checkpoint(self._chunk, *chunk, temperature, entropy_gradient, use_reentrant=False)
            if torch.is_grad_enabled() and len(chunks) > 1
            else self._chunk(*chunk, temperature, entropy_gradient)
            for chunk in chunks
        ]
        return torch.cat([r[0] for r in results]), torch.cat([r[1] for r in results])

    @property
    def _is_product(self) -> bool:
        """Whether logits are a product and nothing else."""
        extras = ("logit_scale", "logits_scaling", "final_logit_softcapping")
        if any(getattr(self.config, name, None) for name in extras):
            return False
        return isinstance(self.layer, nn.Linear) and getattr(self.layer, "bias", None) is None

    def _chunk(
        self, hidden: Tensor, tokens: Tensor, support: Tensor | None, temperature: float, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        logits = self.logits(hidden) / temperature  # [n, V]
        kept = None if support is None else ops.unpack(support, logits.shape[-1])
        logp = ops.token_logp(logits, tokens, kept)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy = ops.entropy(logits)
        return logp, entropy
