"""The training loop: draw, credit, update, record, now and then evaluate. It names no algorithm."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from grpo_exp import dump
from grpo_exp.algos.base import Algorithm
from grpo_exp.batch import Rewards, TokenBatch
from grpo_exp.checkpoint import Checkpoints, State
from grpo_exp.errors import CheckpointError, NumericsError, RolledBack, Stopped, Unhealthy
from grpo_exp.evaluate import Evaluation, HeldOut
from grpo_exp.experience import DROPOUT_STREAM, Experience, Source
from grpo_exp.health.monitor import Monitor
from grpo_exp.learner import Learner, seed_of
from grpo_exp.memory import Rows, peak_gib
from grpo_exp.metrics import RIGHT_ABOVE, Metrics
from grpo_exp.optim import Optimizer, OptimOptions
from grpo_exp.policy import Policy
from grpo_exp.ranks import ALONE, Ranks
from grpo_exp.sharded import is_part
from grpo_exp.stop import NOTHING_TO_KEEP, StopSignals
from grpo_exp.track.base import Tracker

Hook = Callable[[int, float], None]
"""Called with (step, objective) after each evaluation; a sweep's hook may raise to prune the run."""


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
        rows: Mapping[str, Rows],
        objective: str,
        hook: Hook,
        stop: StopSignals,
        monitor: Monitor,
        ranks: Ranks = ALONE,
    ) -> None:
        """`monitor` is among the trackers too, where it hears what it judges."""
        self.policy, self.algorithm, self.source, self.evaluator = policy, algorithm, source, evaluator
        self.tracker, self.checkpoints, self.steps, self.seed, self.rows = tracker, checkpoints, steps, seed, rows
        self.max_tokens = max_tokens or math.inf
        self.objective_name, self.hook, self.stop, self.monitor, self.ranks = objective, hook, stop, monitor, ranks
        self.optimizer = Optimizer(policy, optim, lr, steps)
        self.learner = Learner(
            policy,
            algorithm,
            self.optimizer,
            rows["update_rows"],
            seed=seed,
            temperature=temperature,
            tell=self._warn,
            ranks=ranks,
        )
        for size in rows.values():
            size.tell = self._warn
        self.tokens, self.seconds, self.started = 0, 0.0, time.perf_counter()
        self.before: Evaluation | None = None
        self.after: Evaluation | None = None
        self.evaluated = -1  # the step of `after`
        self.train_outcomes: deque[float] = deque(maxlen=20)

    def run(self, state: State | None = None, forced: bool = False) -> Result:
        """Train for all steps, or until as many tokens have been sampled as are wanted; `state` is where to go on from.

        `forced`: it belongs to another configuration, and what does not fit besides weights and optimizer begins anew.

        Raises:
            Stopped: a signal came; the checkpoint of the last finished step is written.
            Unhealthy: a health check ended it; the checkpoint of the step is written.
            RolledBack: a health check sends it back to an earlier checkpoint.
            NumericsError: losses, gradients or weights are not finite.
            OutOfMemoryError: not even a single row fits.
        """
        if self.algorithm.keeps_reference:
            self.policy.freeze_reference(self.algorithm.moves_reference)
        done = 0 if state is None else self._restore(state, forced)
        if self.evaluator and state is None and self.evaluator.options.start:
            self._evaluate(0)
        elif done and self._evaluates(done) and self.evaluated != done:  # a signal came in the middle of it
            self._evaluate(done, f"in the evaluation after step {done}, whose checkpoint is there")
            self.checkpoints.rate(done, self.objective())
        if state is None and self.monitor.may_roll_back:
            self._save(0)
        for step in range(done + 1, self.steps + 1):
            self.step(step)
            with contextlib.suppress(Stopped):  # in the middle of an evaluation, which the resumed run does first
                if self._evaluates(step):
                    self._evaluate(step)
            self._heed(step)
            if self.stop():
                self._save(step)
                raise self.stop.stopped(f"after step {step}; its checkpoint is written")
            if self._last(step) or (self.checkpoints.options.every and step % self.checkpoints.options.every == 0):
                self.ranks.check_same(f"the weights after step {step}", self._fingerprint)
                self._save(step)
            if self._last(step):
                break
        return Result(self.objective(), self.tokens, self.before, self.after)

    def _last(self, step: int) -> bool:
        return step >= self.steps or self.tokens >= self.max_tokens

    def _evaluates(self, step: int) -> bool:
        every = self.evaluator.options.every if self.evaluator else 0
        return self.evaluator is not None and (self._last(step) or bool(every and step % every == 0))

    # ---- one step

    def step(self, step: int) -> None:
        """Take one step, counted from 1, and record it."""
        started = time.perf_counter()
        torch.manual_seed(seed_of(self.seed, DROPOUT_STREAM, step) + self.ranks.rank)
        drawn = self._draw(step)
        ready = time.perf_counter()
        batch = self.algorithm.select(drawn.batch)
        if len(batch):
            batch = self.learner.with_outputs(batch, step, drawn.fresh_max, drawn.replayed_max)
            drawn.keep(batch)
            batch = self.algorithm.credit(batch)
        known = time.perf_counter()
        metrics = self._update(batch, step, drawn) if len(batch) else {}
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
        for warning in filter(None, [*drawn.notes, self.algorithm.observe(metrics)]):
            self._warn(warning)
        if shift := self.algorithm.reference_shift(step):
            self.policy.update_reference(shift)
        self._row("train", step, metrics)
        if drawn.samples:
            self.tracker.samples([{"step": step, **row} for row in drawn.samples])

    def _draw(self, step: int) -> Experience:
        """What the step learns from. A signal does not wait for it: the samples are dropped, and drawn again when resumed.

        Raises:
            Stopped: the checkpoint of the step before is written, where there was one.
        """
        place = self.source.state(), self.source.tensors()
        done = step - 1
        then = f"in step {step}, before its update; the checkpoint of step {done} is there" if done else NOTHING_TO_KEEP
        try:
            with self.stop.at_once(then):
                return self.source.draw(step)
        except Stopped:
            self.source.load(*place)
            if done and done not in self.checkpoints.steps():
                self._save(done)
            raise

    def _update(self, batch: TokenBatch, step: int, drawn: Experience) -> Metrics:
        """Learn from a batch, which is left in the run's folder where that ends the run."""
        try:
            return self.learner.update(batch, step)
        except NumericsError as error:
            folder = self.checkpoints.folder.parent / f"not-finite-step-{step:06d}"
            about = {"step": step, "error": str(error), "samples": drawn.samples}
            where = self.ranks.from_first(lambda: dump.write(folder, batch, self.policy, self.source.examples, about))
            raise NumericsError(f"{error}. {where}") from error

    def _heed(self, step: int) -> None:
        """Record what the health checks find, and end the run where one of the findings asks for that.

        Raises:
            Unhealthy, RolledBack: one does.
        """
        found = self.ranks.from_first(lambda: [finding.row() for finding in self.monitor.look()])
        for row in found:
            self.tracker.finding(row)
        worst = next((row for action in ("rollback", "stop") for row in found if row["action"] == action), None)
        if worst is None:
            return
        told = f"step {step}: {worst['title']}, since step {worst['since']}"
        if worst["action"] == "rollback":
            raise RolledBack(told, worst)
        self._save(step)
        raise Unhealthy(f"{told}; its checkpoint is written. The same command goes on from it all the same")

    # ---- evaluation, records, checkpoints

    def _evaluate(self, step: int, when: str = NOTHING_TO_KEEP) -> None:
        assert self.evaluator is not None
        with self.stop.at_once(when):
            evaluation = self.evaluator(step)
        for note in evaluation.notes:
            self._warn(note)
        self.before = self.before or evaluation
        self.after, self.evaluated = evaluation, step
        metrics: Metrics = {}
        for name, (value, low, high) in evaluation.intervals().items():
            metrics |= {name: value, f"{name}_low": low, f"{name}_high": high}
        if self.train_outcomes:
            metrics["gap/train_minus_eval"] = sum(self.train_outcomes) / len(self.train_outcomes) - metrics["eval/pass@1"]
        self._row("eval", step, metrics)
        self.tracker.evaluations(evaluation.rows)
        objective = self.objective()
        if objective is not None:
            self.ranks.from_first(lambda: self.hook(step, objective))

    def objective(self) -> float | None:
        """The newest value of the metric that the run is judged by."""
        return self.after.metrics.get(self.objective_name) if self.after else None

    def _record_outcome(self, rewards: Rewards | None) -> None:
        if rewards is not None:
            self.train_outcomes.append((rewards.outcome > RIGHT_ABOVE).float().mean().item())

    def _row(self, kind: str, step: int, metrics: Metrics) -> None:
        self.seconds = time.perf_counter() - self.started
        self.tracker.metrics({"step": step, "kind": kind, "tokens": self.tokens, "seconds": round(self.seconds, 4), **metrics})

    def _warn(self, text: str) -> None:
        self.tracker.note(text, "warn")

    def _restore(self, state: State, forced: bool) -> int:
        """Go on where a checkpoint was written, to the bit; returns its step. The reference was remembered before, as it began.

        Random numbers need no state: each is a function of seed, stream, step, prompt and sample.
        """
        progress = state.progress
        self.policy.load_state(state.weights)
        self.optimizer.load(state.optimizer)
        self.optimizer.skipped = progress["skipped"]
        try:
            self.source.load(progress["source"], state.source)
            self.algorithm.load(progress["algorithm"])
        except (CheckpointError, KeyError) as error:
            if not forced:
                raise
            self._warn(f"the order of prompts and what the algorithm adapts begin anew: {error}")
        for name, size in progress["rows"].items():
            self.rows[name].restore(size)
        self.tokens, self.train_outcomes = progress["tokens"], deque(progress["train_outcomes"], maxlen=20)
        self.before, self.after = (saved and Evaluation.of(saved) for saved in (progress["before"], progress["after"]))
        self.evaluated, self.started = progress["evaluated"], time.perf_counter() - progress["seconds"]
        self.checkpoints.recall()
        return int(progress["step"])

    def _fingerprint(self) -> list[float]:
        """A number for each tensor of weights that every rank holds whole, which one that is a little different changes."""
        return [float(x.double().sum()) for x in self.policy.held().values() if not is_part(x)]

    def _save(self, step: int) -> None:
        """Write a checkpoint, unless its weights could not be gone on with.

        Raises:
            NumericsError: they are not finite.
        """
        keep = self.ranks.first or not self.policy.shared  # the others only take part in putting them together
        finite = {name: (bool(x.isfinite().all()), x if keep else None) for name, x in self.policy.weights()}
        weights = {name: x for name, (_, x) in finite.items() if x is not None}
        if broken := [name for name, (is_finite, _) in finite.items() if not is_finite]:
            raise NumericsError(
                f"step {step}: {len(broken)} of {len(finite)} tensors of weights are no longer finite ({broken[0]}), so no "
                f"checkpoint of them is written; those before are untouched. Lower lr={self.optimizer.lr:g}"
            )
        progress: dict[str, Any] = {
            "step": step,
            "tokens": self.tokens,
            "source": self.source.state(),
            "train_outcomes": list(self.train_outcomes),
            "algorithm": self.algorithm.state(),
            "skipped": self.optimizer.skipped,
            "rows": {name: rows.size for name, rows in self.rows.items()},
            "seconds": self.seconds,
            "evaluated": self.evaluated,
            "before": self.before and self.before.state(),
            "after": self.after and self.after.state(),
        }
        state = State(weights, self.optimizer.state(keep), progress, self.source.tensors())
        # An objective measured at another step says nothing about these weights.
        self.checkpoints.save(step, state, self.objective() if self.evaluated == step else None)
