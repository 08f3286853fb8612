"""Held-out evaluation: pass@1, pass@k, maj@k, format, length, by category; each item is kept, so that runs compare in pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_exp.batch import Example, Rollout
from grpo_exp.experience import EVAL_STREAM, sample_rows
from grpo_exp.memory import Rows
from grpo_exp.metrics import RIGHT_ABOVE, Metrics
from grpo_exp.options import option
from grpo_exp.policy import Policy
from grpo_exp.prompt_order import PromptOrder
from grpo_exp.ranks import ALONE, Ranks
from grpo_exp.rewards.base import Reward, RewardSum
from grpo_exp.rollout import shared
from grpo_exp.rollout.base import Engine, Sampling
from grpo_exp.rows.marks import item_key
from grpo_exp.stats import Interval, bootstrap_mean, paired_difference, pass_at_k


@dataclass
class EvalOptions:
    """How the held-out items are asked."""

    every: int = option("evaluate every so many steps, besides the start and the end; 0 for these two alone", low=0)
    start: bool = option("evaluate before the first step")
    samples: int = option("samples of each item: the k of pass@k and maj@k", low=1)
    temperature: float = option("sampling temperature of evaluation; 0 takes the likeliest token", low=0)
    max_items: int = option("evaluate on this many held-out items at most, a fair share of every category; 0 for all", low=0)
    max_new_tokens: int = option("longest completion, in tokens", low=1)
    seed: int = option("random numbers of evaluation, the same at every step so that differences come from the model", low=0)


@dataclass(frozen=True)
class Evaluation:
    """Results on some items.

    Attributes:
        items: metric name -> one value per item, `[items]`, NaN where it does not apply.
        rows: one per item and sample, for eval.jsonl.
        tokens: completion tokens sampled.
        notes: what a person should know of it.
    """

    items: dict[str, Tensor]
    rows: list[dict[str, Any]]
    tokens: int
    notes: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> Metrics:
        return {name: values.nanmean().item() for name, values in self.items.items()}

    def intervals(self) -> dict[str, Interval]:
        """Mean and 95 % interval over items of every metric."""
        return {name: bootstrap_mean(values[~values.isnan()]) for name, values in self.items.items()}

    def state(self) -> dict[str, Any]:
        """The items' values for a checkpoint, without the rows, which are in eval.jsonl."""
        return {"items": {name: values.tolist() for name, values in self.items.items()}, "tokens": self.tokens}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Evaluation:
        """What `state` was taken of."""
        items = {name: torch.tensor(values, dtype=torch.float64) for name, values in state["items"].items()}
        return cls(items, [], state["tokens"])

    def minus(self, before: Evaluation) -> dict[str, Interval]:
        """Paired differences over the same items, with intervals."""
        return {
            name: paired_difference(before.items[name][keep], values[keep])
            for name, values in self.items.items()
            if name in before.items and bool((keep := ~(values.isnan() | before.items[name].isnan())).any())
        }


class HeldOut(Protocol):
    """What measures a policy on held-out items, in the same way every time."""

    options: EvalOptions

    def __call__(self, step: int) -> Evaluation: ...


class Evaluator:
    """Asks the held-out items and scores the answers. Of several ranks each asks its share, and the first scores all."""

    def __init__(
        self,
        policy: Policy,
        engine: Engine,
        rewards: RewardSum,
        examples: Sequence[Example],
        options: EvalOptions,
        rows: Rows,
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy, self.engine, self.rewards, self.options, self.rows = policy, engine, rewards, options, rows
        self.ranks = ranks
        count = min(options.max_items or len(examples), len(examples))
        self.examples = [examples[i] for i in sorted(PromptOrder(examples, seed=0, memory=0).take(count))]
        self._about = [{"category": example.category, "item": item_key(example)} for example in self.examples]

    def __call__(self, step: int) -> Evaluation:
        options = self.options
        sampling = Sampling(options.temperature, options.max_new_tokens, options.samples, (options.seed, EVAL_STREAM, 0))
        prompts = self.policy.prompts(self.examples)
        rollout = shared.sample(self.engine, self.policy, prompts, sampling, self.rows, self.ranks, "evaluation")
        return self.ranks.from_first(lambda: self._scored(rollout, step))

    def _scored(self, rollout: Rollout, step: int) -> Evaluation:
        """What the answers are worth."""
        options = self.options
        with self.rewards.unmoved():
            rewards = self.rewards(rollout.completions(steps=step))
        answers = [self.rewards.outcome_part.answer(text) for text in rollout.texts]
        rows = [
            {"step": step, **self._about[i // options.samples], **row, "answer": answer}
            for i, (row, answer) in enumerate(zip(sample_rows(rollout, rewards), answers, strict=True))
        ]
        right = (rewards.outcome > RIGHT_ABOVE).view(-1, options.samples)  # [items, samples]
        votes = None
        if type(self.rewards.outcome_part).answer is not Reward.answer:
            closed = [False] * len(answers) if rewards.closed is None else rewards.closed.tolist()
            votes = [None if shut else answer for answer, shut in zip(answers, closed, strict=True)]  # which counts nothing
        items = _items(right, votes, options.samples)
        items["eval/length"] = rollout.mask.sum(-1).cpu().double().view_as(right).mean(-1)
        items["eval/truncated_frac"] = (~rollout.finished).cpu().double().view_as(right).mean(-1)
        items["eval/reward"] = rewards.total.double().view_as(right).mean(-1)
        if "format" in rewards.parts:
            items["eval/format"] = (rewards.parts["format"] > RIGHT_ABOVE).double().view_as(right).mean(-1)
        if rewards.failed is not None:
            items["eval/failed_frac"] = rewards.failed.double().view_as(right).mean(-1)
        items |= _by_category(items["eval/pass@1"], [e.category for e in self.examples])
        return Evaluation(items, rows, int(rollout.mask.sum()), rewards.notes)


def _items(right: Tensor, answers: list[str | None] | None, samples: int) -> dict[str, Tensor]:
    """pass@1, pass@k and maj@k of each item; k is the number of samples. No maj@k where the reward knows no answers."""
    counts = right.sum(-1).tolist()
    items = {"eval/pass@1": right.double().mean(-1)}
    if samples > 1:
        items["eval/pass@k"] = torch.tensor([pass_at_k(c, samples, samples) for c in counts], dtype=torch.float64)
        if answers is not None:
            groups = [answers[i : i + samples] for i in range(0, len(answers), samples)]
            items["eval/maj@k"] = torch.tensor(
                [_majority_right(group, row) for group, row in zip(groups, right.tolist(), strict=True)], dtype=torch.float64
            )
    return items


def _majority_right(answers: list[str | None], right: list[bool]) -> float:
    """1.0 where the most frequent answer is right; ties go to the answer given first; no answer at all is wrong."""
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    winner = votes.most_common(1)[0][0]
    return float(right[answers.index(winner)])


def _by_category(pass_at_1: Tensor, categories: list[str]) -> dict[str, Tensor]:
    """pass@1 of each category as columns that are NaN elsewhere; nothing where there is one category only."""
    names = list(dict.fromkeys(categories))
    if len(names) < 2:
        return {}
    return {
        f"eval/pass@1/{name}": pass_at_1.masked_fill(torch.tensor([c != name for c in categories]), float("nan"))
        for name in names
    }
