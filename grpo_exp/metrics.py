"""The numbers of a training step, by their contract names. Pure functions of tensors; docs/metrics.md is the glossary."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from grpo_exp import ops
from grpo_exp.advantages import contrast, group_std
from grpo_exp.batch import LossSum, Rewards, Rollout, TokenBatch

Metrics = dict[str, float]
RIGHT_ABOVE = 0.5
"""A sample counts as right where its outcome is greater than this."""


class Meter:
    """Adds up the sums of micro-batches; a mean over them is exact because it is divided once."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._maxima: dict[str, float] = {}

    def add(self, loss: LossSum) -> None:
        for name, (total, count) in loss.sums.items():
            self._sums[name][0] += float(total)
            self._sums[name][1] += float(count)
        for name, value in loss.maxima.items():
            self._maxima[name] = max(self._maxima.get(name, float("-inf")), float(value))

    def result(self) -> Metrics:
        return {name: total / count if count else 0.0 for name, (total, count) in self._sums.items()} | self._maxima


def reward_metrics(rewards: Rewards, group: Tensor) -> Metrics:
    """Reward, its spread over all rows and within groups, groups without contrast: `[N]` each."""
    group = group.cpu()
    right = rewards.outcome > RIGHT_ABOVE
    has_contrast = contrast(rewards.total, group)
    size = torch.bincount(group)[group].double()  # weights that make a mean over rows a mean over groups
    groups = (1 / size).sum()

    def over_groups(x: Tensor) -> float:
        return float((x.double() / size).sum() / groups)

    part_means = {f"reward/part/{name}": _nanmean(values) for name, values in rewards.parts.items()}
    same_outcome = ~contrast(right.float(), group)
    return {
        "reward/mean": rewards.total.mean().item(),
        "reward/std": rewards.total.std(correction=0).item(),
        "reward/group_std": over_groups(group_std(rewards.total, group, ddof=0)),
        "reward/zero_std_frac": over_groups(~has_contrast),
        "reward/all_right_frac": over_groups(same_outcome & right),
        "reward/all_wrong_frac": over_groups(same_outcome & ~right),
        **part_means,
        **({"format/rate": _nanmean(rewards.parts["format"] > RIGHT_ABOVE)} if "format" in rewards.parts else {}),
        **({"reward/failed_frac": rewards.failed.float().mean().item()} if rewards.failed is not None else {}),
        **({"reward/closed_frac": rewards.closed.float().mean().item()} if rewards.closed is not None else {}),
        **({"reward/timeouts": float(rewards.timeouts)} if rewards.timeouts else {}),
    }


def text_metrics(rollout: Rollout, rewards: Rewards) -> Metrics:
    """Lengths in tokens, truncation, diversity within groups and repetition; lengths of right and of wrong samples."""
    length = rollout.mask.sum(-1).float().cpu()  # [N]
    right = rewards.outcome > RIGHT_ABOVE
    group = rollout.group.tolist()
    unique: dict[int, set[str]] = defaultdict(set)
    for index, text in zip(group, rollout.texts, strict=True):
        unique[index].add(text)
    tokens = [row[: int(n)] for row, n in zip(rollout.tokens.tolist(), length.tolist(), strict=True)]
    by_outcome = {"length/right": length[right], "length/wrong": length[~right]}
    wasted = length[~contrast(rewards.total, rollout.group.cpu())].sum() / length.sum()
    return {
        "length/mean": length.mean().item(),
        "length/p50": length.quantile(0.5).item(),
        "length/p95": length.quantile(0.95).item(),
        **{name: x.mean().item() for name, x in by_outcome.items() if len(x)},
        "length/truncated_frac": (~rollout.finished).float().mean().item(),
        "text/unique_frac": sum(map(len, unique.values())) / len(group),
        "text/repetition": sum(ops.repeat_ngram_fraction(t) for t in tokens) / len(tokens),
        "wasted/token_frac": wasted.item(),
    }


def drift_metrics(logp: Tensor, ref_logp: Tensor, mask: Tensor) -> Metrics:
    """How far the policy is from its reference, by all three estimators: `[N, T]` each."""
    k1, k2, k3 = (ops.kl_estimate(logp, ref_logp, k)[mask] for k in ("k1", "k2", "k3"))
    median, p95 = _quantiles(k3, (0.5, 0.95))
    return {
        "kl/mean": k3.mean().item(),
        "kl/median": median,
        "kl/p95": p95,
        "kl/k1": k1.mean().item(),
        "kl/k2": k2.mean().item(),
        "kl/k3": k3.mean().item(),
    }


def mismatch_metrics(behaviour_logp: Tensor, logp: Tensor, mask: Tensor) -> Metrics:
    """Sampler's log-probs against the training forward's, before any update: `[N, T]` each."""
    gap = (behaviour_logp - logp)[mask].abs()
    return {"mismatch/abs_mean": gap.mean().item(), "mismatch/abs_max": gap.max().item()}


def replay_metrics(batch: TokenBatch) -> Metrics:
    """Rows of earlier steps: share of the batch, age in steps, importance weights of their tokens; nothing without any."""
    if batch.age is None or batch.weights is None or not (replayed := batch.age > 0).any():
        return {}
    weights = batch.weights[batch.mask & replayed[:, None]]
    return {
        "replay/frac": replayed.float().mean().item(),
        "replay/age_mean": batch.age[replayed].float().mean().item(),
        "replay/weight_mean": weights.mean().item(),
        "replay/weight_max": weights.max().item(),
    }


def value_metrics(values: Tensor, returns: Tensor, mask: Tensor) -> Metrics:
    """How well the critic knew the returns before the update that they lead to: `[N, T]` each.

    Explained variance is 1 - Var(R - V) / Var(R): 1 where the values are right but for a constant, 0 where they are no better
    than a constant, negative where they are worse. Where all returns are equal there is nothing to explain, and it is 0.
    """
    v, r = values[mask].double(), returns[mask].double()
    if not len(v):
        return {}
    spread = r.var(correction=0).item()
    left = (r - v).var(correction=0).item()
    return {
        "value/loss": (v - r).square().mean().item() / 2,
        "value/mean": v.mean().item(),
        "value/explained_var": 1 - left / spread if spread else 0.0,
    }


def _nanmean(x: Tensor) -> float:
    return x.float().nanmean().item()


def _quantiles(x: Tensor, q: tuple[float, ...]) -> list[float]:
    """Quantiles of any number of values; torch.quantile takes no more than 16 million."""
    ordered = x.sort().values
    return [ordered[round(p * (len(ordered) - 1))].item() for p in q]
