"""Direct Preference Optimization: from stored pairs, or from pairs mined of the policy's own samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from grpo_exp import preferences
from grpo_exp.algos.base import Algorithm
from grpo_exp.batch import LossSum, Outputs, PairBatch, TokenBatch
from grpo_exp.errors import ConfigError
from grpo_exp.kl import Reference
from grpo_exp.metrics import Metrics
from grpo_exp.options import option

LONGER, ENOUGH = 1.5, 64
"""Chosen completions this many times as long as rejected ones, over this many pairs, are worth a warning."""


@dataclass
class DPO(Algorithm):
    """DPO (arXiv 2305.18290) and its relatives IPO, SLiC's hinge, robust DPO and SimPO, as `preferences.pair_loss` has them.

    Online, each prompt's best sample is chosen and its worst rejected, by total reward; a group without contrast gives no pair,
    and a step without any pair makes no update. Each batch is learned from once. Left out: pairs of every two samples of a
    group, labels by a judge, and a likelihood term on the chosen completion.
    """

    beta: float = option("weight of the reference against the preferences (set it at the root: beta=)", above=0)
    G: int = option("samples a prompt that pairs are mined from (set it at the root: G=)", low=1)
    pairs: str = option("mined: best against worst of each prompt's samples; stored: the data's", choices=("mined", "stored"))
    margin: float = option("mined pairs must differ in reward by more than this", low=0)
    loss_type: str = option("the loss of a pair", choices=("sigmoid", "robust", "hinge", "ipo", "ipo_mean", "simpo"))
    label_smoothing: float = option("share of preferences taken to be wrong, for sigmoid and robust", low=0, high=0.49)
    gamma: float = option("margin that simpo wants between the two rewards", low=0)
    reference: Reference = option("the reference")

    def __post_init__(self) -> None:
        if self.pairs == "mined" and self.G < 2:
            raise ConfigError(
                f"G={self.G}: pairs are mined from each prompt's samples, which needs two at least. Use G=2 or more, or "
                "algo=dpo_offline for the data's own pairs"
            )
        if self.label_smoothing and self.loss_type not in ("sigmoid", "robust"):
            raise ConfigError(
                f"algo.label_smoothing={self.label_smoothing:g}: algo.loss_type={self.loss_type} has none; set it to 0"
            )
        if self.gamma and self.loss_type != "simpo":
            raise ConfigError(f"algo.gamma={self.gamma:g}: algo.loss_type={self.loss_type} has none, only simpo; set it to 0")
        if self.reference.moves and not self.needs_reference:
            raise ConfigError(
                f"algo.reference.update={self.reference.update}: algo.loss_type={self.loss_type} has no reference; use fixed"
            )
        self._measured: Metrics = {}
        self._lengths = torch.zeros(3)  # pairs seen, and the tokens of their chosen and rejected completions
        self._warned = False

    @property
    def learns_from(self) -> Literal["samples", "targets", "pairs"]:
        return "samples" if self.pairs == "mined" else "pairs"

    @property
    def needs_reference(self) -> bool:
        return preferences.needs_reference(self.loss_type)  # type: ignore[arg-type]

    @property
    def moves_reference(self) -> bool:
        return self.reference.moves

    def reference_shift(self, step: int) -> float:
        return self.reference.shift(step)

    def select(self, batch: TokenBatch) -> PairBatch:
        """Mined: the best and the worst row of each group that has contrast; stored pairs stay as they are."""
        if isinstance(batch, PairBatch):
            self._measured = {"dpo/pairs": len(batch) / 2}
            return batch
        index = preferences.best_and_worst(batch.credited, batch.group, self.margin)  # [2 M]
        pairs = len(index) / 2
        self._measured = {"dpo/pairs": pairs, "dpo/pair_frac": pairs / len(batch.group.unique())}
        return PairBatch(**vars(batch.rows(index)))

    def measured(self) -> Metrics:
        return self._measured

    def loss(self, now: Outputs, batch: TokenBatch) -> LossSum:
        h = self._log_ratio_gap(now, batch)  # [M]
        pairs = torch.tensor(len(h), device=h.device)
        loss = preferences.pair_loss(h, self.loss_type, self.beta, self.label_smoothing, self.gamma)  # type: ignore[arg-type]
        logp, length = preferences.row_logp(now.logp.detach(), batch.mask), batch.mask.sum(-1)  # [2 M]
        sums = {
            "loss/policy": loss.detach().sum(),
            "dpo/margin": self.beta * h.detach().sum(),
            "dpo/accuracy": (h > 0).sum(),
            "logp/chosen": logp[0::2].sum(),
            "logp/rejected": logp[1::2].sum(),
            "length/chosen": length[0::2].sum(),
            "length/rejected": length[1::2].sum(),
        }
        return LossSum(loss.sum(), {name: (total, pairs) for name, total in sums.items()})

    def _log_ratio_gap(self, now: Outputs, batch: TokenBatch) -> Tensor:
        """h of `preferences.pair_loss`: `[M]`."""
        logp = now.logp
        if self.needs_reference:
            assert batch.ref_logp is not None
            logp = logp - batch.ref_logp
        rows = preferences.row_logp(logp, batch.mask, preferences.over_tokens(self.loss_type))  # type: ignore[arg-type]
        return preferences.difference(rows)

    def preference(self, now: Outputs, batch: TokenBatch) -> Tensor:
        return self.beta * self._log_ratio_gap(now, batch)

    def count(self, batch: TokenBatch) -> Tensor:
        return torch.tensor(len(batch) // 2, device=batch.tokens.device)

    def observe(self, metrics: Metrics) -> str | None:
        """A warning, once, where the chosen completions are much longer, so that what is learned may be length."""
        if "length/chosen" not in metrics or self._warned:
            return None
        step = torch.tensor([1.0, metrics["length/chosen"], metrics["length/rejected"]])
        self._lengths += metrics["dpo/pairs"] * step
        pairs, chosen, rejected = self._lengths.tolist()
        if pairs < ENOUGH or chosen <= LONGER * rejected:
            return None
        self._warned = True
        mean = preferences.over_tokens(self.loss_type)  # type: ignore[arg-type]
        return (
            f"chosen completions are longer: {chosen / pairs:.0f} tokens on average against {rejected / pairs:.0f}, over "
            f"{pairs:.0f} pairs. Right answers may need it; where length/mean rises and eval/pass@1 does not, length is all "
            f"that is learned{'' if mean else ', and algo=simpo, which takes means over tokens, is the remedy'}"
        )

    def state(self) -> dict[str, Any]:
        return {"lengths": self._lengths.tolist(), "warned": self._warned}

    def load(self, state: dict[str, Any]) -> None:
        self._lengths, self._warned = torch.tensor(state["lengths"]), state["warned"]

    def formula(self) -> str:
        beta, e = f"{self.beta:g}", self.label_smoothing
        smoothed = {
            "sigmoid": f"-{1 - e:g} log s({beta} h) - {e:g} log s(-{beta} h)",
            "robust": f"(-{1 - e:g} log s({beta} h) + {e:g} log s(-{beta} h)) / {1 - 2 * e:g}",
        }
        loss = {
            "hinge": f"max(0, 1 - {beta} h)",
            "simpo": f"-log s({beta} h - {self.gamma:g})",
            **dict.fromkeys(("ipo", "ipo_mean"), f"(h - {1 / (2 * self.beta):g})^2"),
            **(smoothed if e else dict.fromkeys(smoothed, f"-log s({beta} h)")),
        }[self.loss_type]
        mean = preferences.over_tokens(self.loss_type)  # type: ignore[arg-type]
        rows = f"{'mean' if mean else 'sum'} over tokens of {'log(pi / ref)' if self.needs_reference else 'log pi'}"
        mined = f";  chosen, rejected: best and worst of {self.G} samples whose rewards differ by more than {self.margin:g}"
        moved = f";  {self.reference.formula()}" if self.reference.moves else ""
        return f"mean over pairs of [{loss}];  h = chosen - rejected, each the {rows}{mined if self.online else ''}{moved}"
