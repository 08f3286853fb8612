"""A few dozen training prompts, each sampled as a run samples it, with their rewards."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_exp.experience import TRAIN_STREAM, sample_rows
from grpo_exp.metrics import RIGHT_ABOVE, text_metrics
from grpo_exp.prompt_order import order_of
from grpo_exp.rollout.base import Sampling
from grpo_exp.rows.marks import item_key

if TYPE_CHECKING:
    from grpo_exp.batch import Example, Rollout
    from grpo_exp.config import Config
    from grpo_exp.data.base import Dataset
    from grpo_exp.memory import Rows
    from grpo_exp.policy import Policy

Row = dict[str, Any]


@dataclass
class Samples:
    """n samples of each of B prompts, in rows ordered by prompt.

    Attributes:
        examples: the prompts' items (B).
        each: samples of each, n.
        pool: training items that there are.
        rows: one for each sample, as in samples.jsonl.
        unlike, repetition: share of distinct completions among a prompt's, share of repeated 4-grams; sums over rows.
        seconds: it took to sample them, rewards excluded.
        ended: samples whose last token is an end of sequence.
        prompt, completion: token ids of the first prompt and of its first sample.
        notes: what rewards said of samples that they failed on.
    """

    examples: list[Example]
    each: int
    temperature: float
    pool: int
    rows: list[Row] = field(default_factory=list)
    unlike: float = 0.0
    repetition: float = 0.0
    seconds: float = 0.0
    ended: int = 0
    prompt: list[int] = field(default_factory=list)
    completion: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(row["length"] for row in self.rows)

    @property
    def groups(self) -> list[list[Row]]:
        """The rows of each prompt."""
        return [self.rows[i : i + self.each] for i in range(0, len(self.rows), self.each)]

    @property
    def right(self) -> list[int]:
        """Right samples of each prompt."""
        return [sum(row["outcome"] > RIGHT_ABOVE for row in group) for group in self.groups]

    def counts(self, name: str) -> list[list[int]]:
        """For each prompt, how often each value of `total` or `outcome` occurred; of an outcome it counts what is right."""
        right = name == "outcome"
        found = [Counter(row[name] > RIGHT_ABOVE if right else row[name] for row in group) for group in self.groups]
        return [list(counter.values()) for counter in found]

    def rates(self) -> list[Row]:
        """What pass_rates.jsonl holds: a line for each sample, named by its item, as eval.jsonl is read."""
        keys = {example.id: item_key(example) for example in self.examples}
        category = {example.id: example.category for example in self.examples}
        return [
            {"step": 0, "id": row["id"], "category": category[row["id"]], "item": keys[row["id"]], "outcome": row["outcome"]}
            for row in self.rows
        ]


def draw(config: Config, policy: Policy, data: Dataset, at_once: Rows) -> Samples:
    """Sample the prompts that the run asks first, or all of them; what rewards remember is as before.

    The random numbers are those of step 0, which no run takes: its steps are counted from 1.
    """
    root, options = config.root, config.preflight
    assert options is not None
    train = data.train
    count = min(options.prompts or len(train), len(train))
    order = order_of(data, root.seed, root.prompts_per_step)
    found = Samples([train[i] for i in order.take(count)], max(root.G, options.samples), root.temperature, len(train))
    with config.reward.unmoved():
        for first in range(0, count, root.prompts_per_step):
            _round(found, config, policy, first, at_once)
    return found


def _round(found: Samples, config: Config, policy: Policy, first: int, at_once: Rows) -> None:
    """Sample the next prompts, and score the samples."""
    root = config.root
    prompts = policy.prompts(found.examples[first : first + root.prompts_per_step])
    sampling = Sampling(root.temperature, root.max_new_tokens, found.each, (root.seed, TRAIN_STREAM, 0), first)
    started = time.perf_counter()
    rollout = at_once.attempt(
        partial(config.rollout.sample, policy, prompts, sampling), "sampling", prompts.tokens.shape[1], root.max_new_tokens
    )
    found.seconds += time.perf_counter() - started
    rewards = config.reward(rollout.completions())
    found.notes += rewards.notes
    metrics = text_metrics(rollout, rewards)
    found.unlike += metrics["text/unique_frac"] * len(rollout.texts)
    found.repetition += metrics["text/repetition"] * len(rollout.texts)
    last = _last_tokens(rollout)
    found.ended += sum(token in policy.eos_ids for token in last)
    if not found.rows:
        found.prompt = prompts.tokens[0][prompts.mask[0]].tolist()
        found.completion = rollout.tokens[0][rollout.mask[0]].tolist()
    found.rows += sample_rows(rollout, rewards)


def _last_tokens(rollout: Rollout) -> list[int]:
    """The last token of each sample, `[N]`."""
    place = (rollout.mask.sum(-1) - 1).clamp(min=0)
    last: list[int] = rollout.tokens.gather(1, place[:, None]).squeeze(-1).tolist()
    return last
