"""Drawing tokens here, one at a time: what engines share that have the logits of each step in hand."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo_exp.batch import Prompts, Rollout
from grpo_exp.ops import pack
from grpo_exp.rollout.base import Engine, Sampling, uniforms

if TYPE_CHECKING:
    from grpo_exp.policy import Policy


@dataclass
class Stepwise(Engine):
    """An engine that computes logits step by step and leaves the drawing to `Draw`.

    So all of these draw the same tokens, as far as their logits are the same, and a token is drawn by inverting the cumulative
    distribution at one uniform number, so that nothing is sorted unless top-p or top-k ask for it.
    """

    @torch.no_grad()
    def sample(self, policy: Policy, prompts: Prompts, sampling: Sampling, rows: int) -> Rollout:
        group = torch.arange(len(prompts), device=policy.device).repeat_interleave(sampling.samples)  # [N]
        noise = uniforms(sampling, len(prompts)).to(policy.device)  # [N, T]
        drawn = []
        with policy.autocast():
            decode = self.decoder(policy)
            for i in range(0, len(group), rows):
                drawn.append(Draw(self, policy, prompts, group[i : i + rows], noise[i : i + rows], sampling))
                decode(drawn[-1])
        width = max(1, max(int(d.mask.sum(-1).max()) for d in drawn))

        def joined(name: str) -> Tensor:
            return torch.cat([getattr(d, name)[:, :width] for d in drawn])

        finished = torch.cat([d.finished for d in drawn])
        texts = [text for d in drawn for text in d.texts()]
        support = joined("support") if drawn[0].support is not None else None
        return Rollout(prompts, group, joined("tokens"), joined("mask"), joined("logp"), finished, texts, support)

    @abstractmethod
    def decoder(self, policy: Policy) -> Callable[[Draw], None]:
        """What draws the rows of a `Draw` to their end; good for as long as the policy's weights do not change."""


class Draw:
    """Some rows being drawn. Buffers are `[n, T]` for all rows; `alive` indexes those that go on.

    Attributes:
        prompt_tokens, prompt_mask: `[B, P]`, the prompts of these rows, left-padded.
        local: `[n]`, which of them each row continues.
        token: `[alive]`, the last token of the rows that go on.
    """

    token: Tensor

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
        self.steps, self.done = t, 0
        kept, self.local = torch.unique(group, return_inverse=True)
        self.prompt_tokens, self.prompt_mask = prompts.tokens[kept], prompts.mask[kept]

    def take(self, logits: Tensor) -> Tensor | None:
        """Draw one token for each living row, `[alive, V]`.

        Returns the places of those that go on among those that were alive; None where all of them do.
        """
        step, self.done = self.done, self.done + 1
        self.token = self._choose(logits, step)
        ended = torch.isin(self.token, self.eos) | self._stopped(step)
        self.finished[self.alive] = ended
        if self.done == self.steps:
            going = ended.new_empty(0, dtype=torch.long)
        elif not ended.any():
            return None
        else:
            going = (~ended).nonzero().squeeze(-1)
        self.alive, self.token = self.alive[going], self.token[going]
        return going

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
            cut = self.engine.cut(text)
            if cut is not None:
                hit[i] = True
                self.cut[row] = cut
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
