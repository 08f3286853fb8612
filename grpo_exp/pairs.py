"""Stored preference pairs: as batches, as what a run learns from, and as what it is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpo_exp.algos.base import Algorithm
from grpo_exp.batch import Example, PairBatch, TokenBatch
from grpo_exp.evaluate import EvalOptions, Evaluation
from grpo_exp.experience import Experience, Ordered
from grpo_exp.memory import Rows
from grpo_exp.policy import Policy
from grpo_exp.prompt_order import Order, PromptOrder
from grpo_exp.ranks import ALONE, Ranks

_SIDES = ("chosen", "rejected")


def pair_batch(policy: Policy, examples: Sequence[Example], max_tokens: int) -> tuple[PairBatch, list[bool]]:
    """The pairs as rows, and which rows were cut at `max_tokens`, losing their end of sequence: `[2 M]`.

    Prompts and completions are joined as ids, each completion with one end of sequence, so that no token spans the seam.
    """
    prompts = policy.prompts(list(examples))
    whole = [policy.encode_target(str(text)) for e in examples for text in (e.chosen, e.rejected)]
    cut = [row[:max_tokens] for row in whole]
    width = max(map(len, cut))
    tokens = torch.tensor([row + [policy.pad_id] * (width - len(row)) for row in cut], device=policy.device)  # [2 M, T]
    length = torch.tensor([len(row) for row in cut], device=policy.device)
    mask = torch.arange(width, device=policy.device) < length[:, None]
    group = torch.arange(len(examples), device=policy.device).repeat_interleave(2)  # [2 M]
    return PairBatch(prompts.tokens, prompts.mask, group, tokens, mask, mask), [len(row) > max_tokens for row in whole]


class Pairs(Ordered):
    """What a run learns from where the data holds pairs.

    `keep_reference`: the reference stays where it is, so its log-probs of a pair are computed once and remembered. They take
    4 bytes a token, in a checkpoint too: computed anew in another batch they would differ by rounding. A batch in which one
    pair is new, as at the end of the first epoch, is computed whole.
    """

    def __init__(
        self,
        policy: Policy,
        examples: Sequence[Example],
        order: Order,
        pairs_per_step: int,
        max_tokens: int,
        keep_reference: bool,
    ) -> None:
        self.policy, self.examples, self.order, self.count = policy, examples, order, pairs_per_step
        self.max_tokens, self.keep_reference = max_tokens, keep_reference
        self._reference: dict[int, tuple[Tensor, Tensor]] = {}

    def draw(self, step: int) -> Experience:
        index = self.order.take(self.count)
        batch, cut = pair_batch(self.policy, [self.examples[i] for i in index], self.max_tokens)
        if all(i in self._reference for i in index):
            rows = [row for i in index for row in self._reference[i]]
            batch = batch.with_(ref_logp=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))  # [2 M, T]
        length = batch.mask.sum(-1)
        metrics = {"length/mean": length.float().mean().item(), "length/truncated_frac": sum(cut) / len(cut)}

        def keep(seen: TokenBatch) -> None:
            if self.keep_reference and seen.ref_logp is not None:
                rows = [row[:n] for row, n in zip(seen.ref_logp, length.tolist(), strict=True)]
                self._reference |= dict(zip(index, zip(rows[0::2], rows[1::2], strict=True), strict=True))

        return Experience(batch, None, metrics, tokens=int(length.sum()), keep=keep)

    def tensors(self) -> dict[str, Tensor]:
        """The reference's log-probs that are known by now: in another batch they would be rounded differently."""
        return {f"{i}.{name}": row for i, pair in self._reference.items() for name, row in zip(_SIDES, pair, strict=True)}

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().load(state, tensors)
        device = self.policy.device
        known = {int(name.partition(".")[0]) for name in tensors}
        self._reference = {i: (tensors[f"{i}.{_SIDES[0]}"].to(device), tensors[f"{i}.{_SIDES[1]}"].to(device)) for i in known}


class PairEvaluator:
    """Measures on held-out pairs how often the chosen completion is preferred, in the algorithm's own sense."""

    def __init__(
        self,
        policy: Policy,
        algorithm: Algorithm,
        examples: Sequence[Example],
        options: EvalOptions,
        rows: Rows,
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy, self.algorithm, self.options, self.rows, self.ranks = policy, algorithm, options, rows, ranks
        count = min(options.max_items or len(examples), len(examples))
        self.examples = [examples[i] for i in sorted(PromptOrder(examples, seed=0, memory=0).take(count))]

    @torch.no_grad()
    def __call__(self, step: int) -> Evaluation:
        longest = max(len(self.policy.prompt_ids(e)[0]) for e in self.examples)
        share = self.ranks.share(len(self.examples))
        own = [self.examples[i] for i in share]
        mine = self.rows.attempt(partial(self._preferences, own), "evaluation", longest, self.options.max_new_tokens)
        parts = [part for found in self.ranks.exchange(mine) for part in found]
        preference = torch.cat([margin for margin, _ in parts])  # [pairs]
        texts = [text for _, part in parts for text in part]
        rows = [
            {"step": step, "category": e.category, "id": e.id, "prompt": text, "chosen": e.chosen, "rejected": e.rejected}
            | {"margin": round(margin, 6)}
            for e, text, margin in zip(self.examples, texts, preference.tolist(), strict=True)
        ]
        accuracy = (preference > 0).double() + (preference == 0).double() / 2  # a tie, as at the start, is a coin's toss
        items = {"eval/pair_accuracy": accuracy, "eval/pair_margin": preference}
        return Evaluation(items, rows, 0)

    def _preferences(self, examples: list[Example], rows: int) -> list[tuple[Tensor, list[str]]]:
        size = max(1, rows // 2)
        parts = [examples[i : i + size] for i in range(0, len(examples), size)]
        if not self.policy.shared:
            return [self._preference(part) for part in parts]
        with self.ranks.in_step(parts, self.examples[:1]) as passes:
            found = [self._preference(part) for part in passes]
        return found[: len(parts)]

    def _preference(self, examples: list[Example]) -> tuple[Tensor, list[str]]:
        """How much each chosen completion is preferred, `[pairs]`, and the prompts' texts."""
        batch: TokenBatch = pair_batch(self.policy, examples, self.options.max_new_tokens)[0]
        if self.algorithm.needs_reference:
            with self.policy.reference():
                batch = batch.with_(ref_logp=self.policy.forward(batch, 1.0).logp)
        batch = self.algorithm.select(batch)
        preference = self.algorithm.preference(self.policy.forward(batch, 1.0), batch)
        return preference.double().cpu(), [self.policy.render(e.prompt) for e in examples]
