"""What one batch teaches: log-probs that the loss needs, gradients micro-batch by micro-batch, optimizer steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from grpo_exp.algos.base import Algorithm
from grpo_exp.batch import LossSum, Outputs, TokenBatch
from grpo_exp.errors import NumericsError
from grpo_exp.experience import MINIBATCH_STREAM
from grpo_exp.losses import importance_weights
from grpo_exp.memory import Rows
from grpo_exp.metrics import Meter, Metrics, drift_metrics, mismatch_metrics, replay_metrics, value_metrics
from grpo_exp.optim import Optimizer
from grpo_exp.policy import Policy
from grpo_exp.ranks import ALONE, Ranks

_Part = tuple[Tensor, TokenBatch]
"""A micro-batch, behind the indices of its rows."""


class Learner:
    """Learns from batches, the same ones with the same result however many rows fit into memory at a time.

    Of several ranks each computes the log-probs and the gradients of its share of the rows; all that is decided by them is
    decided by those of all rows, on every rank alike.

    Args:
        rows: rows in one micro-batch, of the update and of the passes before it.
        tell: told what a person should read.
        ranks: who shares the work.
    """

    def __init__(
        self,
        policy: Policy,
        algorithm: Algorithm,
        optimizer: Optimizer,
        rows: Rows,
        *,
        seed: int,
        temperature: float,
        tell: Callable[[str], None],
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy, self.algorithm, self.optimizer, self.rows = policy, algorithm, optimizer, rows
        self.seed, self.tell, self.ranks = seed, tell, ranks
        self.temperature = temperature if algorithm.online else 1.0

    # ---- before the update

    @torch.no_grad()
    def with_outputs(self, batch: TokenBatch, step: int, fresh_max: float, replayed_max: float) -> TokenBatch:
        """The batch with what the reference and the policy itself say of it, where the algorithm or importance weights need it.

        `fresh_max`, `replayed_max`: where the weights of this step's and of earlier rows are cut off; 0 for none.
        """
        algorithm = self.algorithm
        weighs = bool(fresh_max) or batch.age is not None
        needs_old_logp = algorithm.needs_old_logp or weighs
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
        if weighs:
            assert batch.old_logp is not None and batch.behaviour_logp is not None
            limit = torch.full((len(batch),), fresh_max, device=batch.tokens.device)  # [N]
            if batch.age is not None:
                limit = limit.masked_fill(batch.age > 0, replayed_max)
            batch = batch.with_(weights=importance_weights(batch.old_logp, batch.behaviour_logp, batch.mask, limit))
        return batch

    def _forward(self, batch: TokenBatch) -> Outputs:
        """All rows without gradient, micro-batch by micro-batch as in the update."""
        own = self.ranks.own(batch)

        def outputs(rows: int) -> Outputs | None:
            gathered = _Gathered(own)
            with self._passes(batch, own.split(rows)) as parts:
                for index, micro in parts:
                    gathered.put(index, self.policy.forward(micro, self.temperature))
            return gathered.outputs()

        return self.ranks.whole(batch, self.rows.attempt(outputs, "the log-probs", *_widths(batch)))

    # ---- the update

    def update(self, batch: TokenBatch, step: int) -> Metrics:
        """All optimizer steps on one batch. One whose loss or gradient is not finite is not taken.

        Raises:
            NumericsError: more of these in a row than `optim.max_skips`.
        """
        rate = self.optimizer.set_rate(step)
        meter, norms, losses = Meter(), [], []
        first: Metrics = {}
        parts = self._minibatches(batch, step)
        for number, rows in enumerate(parts):
            part = batch if rows is None else batch.rows(rows)
            now, loss = self._accumulate(part, meter)
            if number == 0:
                first = self._first_pass(batch, part, self.ranks.whole(part, now))
            losses.append(loss)
            taken = self.optimizer.step(step, loss)
            if taken is None:
                self._skipped(step)
            else:
                norms.append(taken)
        adv: Metrics = {}
        if batch.advantages is not None:
            adv = {"adv/absmax": batch.advantages.masked_fill(~batch.loss_mask, 0).abs().max().item()}
        values: Metrics = {}
        if batch.values is not None and batch.returns is not None:
            values = value_metrics(batch.values, batch.returns, batch.loss_mask)
        return {
            "loss/total": sum(losses) / len(losses),
            **{name: sum(norm[name] for norm in norms) / len(norms) for name in (norms[0] if norms else ())},
            "grad/skipped": len(parts) - len(norms),
            "lr": rate,
            **adv,
            **values,
            **replay_metrics(batch),
            **meter.result(),
            **first,
        }

    def _skipped(self, step: int) -> None:
        """Say that an optimizer step was not taken, or end the run."""
        optimizer, most = self.optimizer, self.optimizer.options.max_skips
        what = f"step {step}: the loss or the gradient is not finite ({optimizer.fault})"
        if optimizer.skipped > most:
            before = f", as in the {most} optimizer steps before" if most else ""
            raise NumericsError(
                f"{what}{before}; the weights are as they were. Lower lr={optimizer.lr:g}, raise beta, or use "
                "model.dtype=float32"
            )
        self.tell(f"{what}, so the weights stay as they are; {optimizer.skipped} in a row of optim.max_skips={most}")

    def _minibatches(self, batch: TokenBatch, step: int) -> list[Tensor | None]:
        """Rows of each optimizer step, whole groups together as far as the count allows; None stands for all rows in order."""
        algorithm = self.algorithm
        if algorithm.minibatches == 1:
            return [None] * algorithm.optimizer_steps
        parts: list[Tensor | None] = []
        for epoch in range(algorithm.optimizer_steps // algorithm.minibatches):
            generator = torch.Generator().manual_seed(seed_of(self.seed, MINIBATCH_STREAM, step, epoch))
            rank = torch.randperm(int(batch.group.max()) + 1, generator=generator).to(batch.group.device)
            split = rank[batch.group[:: batch.unit]].argsort(stable=True).tensor_split(algorithm.minibatches)
            units = [part for part in split if len(part)]  # where rows were left out, there may be too few
            parts += [(part[:, None] * batch.unit + torch.arange(batch.unit, device=part.device)).flatten() for part in units]
        return parts

    def _accumulate(self, batch: TokenBatch, meter: Meter) -> tuple[Outputs | None, float]:
        """Gradients of one optimizer step, of all ranks together, and the loss; `meter` is given the sums of each micro-batch.

        Returns what the policy said of this rank's rows, None where it has none.
        """
        own, count = self.ranks.own(batch), self.algorithm.count(batch).clamp(min=1)  # 0 where every row is left out of it
        gradients = partial(self._gradients, batch, own, count)
        now, losses = self.rows.attempt(gradients, "the update", *_widths(batch))
        if self.algorithm.idle(batch).all():  # a gradient of 0, which AdamW's memory of earlier ones still moves
            for parameter in self.optimizer.parameters:
                parameter.grad = torch.zeros_like(parameter)
        self.ranks.sum_gradients([p for group in self.optimizer.groups.values() for p in group])
        losses = [loss for found in self.ranks.exchange(losses) for loss in found]
        for loss in losses:
            meter.add(loss)
        return now, sum((float(loss.total) for loss in losses), 0.0)

    def _gradients(self, batch: TokenBatch, own: TokenBatch, count: Tensor, rows: int) -> tuple[Outputs | None, list[LossSum]]:
        """Those of a rank's own rows, micro-batch by micro-batch of at most so many; gradients from before are forgotten.

        `count` divides the loss. Returns what the policy said, and the losses, each of them divided.
        """
        self.optimizer.clear()
        gathered, losses, idle = _Gathered(own), list[LossSum](), self.algorithm.idle(own)
        with self._passes(batch, _micro_batches(own, idle, rows)) as parts:
            for index, micro in parts:
                learns = self.policy.shared or not bool(idle[index].all())
                with torch.set_grad_enabled(learns):
                    now = self.policy.forward(
                        micro, self.temperature, train=True, entropy_gradient=self.algorithm.entropy_gradient
                    )
                    loss = self.algorithm.loss(now, micro)
                mean = loss.total / count * (len(index) > 0)
                if learns:
                    mean.backward()
                if len(index):
                    losses.append(loss.told(mean))
                gathered.put(index, now)
        return gathered.outputs(), losses

    @contextlib.contextmanager
    def _passes(self, batch: TokenBatch, own: Iterable[_Part]) -> Iterator[Iterable[_Part]]:
        """The micro-batches of a rank to pass through the policy. Where its weights are shared out every rank comes to as many
        passes: those that have fewer pass the batch's first rows after them, of which nothing is kept, under an empty index."""
        if not self.policy.shared:
            yield own
            return
        first = batch.rows(torch.arange(batch.unit, device=batch.tokens.device))
        nothing = torch.arange(0, device=batch.tokens.device)
        with self.ranks.in_step(list(own), (nothing, first)) as parts:
            yield parts

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
            if batch.weights is not None:
                metrics["mismatch/weight_mean"] = batch.weights[mask].mean().item()
        return metrics


def seed_of(*key: int) -> int:
    """A seed that depends on the key alone, whatever was drawn before."""
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def fresh(batch: TokenBatch) -> Tensor:
    """Tokens of the rows that this step sampled: bool `[N, T]`."""
    return batch.mask if batch.age is None else batch.mask & (batch.age == 0)[:, None]


def _micro_batches(batch: TokenBatch, idle: Tensor, size: int) -> Iterator[tuple[Tensor, TokenBatch]]:
    """Micro-batches in which rows that only are looked at stand apart from those that have a gradient."""
    if batch.unit > 1 or not idle.any():
        yield from batch.split(size)
        return
    for rows in (~idle, idle):
        for index in rows.nonzero().squeeze(-1).split(size):
            if len(index):
                yield index, batch.rows(index)


def _widths(batch: TokenBatch) -> tuple[int, int]:
    """Tokens of the longest prompt and of the longest completion."""
    return batch.prompt_tokens.shape[1], batch.tokens.shape[1]


class _Gathered:
    """Outputs of all rows of a batch, put together from those of its micro-batches, without gradient."""

    def __init__(self, batch: TokenBatch) -> None:
        self._like = torch.zeros(batch.tokens.shape, device=batch.tokens.device)
        self._fields: dict[str, Tensor] = {}

    def put(self, index: Tensor, part: Outputs) -> None:
        """Keep the outputs of the given rows, if any."""
        if not len(index):
            return
        for name, x in part._asdict().items():
            if x is not None:
                self._fields.setdefault(name, torch.zeros_like(self._like))[index, : x.shape[1]] = x.detach()

    def outputs(self) -> Outputs | None:
        """None where the batch has no rows."""
        return Outputs(**self._fields) if self._fields else None
