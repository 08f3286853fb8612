"""Where a batch comes from: online, from prompts that the policy answers, or offline, from stored examples."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from grpo_exp.batch import Example, Rewards, Rollout, TokenBatch
from grpo_exp.metrics import Metrics, reward_metrics, text_metrics
from grpo_exp.policy import Policy
from grpo_exp.prompt_order import PromptOrder
from grpo_exp.rewards.base import RewardSum
from grpo_exp.rollout.base import Engine, Sampling

TRAIN_STREAM, EVAL_STREAM, MINIBATCH_STREAM = 0, 1, 2
"""Names of the random streams, so that sampling, evaluation and minibatches never share numbers."""


@dataclass(frozen=True)
class Experience:
    """A batch before credit, with what is to be recorded about it.

    Attributes:
        batch: the rows.
        rewards: their rewards; None for stored examples.
        metrics: rewards, lengths, times.
        samples: rows for samples.jsonl, without the step.
        tokens: completion tokens in the batch.
    """

    batch: TokenBatch
    rewards: Rewards | None
    metrics: Metrics
    samples: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0


class Source(Protocol):
    """What the loop draws from."""

    def draw(self, step: int) -> Experience: ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any]) -> None: ...


class _Ordered:
    """A source whose only state is its place in the order of prompts."""

    order: PromptOrder

    def state(self) -> dict[str, Any]:
        return self.order.state()

    def load(self, state: dict[str, Any]) -> None:
        self.order.load(state)


class Online(_Ordered):
    """Prompts -> samples -> rewards."""

    def __init__(
        self,
        policy: Policy,
        engine: Engine,
        rewards: RewardSum,
        examples: list[Example],
        order: PromptOrder,
        sampling: Sampling,
        prompts_per_step: int,
        rows: int,
    ) -> None:
        self.policy, self.engine, self.rewards, self.examples, self.order = policy, engine, rewards, examples, order
        self.sampling, self.count, self.rows = sampling, prompts_per_step, rows

    def draw(self, step: int) -> Experience:
        started = time.perf_counter()
        prompts = self.policy.prompts([self.examples[i] for i in self.order.take(self.count)])
        seed, stream, _ = self.sampling.key
        sampling = Sampling(
            self.sampling.temperature, self.sampling.max_new_tokens, self.sampling.samples, (seed, stream, step)
        )
        rollout = self.engine.sample(self.policy, prompts, sampling, self.rows)
        sampled = time.perf_counter()
        rewards = self.rewards(rollout.completions())
        scored = time.perf_counter()
        tokens = int(rollout.mask.sum())
        metrics = {
            **reward_metrics(rewards, rollout.group),
            **text_metrics(rollout, rewards),
            "time/rollout": sampled - started,
            "time/reward": scored - sampled,
        }
        batch = TokenBatch(
            prompt_tokens=prompts.tokens,
            prompt_mask=prompts.mask,
            group=rollout.group,
            tokens=rollout.tokens,
            mask=rollout.mask,
            loss_mask=rollout.mask,
            finished=rollout.finished,
            reward=rewards.total.to(rollout.tokens.device),
            outcome=rewards.outcome.to(rollout.tokens.device),
            behaviour_logp=rollout.behaviour_logp,
            support=rollout.support,
        )
        return Experience(batch, rewards, metrics, sample_rows(rollout, rewards), tokens)


class Offline(_Ordered):
    """Stored examples with worked targets."""

    def __init__(
        self, policy: Policy, examples: list[Example], order: PromptOrder, rows_per_step: int, max_tokens: int
    ) -> None:
        self.policy, self.examples, self.order, self.count = policy, examples, order, rows_per_step
        self.max_tokens = max_tokens

    def draw(self, step: int) -> Experience:
        chosen = [self.examples[i] for i in self.order.take(self.count)]
        prompts = self.policy.prompts(chosen)
        whole = [self.policy.encode_target(str(example.target)) for example in chosen]
        targets = [target[: self.max_tokens] for target in whole]  # a target that is cut loses its end of sequence
        width = max(map(len, targets))
        tokens = torch.tensor(
            [t + [self.policy.pad_id] * (width - len(t)) for t in targets], device=self.policy.device
        )  # [N, T]
        length = torch.tensor([len(t) for t in targets], device=self.policy.device)
        mask = torch.arange(width, device=self.policy.device) < length[:, None]
        group = torch.arange(len(chosen), device=self.policy.device)
        batch = TokenBatch(prompts.tokens, prompts.mask, group, tokens, mask, loss_mask=mask)
        metrics = {
            "length/mean": length.float().mean().item(),
            "length/truncated_frac": sum(len(target) > self.max_tokens for target in whole) / len(whole),
        }
        return Experience(batch, None, metrics, tokens=int(length.sum()))


def sample_rows(rollout: Rollout, rewards: Rewards) -> list[dict[str, Any]]:
    """One row for each sample, with the fields that samples.jsonl and eval.jsonl share."""
    lengths = rollout.mask.sum(-1).tolist()
    parts = {name: [round(value, 6) for value in values.tolist()] for name, values in rewards.parts.items()}
    rows = []
    for i, (group, text, length, finished) in enumerate(
        zip(rollout.group.tolist(), rollout.texts, lengths, rollout.finished.tolist(), strict=True)
    ):
        example = rollout.prompts.examples[group]
        rows.append(
            {
                "id": example.id,
                "prompt": rollout.prompts.texts[group],
                "completion": text,
                "reference": example.answer,
                **{f"reward/part/{name}": values[i] for name, values in parts.items()},
                "total": round(rewards.total[i].item(), 6),
                "outcome": round(rewards.outcome[i].item(), 6),
                "length": length,
                "finished": finished,
            }
        )
    return rows
