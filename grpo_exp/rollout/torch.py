"""The default engine: a decoding loop of our own over the transformers model.

Each prompt is computed once for its G rows, rows that finished leave the batch, log-probs are taken while sampling, and a token
is drawn by inverting the cumulative distribution at one uniform number, so that nothing is sorted unless top-p or top-k ask for
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo_exp.batch import Prompts, Rollout
from grpo_exp.ops import pack
from grpo_exp.rollout import states
from grpo_exp.rollout.base import Engine, Sampling, uniforms

if TYPE_CHECKING:
    from grpo_exp.policy import Policy


@dataclass
class TorchEngine(Engine):
    """Decoding with a key/value cache, in eager torch."""

    @torch.no_grad()
    def sample(self, policy: Policy, prompts: Prompts, sampling: Sampling, rows: int) -> Rollout:
        group = torch.arange(len(prompts), device=policy.device).repeat_interleave(sampling.samples)  # [N]
        noise = uniforms(sampling, len(prompts)).to(policy.device)  # [N, T]
        with policy.autocast():
            begin = states.beginning(policy)
            chunks = [
                _Decoding(self, policy, prompts, group[i : i + rows], noise[i : i + rows], sampling).run(begin)
                for i in range(0, len(group), rows)
            ]
        width = max(1, max(int(c.mask.sum(-1).max()) for c in chunks))

        def joined(name: str) -> Tensor:
            return torch.cat([getattr(c, name)[:, :width] for c in chunks])

        finished = torch.cat([c.finished for c in chunks])
        texts = [text for c in chunks for text in c.texts()]
        support = joined("support") if chunks[0].support is not None else None
        return Rollout(prompts, group, joined("tokens"), joined("mask"), joined("logp"), finished, texts, support)


class _Decoding:
    """Some rows being decoded. Buffers are `[n, T]` for all rows; `alive` indexes the rows still in the batch."""

    def __init__(
        self, engine: Engine, policy: Policy, prompts: Prompts, group: Tensor, noise: Tensor, sampling: Sampling
    ) -> None:
        self.engine, self.policy, self.noise, self.sampling = engine, policy, noise, sampling
        n, t, device = len(group), sampling.max_new_tokens, policy.device
        self.tokens = torch.full((n, t), policy.pad_id, device=device)
        self.mask = torch.zeros((n, t), dtype=torch.bool, device=device)
        self.logp = torch.zeros((n, t), device=device)
        self.finished = torch.zeros(n, dtype=torch.bool, device=device)
        self.support: Tensor | None = None
        if engine.top_p < 1 or engine.top_k > 0:
            bits = -(-policy.shape.vocab_size // 8)
            self.support = torch.zeros((n, t, bits), dtype=torch.uint8, device=device)
        self.eos = torch.tensor(policy.eos_ids, device=device)
        self.cut: dict[int, str] = {}  # rows ended by a stop string -> their text
        self.alive = torch.arange(n, device=device)
        kept, self.local = torch.unique(group, return_inverse=True)
        self.prompt_tokens, self.prompt_mask = prompts.tokens[kept], prompts.mask[kept]

    def run(self, begin: Callable[..., states.State]) -> _Decoding:
        """Decode until every row has ended or has `max_new_tokens` tokens."""
        policy, steps = self.policy, self.sampling.max_new_tokens
        state = begin(policy, self.prompt_tokens, self.prompt_mask, self.local, steps)
        for step in range(steps):
            token = self._choose(policy.head(state.hidden), step)
            ended = torch.isin(token, self.eos) | self._stopped(step)
            self.finished[self.alive] = ended
            going = ~ended
            left = int(going.sum())
            if left == 0 or step + 1 == steps:
                break
            if left < len(going):
                keep = going.nonzero().squeeze(-1)
                self.alive, token = self.alive[keep], token[keep]
                state.keep(keep)
            state.advance(token)
        return self

    def _choose(self, logits: Tensor, step: int) -> Tensor:
        """Draw one token for each living row and note it: `[alive, V] -> [alive]`."""
        temperature = self.sampling.temperature
        logits = logits if temperature in (0, 1) else logits / temperature
        if self.support is not None:
            kept = _kept(logits, self.engine.top_p, self.engine.top_k)
            self.support[self.alive, step] = pack(kept)
            logits = logits.masked_fill(~kept, float("-inf"))
        logp = torch.log_softmax(logits, -1)
        if temperature > 0:
            cumulative = logp.exp().cumsum(-1)  # [alive, V]
            point = self.noise[self.alive, step, None] * cumulative[:, -1:]
            token = torch.searchsorted(cumulative, point, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)
        else:
            token = logits.argmax(-1)
        chosen = logp.gather(-1, token[:, None]).squeeze(-1)
        if self.support is not None:  # a parallel cumulative sum may step up, by rounding, where the probability is 0
            impossible = chosen == float("-inf")
            token = torch.where(impossible, logp.argmax(-1), token)
            chosen = torch.where(impossible, logp.amax(-1), chosen)
        self.tokens[self.alive, step] = token
        self.mask[self.alive, step] = True
        self.logp[self.alive, step] = chosen
        return token

    def _stopped(self, step: int) -> Tensor:
        """Which living rows just completed a stop string: bool `[alive]`."""
        hit = torch.zeros(len(self.alive), dtype=torch.bool, device=self.policy.device)
        if not self.engine.stop:
            return hit
        for i, (row, text) in enumerate(zip(self.alive.tolist(), self._decoded(self.alive, step + 1), strict=True)):
            places = [place for stop in self.engine.stop if (place := text.find(stop)) >= 0]
            if places:
                hit[i] = True
                self.cut[row] = text[: min(places)]
        return hit

    def _decoded(self, rows: Tensor, length: int) -> list[str]:
        lengths = self.mask[rows, :length].sum(-1).tolist()
        return self.policy.decode([r[:n] for r, n in zip(self.tokens[rows, :length].tolist(), lengths, strict=True)])

    def texts(self) -> list[str]:
        """The completions as text, without special tokens and cut before a stop string."""
        everything = torch.arange(len(self.tokens), device=self.policy.device)
        return [self.cut.get(i, text) for i, text in enumerate(self._decoded(everything, self.tokens.shape[1]))]


def _kept(logits: Tensor, top_p: float, top_k: int) -> Tensor:
    """The tokens that top-k, then top-p keep, the likeliest always among them: `[n, V] -> bool [n, V]`."""
    ordered, order = logits.sort(-1, descending=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    keep = rank < top_k if top_k > 0 else torch.ones_like(rank, dtype=torch.bool)
    probability = torch.softmax(ordered.masked_fill(~keep, float("-inf")), -1)
    before = probability.cumsum(-1) - probability  # mass of the likelier tokens
    keep = keep & ((before < top_p) | (rank == 0))
    return torch.zeros_like(keep.expand_as(logits)).scatter(-1, order, keep.expand_as(logits))
