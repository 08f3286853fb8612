"""The training loop: draw, credit, update, record, now and then evaluate. It names no algorithm."""

from __future__ import annotations

import contextlib
import math
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grpo_exp.algos.base import Algorithm
from grpo_exp.batch import Outputs, Rewards, TokenBatch
from grpo_exp.checkpoint import Checkpoints, State
from grpo_exp.errors import NumericsError, Stopped
from grpo_exp.evaluate import Evaluation, HeldOut
from grpo_exp.experience import DROPOUT_STREAM, MINIBATCH_STREAM, Source
from grpo_exp.losses import importance_weights
from grpo_exp.metrics import RIGHT_ABOVE, Meter, Metrics, drift_metrics, mismatch_metrics, replay_metrics, value_metrics
from grpo_exp.options import option
from grpo_exp.policy import Policy
from grpo_exp.stop import StopSignals
from grpo_exp.track.base import Tracker

Hook = Callable[[int, float], None]
"""Called with (step, objective) after each evaluation; a sweep's hook may raise to prune the run."""


@dataclass
class OptimOptions:
    """AdamW (arXiv 1711.05101) and the learning rate over the run; the peak rate is the root option lr."""

    weight_decay: float = option("decoupled weight decay", low=0)
    beta1: float = option("decay of the mean of gradients", low=0, high=0.999999)  # AdamW refuses 1
    beta2: float = option("decay of the mean of squared gradients", low=0, high=0.999999)
    eps: float = option("added to the root of the latter", above=0)
    clip_grad: float = option("the gradient's norm is clipped at this; 0 for no clipping", low=0)
    warmup_steps: int = option("the rate rises linearly over this many steps", low=0)
    schedule: str = option("the rate after warm-up, over the run", choices=("constant", "linear", "cosine"))
    min_ratio: float = option("where linear and cosine end, as a share of lr", low=0, high=1)

    def rate(self, lr: float, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return lr * (step + 1) / self.warmup_steps
        left = 1 - (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        shape = {"constant": 1.0, "linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2}[self.schedule]
        return lr * (self.min_ratio + (1 - self.min_ratio) * shape)


@dataclass(frozen=True)
class Result:
    """How a run ended: the objective, tokens sampled in training, first and last evaluation."""

    objective: float | None
    tokens: int
    before: Evaluation | None
    after: Evaluation | None


class Trainer:
    """One run."""

    def __init__(
        self,
        policy: Policy,
        algorithm: Algorithm,
        source: Source,
        evaluator: HeldOut | None,
        tracker: Tracker,
        checkpoints: Checkpoints,
        optim: OptimOptions,
        *,
        lr: float,
        steps: int,
        max_tokens: int,
        seed: int,
        temperature: float,
        update_rows: int,
        objective: str,
        hook: Hook,
        stop: StopSignals,
    ) -> None:
        self.policy, self.algorithm, self.source, self.evaluator = policy, algorithm, source, evaluator
        self.tracker, self.checkpoints, self.optim = tracker, checkpoints, optim
        self.lr, self.steps, self.seed, self.update_rows = lr, steps, seed, update_rows
        self.max_tokens = max_tokens or math.inf
        self.temperature = temperature if algorithm.online else 1.0
        self.objective_name, self.hook, self.stop = objective, hook, stop
        self.parameters = policy.trainable()
        self.critic = policy.critic
        groups = [self.parameters, *([self.critic.trainable()] if self.critic else [])]
        self.optimizer = torch.optim.AdamW(
            [{"params": group} for group in groups],
            lr=lr,
            betas=(optim.beta1, optim.beta2),
            eps=optim.eps,
            weight_decay=optim.weight_decay,
        )
        self.tokens, self.seconds, self.started = 0, 0.0, time.perf_counter()
        self.before: Evaluation | None = None
        self.after: Evaluation | None = None
        self.evaluated = -1  # the step of `after`
        self.train_outcomes: deque[float] = deque(maxlen=20)

    def run(self, state: State | None = None) -> Result:
        """Train for all steps, or until as many tokens have been sampled as are wanted; `state` is where to go on from.

        Raises:
            Stopped: a signal came; the checkpoint of the step just finished is written.
            NumericsError: a loss or gradient is not finite.
        """
        if self.algorithm.keeps_reference:
            self.policy.freeze_reference(self.algorithm.moves_reference)
        every = self.evaluator.options.every if self.evaluator else 0
        done = 0 if state is None else self._restore(state)
        if self.evaluator and self.evaluator.options.start and state is None:
            self._evaluate(0)
        for step in range(done + 1, self.steps + 1):
            self._step(step)
            last = step == self.steps or self.tokens >= self.max_tokens
            with contextlib.suppress(Stopped):  # in the middle of an evaluation, which is then left out
                if self.evaluator and (last or (every and step % every == 0)):
                    self._evaluate(step)
            if signum := self.stop():
                self._save(step)
                raise Stopped(signum, f"stopped by a signal after step {step}; its checkpoint is written")
            if last or (self.checkpoints.options.every and step % self.checkpoints.options.every == 0):
                self._save(step)
            if last:
                break
        return Result(self._objective(), self.tokens, self.before, self.after)

    # ---- one step

    def _step(self, step: int) -> None:
        started = time.perf_counter()
        torch.manual_seed(_seed(self.seed, DROPOUT_STREAM, step))
        drawn = self.source.draw(step)
        ready = time.perf_counter()
        batch = self.algorithm.select(drawn.batch)
        if len(batch):
            batch = self._with_outputs(batch, step, drawn.weight_max)
            drawn.keep(batch)
            batch = self.algorithm.credit(batch)
        known = time.perf_counter()
        metrics = self._update(batch, step) if len(batch) else {}
        done = time.perf_counter()
        self.tokens += drawn.tokens
        self._record_outcome(drawn.rewards)
        metrics = {
            **drawn.metrics,
            **self.algorithm.measured(),
            **metrics,
            "time/logp": known - ready,
            "time/update": done - known,
            "time/total": done - started,
            "throughput/tokens_per_s": drawn.tokens / (done - started),
            "memory/peak_gib": peak_gib(self.policy.device),
        }
        if warning := self.algorithm.observe(metrics):
            self.tracker.note(warning, "warn")
        if shift := self.algorithm.reference_shift(step):
            self.policy.update_reference(shift)
        self._row("train", step, metrics)
        if drawn.samples:
            self.tracker.samples([{"step": step, **row} for row in drawn.samples])

    @torch.no_grad()
    def _with_outputs(self, batch: TokenBatch, step: int, weight_max: float) -> TokenBatch:
        """The batch with what the reference and the policy itself say of it, where the algorithm or replayed rows need that."""
        algorithm = self.algorithm
        needs_old_logp = algorithm.needs_old_logp or batch.age is not None
        if batch.ref_logp is None and algorithm.wants_reference(step):
            with self.policy.reference():
                batch = batch.with_(ref_logp=self._forward(batch).logp)
        if needs_old_logp or algorithm.needs_entropy or algorithm.needs_values:
            old = self._forward(batch)
            batch = batch.with_(
                old_logp=old.logp if needs_old_logp else None,
                entropy=old.entropy if algorithm.needs_entropy else None,
                values=old.values if algorithm.needs_values else None,
            )
        if batch.age is not None:
            assert batch.old_logp is not None and batch.behaviour_logp is not None
            batch = batch.with_(
                weights=importance_weights(batch.old_logp, batch.behaviour_logp, batch.mask, batch.age, weight_max)
            )
        return batch

    def _forward(self, batch: TokenBatch) -> Outputs:
        """All rows without gradient, micro-batch by micro-batch as in the update."""
        whole = _Gathered(batch)
        for index, micro in batch.split(self.update_rows):
            whole.put(index, self.policy.forward(micro, self.temperature))
        return whole.outputs()

    def _update(self, batch: TokenBatch, step: int) -> Metrics:
        """All optimizer steps on one batch."""
        rate = self.optim.rate(self.lr, step - 1, self.steps)
        for group, factor in zip(self.optimizer.param_groups, self._lr_factors(), strict=True):
            group["lr"] = rate * factor
        meter, norms, losses = Meter(), [], []
        first: Metrics = {}
        for number, rows in enumerate(self._minibatches(batch, step)):
            part = batch if rows is None else batch.rows(rows)
            now, loss = self._accumulate(part, meter)
            if number == 0:
                first = self._first_pass(batch, part, now)
            norms.append(self._optimizer_step(step))
            losses.append(loss)
        adv: Metrics = {}
        if batch.advantages is not None:
            adv = {"adv/absmax": batch.advantages.masked_fill(~batch.loss_mask, 0).abs().max().item()}
        values: Metrics = {}
        if batch.values is not None and batch.returns is not None:
            values = value_metrics(batch.values, batch.returns, batch.loss_mask)
        return {
            "loss/total": sum(losses) / len(losses),
            **{name: sum(norm[name] for norm in norms) / len(norms) for name in norms[0]},
            "lr": rate,
            **adv,
            **values,
            **replay_metrics(batch),
            **meter.result(),
            **first,
        }

    def _minibatches(self, batch: TokenBatch, step: int) -> list[Tensor | None]:
        """Rows of each optimizer step, whole groups together as far as the count allows; None stands for all rows in order."""
        algorithm = self.algorithm
        if algorithm.minibatches == 1:
            return [None] * algorithm.optimizer_steps
        parts: list[Tensor | None] = []
        for epoch in range(algorithm.optimizer_steps // algorithm.minibatches):
            generator = torch.Generator().manual_seed(_seed(self.seed, MINIBATCH_STREAM, step, epoch))
            rank = torch.randperm(int(batch.group.max()) + 1, generator=generator).to(batch.group.device)
            split = rank[batch.group[:: batch.unit]].argsort(stable=True).tensor_split(algorithm.minibatches)
            units = [part for part in split if len(part)]  # where rows were left out, there may be too few
            parts += [(part[:, None] * batch.unit + torch.arange(batch.unit, device=part.device)).flatten() for part in units]
        return parts

    def _accumulate(self, batch: TokenBatch, meter: Meter) -> tuple[Outputs, float]:
        """Gradients of one optimizer step, micro-batch by micro-batch: what the policy said, and the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        count = self.algorithm.count(batch).clamp(min=1)  # 0 where every row is left out of the loss
        whole, total, idle = _Gathered(batch), 0.0, self.algorithm.idle(batch)
        for index, micro in self._micro_batches(batch, idle):
            learns = not bool(idle[index].all())
            with torch.set_grad_enabled(learns):
                now = self.policy.forward(micro, self.temperature, train=True, entropy_gradient=self.algorithm.entropy_gradient)
                loss = self.algorithm.loss(now, micro)
            if learns:
                (loss.total / count).backward()
            meter.add(loss)
            total += float(loss.total.detach() / count)
            whole.put(index, now)
        if idle.all():  # a gradient of 0, which AdamW's memory of earlier ones still moves
            for parameter in self.parameters:
                parameter.grad = torch.zeros_like(parameter)
        return whole.outputs(), total

    def _micro_batches(self, batch: TokenBatch, idle: Tensor) -> Iterator[tuple[Tensor, TokenBatch]]:
        """Micro-batches in which rows that only are looked at stand apart from those that have a gradient."""
        if batch.unit > 1 or not idle.any():
            yield from batch.split(self.update_rows)
            return
        for rows in (~idle, idle):
            for index in rows.nonzero().squeeze(-1).split(self.update_rows):
                if len(index):
                    yield index, batch.rows(index)

    def _first_pass(self, batch: TokenBatch, part: TokenBatch, now: Outputs) -> Metrics:
        """What is measured before the first optimizer step on a batch, on rows that the policy as it still is sampled.

        `now` is what it said of `part`, the rows of that step; they are all rows where there are no old log-probs.
        """
        seen, mask = fresh(part), fresh(batch)
        if not mask.any():
            return {}
        metrics = {"entropy/mean": now.entropy[seen].mean().item()} if seen.any() else {}
        logp = now.logp if batch.old_logp is None else batch.old_logp  # cut up as the reference's, so equal to the bit
        if batch.ref_logp is not None and batch.behaviour_logp is not None:  # on stored completions it would be no KL
            metrics |= drift_metrics(logp, batch.ref_logp, mask)
        if batch.behaviour_logp is not None:
            metrics |= mismatch_metrics(batch.behaviour_logp, logp, mask)
        return metrics

    def _lr_factors(self) -> list[float]:
        """The learning rate of each group of parameters as a multiple of the policy's."""
        return [1.0, *([self.critic.options.lr_factor] if self.critic else [])]

    def _optimizer_step(self, step: int) -> Metrics:
        """Clip the gradients of policy and critic, each by its own norm, and let them act; the norms before clipping."""
        norms = {"grad/norm": self._clip(self.parameters, step)}
        if self.critic:
            norms["value/grad_norm"] = self._clip(self.critic.trainable(), step)
            if step <= self.critic.options.warmup_steps:
                for parameter in self.parameters:
                    parameter.grad = None  # which AdamW passes over, weight decay included
        self.optimizer.step()
        return norms

    def _clip(self, parameters: list[nn.Parameter], step: int) -> float:
        limit = self.optim.clip_grad or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
        if not math.isfinite(norm):
            raise NumericsError(
                f"step {step}: the gradient is not finite (norm {norm}); the weights are as they were before this step. "
                f"Lower lr={self.lr:g}, raise beta, or use model.dtype=float32"
            )
        return norm

    # ---- evaluation, records, checkpoints

    def _evaluate(self, step: int) -> None:
        assert self.evaluator is not None
        with self.stop.at_once():
            evaluation = self.evaluator(step)
        self.before = self.before or evaluation
        self.after, self.evaluated = evaluation, step
        metrics: Metrics = {}
        for name, (value, low, high) in evaluation.intervals().items():
            metrics |= {name: value, f"{name}_low": low, f"{name}_high": high}
        if self.train_outcomes:
            metrics["gap/train_minus_eval"] = sum(self.train_outcomes) / len(self.train_outcomes) - metrics["eval/pass@1"]
        self._row("eval", step, metrics)
        self.tracker.evaluations(evaluation.rows)
        objective = self._objective()
        if objective is not None:
            self.hook(step, objective)

    def _objective(self) -> float | None:
        """The newest value of the metric that the run is judged by."""
        return self.after.metrics.get(self.objective_name) if self.after else None

    def _record_outcome(self, rewards: Rewards | None) -> None:
        if rewards is not None:
            self.train_outcomes.append((rewards.outcome > RIGHT_ABOVE).float().mean().item())

    def _row(self, kind: str, step: int, metrics: Metrics) -> None:
        self.seconds = time.perf_counter() - self.started
        self.tracker.metrics({"step": step, "kind": kind, "tokens": self.tokens, "seconds": round(self.seconds, 4), **metrics})

    def _restore(self, state: State) -> int:
        """Go on where a checkpoint was written, to the bit; returns its step. The reference was remembered before, as it began.

        Random numbers need no state: each is a function of seed, stream, step, prompt and sample.
        """
        progress = state.progress
        self.policy.load_state(state.weights)
        self.optimizer.load_state_dict(state.optimizer)
        self.source.load(progress["source"], state.source)
        self.algorithm.load(progress["algorithm"])
        self.tokens, self.train_outcomes = progress["tokens"], deque(progress["train_outcomes"], maxlen=20)
        self.before, self.after = (saved and Evaluation.of(saved) for saved in (progress["before"], progress["after"]))
        self.evaluated, self.started = progress["evaluated"], time.perf_counter() - progress["seconds"]
        self.checkpoints.recall()
        return int(progress["step"])

    def _save(self, step: int) -> None:
        progress: dict[str, Any] = {
            "step": step,
            "tokens": self.tokens,
            "source": self.source.state(),
            "train_outcomes": list(self.train_outcomes),
            "algorithm": self.algorithm.state(),
            "seconds": self.seconds,
            "evaluated": self.evaluated,
            "before": self.before and self.before.state(),
            "after": self.after and self.after.state(),
        }
        state = State(self.policy.state(), self.optimizer.state_dict(), progress, self.source.tensors())
        # An objective measured at another step says nothing about these weights.
        self.checkpoints.save(step, state, self._objective() if self.evaluated == step else None)


def _seed(*key: int) -> int:
    """A seed that depends on the key alone, whatever was drawn before."""
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def fresh(batch: TokenBatch) -> Tensor:
    """Tokens of the rows that this step sampled: bool `[N, T]`."""
    return batch.mask if batch.age is None else batch.mask & (batch.age == 0)[:, None]


class _Gathered:
    """Outputs of all rows of a batch, put together from those of its micro-batches, without gradient."""

    def __init__(self, batch: TokenBatch) -> None:
        self._like = torch.zeros(batch.tokens.shape, device=batch.tokens.device)
        self._fields: dict[str, Tensor] = {}

    def put(self, index: Tensor, part: Outputs) -> None:
        """Keep the outputs of the given rows."""
        for name, x in part._asdict().items():
            if x is not None:
                self._fields.setdefault(name, torch.zeros_like(self._like))[index, : x.shape[1]] = x.detach()

    def outputs(self) -> Outputs:
        return Outputs(**self._fields)


def peak_gib(device: torch.device) -> float:
    """Most memory held so far in GiB: the device's on a GPU, otherwise the process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there and in KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
