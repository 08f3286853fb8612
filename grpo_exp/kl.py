"""What holds a policy near its reference: options of the KL term and of the reference, and a weight that adapts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from grpo_exp.errors import ConfigError
from grpo_exp.metrics import Metrics
from grpo_exp.options import option


@dataclass
class KL:
    """How the policy is held near its reference."""

    place: str = option(
        "where the KL term acts: in the loss, subtracted from the reward, or nowhere", choices=("loss", "reward", "none")
    )
    estimator: str = option("per-token estimator on samples of the policy", choices=("k1", "k2", "k3"))
    gradient: str = option(
        "gradient of the term in the loss: the estimator's own, or that of KL(pi || ref) itself",
        choices=("estimator", "unbiased"),
    )
    ratio_correction: bool = option("the term in the loss is multiplied by the ratio, for samples of an older policy")
    credit: str = option(
        "KL in the reward: the row's sum taken off its reward, or each token pays for itself and those after it",
        choices=("sequence", "token"),
    )
    target: float | None = option("KL that the weight adapts to, in nats a token; null for a fixed weight", above=0)
    horizon: float = option("steps over which a KL far off its target changes the weight by a fifth", low=1)
    report_every: int = option("without a KL term: every so many steps the KL is measured all the same; 0 for never", low=0)


@dataclass
class Reference:
    """Whether the reference stays where the policy began, or follows it (trust region methods, arXiv 2404.09656)."""

    update: str = option(
        "how the reference moves: not at all, a copy of the policy, a part of the way to it", choices=("fixed", "sync", "ema")
    )
    every: int = option("it moves after every so many steps", low=1)
    alpha: float = option("share of the way that ema moves it: 1 - decay", above=0, high=1)

    @property
    def moves(self) -> bool:
        return self.update != "fixed"

    def shift(self, step: int) -> float:
        """Share of the way to the policy that the reference goes after a step, counted from 1; 0 where it stays.

        arXiv 2404.09656: ref <- alpha pi + (1 - alpha) ref (soft update), or ref <- pi (hard update), every `every` steps.
        """
        if not self.moves or step % self.every:
            return 0.0
        return 1.0 if self.update == "sync" else self.alpha

    def formula(self) -> str:
        """In words, empty where it stays."""
        how = {"sync": "ref <- pi", "ema": f"ref <- {self.alpha:g} pi + {1 - self.alpha:g} ref"}
        return f"{how[self.update]} every {self.every} steps" if self.moves else ""


class Weight:
    """The weight beta of a KL term, fixed or moved towards a target.

    Ziegler et al. (arXiv 1909.08593, section 2.2): e = clip(KL / target - 1, -0.2, 0.2), beta <- beta (1 + K e), with
    K = 1 / horizon; there K is 0.1. Their KL is that of whole completions, ours is a mean over tokens (the metric kl/mean), so
    that a target does not depend on the length. The weight changes by factors: it never becomes 0 or negative.
    """

    def __init__(self, beta: float, kl: KL) -> None:
        if kl.target is not None and (beta == 0 or kl.place == "none"):
            raise ConfigError(
                f"algo.kl.target={kl.target:g} adapts the weight of the KL term, and there is none with beta={beta:g} and "
                f"algo.kl.place={kl.place}. Use beta above 0 and place loss or reward, or algo.kl.target=null"
            )
        self.value, self._beta, self._kl = beta, beta, kl

    def observe(self, metrics: Metrics) -> None:
        """Told the metrics of a step; without `kl/mean` nothing changes."""
        target, measured = self._kl.target, metrics.get("kl/mean")
        if target is not None and measured is not None and math.isfinite(measured):
            self.value *= 1 + min(0.2, max(-0.2, measured / target - 1)) / self._kl.horizon

    def state(self) -> dict[str, Any]:
        """What changes while training, as JSON values; nothing for a fixed weight."""
        return {} if self._kl.target is None else {"kl_weight": self.value}

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned."""
        self.value = float(state.get("kl_weight", self.value))

    @property
    def symbol(self) -> str:
        """What stands for it in a formula: the number, or beta where that changes."""
        return f"{self.value:g}" if self._kl.target is None else "beta"

    def formula(self) -> str:
        """What moves it, in words; empty for a fixed weight."""
        if self._kl.target is None:
            return ""
        return f"beta = {self._beta:g} at first, adapted to a KL of {self._kl.target:g} a token, horizon {self._kl.horizon:g}"
