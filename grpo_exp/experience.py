"""Where a batch comes from: online, from prompts that the policy answers, or offline, from stored examples."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_exp.advantages import contrast
from grpo_exp.batch import Example, Prompts, Rewards, Rollout, TokenBatch, concatenate
from grpo_exp.memory import Rows
from grpo_exp.metrics import Metrics, reward_metrics, text_metrics
from grpo_exp.options import option
from grpo_exp.policy import Policy
from grpo_exp.prompt_order import Order
from grpo_exp.ranks import ALONE, Ranks
from grpo_exp.replay import Replay, ReplayOptions
from grpo_exp.rewards.base import RewardSum
from grpo_exp.rollout import shared
from grpo_exp.rollout.base import Engine, Sampling

TRAIN_STREAM, EVAL_STREAM, MINIBATCH_STREAM, REPLAY_STREAM, DROPOUT_STREAM = range(5)
"""Names of the random streams, so that sampling, evaluation, minibatches, replay and dropout never share numbers."""

AHEAD = "ahead."
"""What the names of weights begin with that a rollout is sampled with while a checkpoint is written (`overlap`)."""


@dataclass
class ExperienceOptions:
    """Which of the sampled groups a step learns from."""

    max_tokens: int = option("end the run with the step in which this many tokens have been sampled; 0 for steps alone", low=0)
    dynamic_sampling: bool = option("replace groups whose outcomes are all equal by groups of new prompts")
    max_rounds: int = option("rounds of sampling in one step at most", low=1)
    skip_visits: int = option("leave a prompt whose outcomes were all equal out of its next so many visits; 0 for none", low=0)
    replay: ReplayOptions = option("groups of earlier steps in the batch")

    @property
    def rounds(self) -> int:
        """Rounds of sampling in one step at most."""
        return self.max_rounds if self.dynamic_sampling else 1

    def formula(self) -> str:
        """What is done to the samples before the algorithm's own formula; empty where nothing is."""
        parts = []
        if self.dynamic_sampling:
            parts.append(f"groups of equal outcomes replaced, {self.max_rounds} rounds at most")
        if self.skip_visits:
            parts.append(f"visits that prompts skip after equal outcomes: {self.skip_visits}")
        if self.replay.groups:
            weight = f"min(pi_old / pi_behaviour, {self.replay.weight_max:g})"
            parts.append(f"{self.replay.groups} of {self.replay.capacity} earlier groups, their terms times {weight}")
        return ";  ".join(parts)


@dataclass(frozen=True)
class Experience:
    """A batch before credit, with what is to be recorded about it.

    Attributes:
        batch: the rows.
        rewards: their rewards; None for stored examples.
        metrics: rewards, lengths, times.
        samples: rows for samples.jsonl, without the step.
        tokens: completion tokens that were sampled for it, also those of rows that are not in the batch.
        fresh_max, replayed_max: where the importance weights of this step's and of earlier rows are cut off; 0 for none.
        notes: what a person should know of it.
        keep: called with the batch once it has all log-probs, for a source that remembers some of them.
    """

    batch: TokenBatch
    rewards: Rewards | None
    metrics: Metrics
    samples: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0
    fresh_max: float = 0.0
    replayed_max: float = math.inf
    notes: list[str] = field(default_factory=list)
    keep: Callable[[TokenBatch], None] = lambda batch: None


class Source(Protocol):
    """What the loop draws from: batches made of `examples`."""

    @property
    def examples(self) -> Sequence[Example]: ...

    def draw(self, step: int) -> Experience: ...

    def state(self) -> dict[str, Any]: ...

    def tensors(self) -> dict[str, Tensor]: ...

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None: ...


class Ordered:
    """A source whose only state is its place in the order of prompts."""

    order: Order

    def state(self) -> dict[str, Any]:
        return self.order.state()

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.order.load(state)


@dataclass(frozen=True)
class _Round:
    """Prompts, their samples and rewards; what took how long, in seconds."""

    rollout: Rollout
    rewards: Rewards
    batch: TokenBatch
    contrast: Tensor  # bool [N], rows of groups whose outcomes differ
    seconds: tuple[float, float]


class Online:
    """Prompts -> samples -> rewards, round by round, and groups of earlier steps.

    With dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) a step keeps the groups whose outcomes differ and asks new
    prompts for the others, until `prompts_per_step` are kept or `max_rounds` rounds are over. What counts is the outcome, since
    a shaped reward differs within nearly every group. Where no group at all is kept, the step learns from its first round as
    it is. Metrics, samples and tokens are those of all rounds: they describe the policy and what it cost. Left out: more
    prompts in a round than are missing, which trades tokens for rounds.

    Of several ranks each samples its share, and the first scores all, as it would alone: a reward may remember, draw lots, or
    look at all samples together. So every rank has the same batch.

    Attributes:
        behind: steps between the weights that a rollout is sampled with and those that learn from it.
        weight_max: where the importance weights of a step's own rows are cut off; 0 for none.
    """

    behind = 0

    def __init__(
        self,
        policy: Policy,
        engine: Engine,
        rewards: RewardSum,
        examples: Sequence[Example],
        order: Order,
        sampling: Sampling,
        prompts_per_step: int,
        rows: Rows,
        options: ExperienceOptions,
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy, self.engine, self.rewards, self.examples, self.order = policy, engine, rewards, examples, order
        self.sampling, self.count, self.rows, self.options = sampling, prompts_per_step, rows, options
        self.ranks, self.weight_max = ranks, engine.weight_max
        self.replay = Replay(options.replay, (sampling.key[0], REPLAY_STREAM))

    def draw(self, step: int) -> Experience:
        rounds = self._rounds(step)
        fresh = whole = concatenate([done.batch for done in rounds])
        rollout, rewards = _joined(rounds, whole)
        kept = torch.cat([done.contrast for done in rounds]).to(whole.tokens.device)
        metrics = {
            **reward_metrics(rewards, rollout.group),
            **text_metrics(rollout, rewards),
            "time/rollout": sum(done.seconds[0] for done in rounds),
            "time/reward": sum(done.seconds[1] for done in rounds),
        }
        if self.options.dynamic_sampling:
            first = torch.arange(len(kept), device=kept.device) < len(rounds[0].contrast)
            fresh = whole.rows((kept if kept.any() else first).nonzero().squeeze(-1))
            metrics |= {"signal/rounds": len(rounds), "signal/kept_frac": kept.float().mean().item()}
        if self.options.skip_visits:
            metrics["signal/resting_frac"] = self.order.resting_frac
        batch = fresh
        if self.options.replay.groups:
            earlier = self.replay.draw(step, fresh.tokens.device)
            self.replay.add(fresh, step)
            batch = fresh if earlier is None else concatenate([fresh, earlier])
        tokens = int(rollout.mask.sum())
        limits = self.weight_max, self.options.replay.weight_max
        return Experience(batch, rewards, metrics, sample_rows(rollout, rewards), tokens, *limits, rewards.notes)

    def _rounds(self, step: int) -> list[_Round]:
        """Sample until enough groups have contrast, or once."""
        rounds: list[_Round] = []
        asked, missing = 0, self.count
        while missing and len(rounds) < self.options.rounds:
            done = self._round(step, missing, asked)
            rounds.append(done)
            asked += missing
            missing -= int(done.contrast.sum()) // self.sampling.samples
        return rounds

    def _round(self, step: int, count: int, asked: int) -> _Round:
        """Sample the next `count` prompts, `asked` being how many the step has asked before, and score them."""
        started = time.perf_counter()
        indices, rollout = self._sample(step, count, asked)
        sampled, over = time.perf_counter(), max(0, step - 1 - self.behind)
        rewards = self.ranks.from_first(lambda: self.rewards(rollout.completions(steps=over)))
        different = contrast(rewards.outcome, rollout.group.cpu())
        by_prompt = different[:: self.sampling.samples]  # [B], rows being ordered by prompt
        self.order.record(indices, by_prompt.tolist())
        batch = _batch(rollout, rewards, self.rewards.normalized(rewards, rollout.group.cpu()))
        return _Round(rollout, rewards, batch, different, (sampled - started, time.perf_counter() - sampled))

    def _sample(self, step: int, count: int, asked: int) -> tuple[Sequence[int], Rollout]:
        """The next `count` prompts, as indices into the examples, and their samples."""
        indices, prompts, sampling = self._next(step, count, asked)
        return indices, shared.sample(self.engine, self.policy, prompts, sampling, self.rows, self.ranks, "sampling")

    def _next(self, step: int, count: int, asked: int) -> tuple[list[int], Prompts, Sampling]:
        """Take the next `count` prompts; and how they are to be sampled in that step."""
        indices = self.order.take(count)
        seed, stream, _ = self.sampling.key
        sampling = dataclasses.replace(self.sampling, key=(seed, stream, step), first_prompt=asked)
        return indices, self.policy.prompts([self.examples[i] for i in indices]), sampling

    def state(self) -> dict[str, Any]:
        order, replay, rewards = self.order.state(), self.replay.state(), self.rewards.state()
        return {"order": order, "replay": replay, "rewards": rewards}

    def tensors(self) -> dict[str, Tensor]:
        return self.replay.tensors()

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.order.load(state["order"])
        self.replay.load(state["replay"], {name: x for name, x in tensors.items() if not name.startswith(AHEAD)})
        self.replay.forget(lambda group: (group.normalized is not None) != self.rewards.normalization.on)
        self.rewards.load(state.get("rewards", {}))  # older checkpoints have none


def _batch(rollout: Rollout, rewards: Rewards, normalized: Tensor | None) -> TokenBatch:
    """The rows of a rollout with their rewards; `normalized` as in `TokenBatch`."""
    device = rollout.tokens.device
    return TokenBatch(
        prompt_tokens=rollout.prompts.tokens,
        prompt_mask=rollout.prompts.mask,
        group=rollout.group,
        tokens=rollout.tokens,
        mask=rollout.mask,
        loss_mask=rollout.mask,
        finished=rollout.finished,
        reward=rewards.total.to(device),
        outcome=rewards.outcome.to(device),
        normalized=None if normalized is None else normalized.to(device),
        behaviour_logp=rollout.behaviour_logp,
        support=rollout.support,
    )


def _joined(rounds: list[_Round], whole: TokenBatch) -> tuple[Rollout, Rewards]:
    """The rollouts and the rewards of all rounds, whose rows are `whole`."""
    if len(rounds) == 1:
        return rounds[0].rollout, rounds[0].rewards
    assert whole.behaviour_logp is not None and whole.finished is not None
    parts = [done.rewards for done in rounds]
    rewards = Rewards(
        total=torch.cat([part.total for part in parts]),
        parts={name: torch.cat([part.parts[name] for part in parts]) for name in parts[0].parts},
        outcome=torch.cat([part.outcome for part in parts]),
        failed=None if parts[0].failed is None else torch.cat([part.failed for part in parts if part.failed is not None]),
        notes=[note for part in parts for note in part.notes],
        timeouts=sum(part.timeouts for part in parts),
        closed=None if parts[0].closed is None else torch.cat([part.closed for part in parts if part.closed is not None]),
    )
    prompts = [done.rollout.prompts for done in rounds]
    asked = Prompts(
        whole.prompt_tokens,
        whole.prompt_mask,
        texts=[text for part in prompts for text in part.texts],
        examples=[example for part in prompts for example in part.examples],
    )
    texts = [text for done in rounds for text in done.rollout.texts]
    return Rollout(
        *(asked, whole.group, whole.tokens, whole.mask, whole.behaviour_logp, whole.finished, texts, whole.support)
    ), rewards


class Offline(Ordered):
    """Stored examples with worked targets."""

    def __init__(self, policy: Policy, examples: Sequence[Example], order: Order, rows_per_step: int, max_tokens: int) -> None:
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
