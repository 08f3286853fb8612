"""What the first training step must show whatever the task: nothing has drifted yet, and there is a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_exp.preflight.base import Finding, Line
from grpo_exp.preflight.rehearsal import Rehearsal
from grpo_exp.track.wording import number

if TYPE_CHECKING:
    from grpo_exp.config import Config
    from grpo_exp.preflight.options import PreflightOptions

SMALL_LOSS = 1e-3
ROUNDED = 0.05
"""A KL in nats that a reference in int8 explains: 0.006 was measured on SmolLM2-135M."""


@dataclass(frozen=True)
class FirstStep:
    """Step 1 on a real batch, by the names of docs/metrics.md; None where it is not measured in this configuration.

    Attributes:
        online: it learned from samples of the policy.
        updates: optimizer steps on the batch; the ratio is exactly 1 in the first alone.
        dropout: the update's forward pass drops out units, and the other passes do not.
        error: what ended it.
    """

    kl: float | None
    ratio: float | None
    mismatch: float | None
    mismatch_max: float | None
    gradient: float | None
    loss: float | None
    skipped: float
    online: bool
    updates: int
    dropout: bool
    error: str | None

    @classmethod
    def of(cls, rehearsal: Rehearsal, config: Config) -> FirstStep:
        row = rehearsal.rows[0] if rehearsal.rows else {}
        return cls(
            row.get("kl/mean"),
            row.get("ratio/max"),
            row.get("mismatch/abs_mean"),
            row.get("mismatch/abs_max"),
            row.get("grad/norm"),
            row.get("loss/total"),
            row.get("grad/skipped", 0.0),
            config.algo.online,
            config.algo.optimizer_steps,
            config.model.adapter == "lora" and config.model.lora_dropout > 0,
            None if rehearsal.error is None else str(rehearsal.error),
        )

    def lines(self) -> list[Line]:
        told = {
            "KL": self.kl,
            "largest ratio": self.ratio,
            "sampler against model": self.mismatch,
            "gradient": self.gradient,
            "loss": self.loss,
        }
        parts = [f"{name} {_exactly(value)}" for name, value in told.items() if value is not None]
        why = self._why_near_0()
        return [("first step", ", ".join(parts) or "no update"), *([("", why)] if why else [])]

    def _why_near_0(self) -> str:
        """What a small loss means, where it is small."""
        if not self.online or self.loss is None or not self.gradient or abs(self.loss) > SMALL_LOSS:
            return ""
        return (
            "the loss is near 0 by construction: the advantages of a group add up to 0 and every ratio is 1. Its gradient is "
            "not 0; the loss says nothing about progress, the reward does"
        )

    def findings(self, config: Config) -> Iterator[Finding]:
        options = config.preflight
        assert options is not None
        if self.error is not None:
            yield Finding("stop", f"the first steps failed: {self.error}")
        if self.skipped:
            yield Finding(
                "stop",
                "the loss or the gradient of the first step is not finite: numbers overflow in this dtype, or the reward is of "
                "enormous size",
                ["model.dtype=float32"] if config.model.dtype != "float32" else [],
            )
        elif self.gradient == 0:
            yield Finding(
                "warn", "the gradient of the first step is exactly 0, so it taught nothing: no group of it had contrast"
            )
        yield from self._drift(options, config.hardware.reference == "8bit")

    def _drift(self, options: PreflightOptions, rounded: bool) -> Iterator[Finding]:
        """What cannot differ before anything was learned; `rounded`: the reference is in int8."""
        if self.kl is not None and not self.kl <= options.kl:
            if self.dropout:
                yield Finding(
                    "note", f"the KL before the first update is {self.kl:.3g} and not 0: dropout", ["model.lora_dropout=0"]
                )
            elif rounded and self.kl < ROUNDED:
                yield Finding(
                    "note",
                    f"the KL before the first update is {self.kl:.3g} and not 0: the reference is in int8",
                    ["hardware.reference=cpu"],
                )
            else:
                yield Finding(
                    "stop",
                    f"the KL before the first update is {self.kl:.3g} and not 0: the reference is not the starting policy",
                )
        first = self.updates == 1 and not self.dropout
        if first and self.ratio and not abs(self.ratio - 1) <= options.mismatch:  # 0 where no token is in the loss
            yield Finding("stop", f"the policy ratio before the first update is {self.ratio:.6g} and not 1")
        if self.mismatch is not None and not self.mismatch <= options.mismatch:
            yield Finding(
                "warn",
                f"the sampler's log-probs are {self.mismatch:.3g} nats off the model's in the mean: it samples from another "
                "distribution than the one that learns",
                ["rollout.weight_max=2", "model.dtype=float32"],
            )


def _exactly(value: float) -> str:
    return f"{value:g}" if value in (0, 1) else number(value) if abs(value) >= 1e-4 else f"{value:.1e}"
