"""The group `health`: which detectors look, with which thresholds, and what is done about what they find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grpo_exp.health.base import Detector
from grpo_exp.options import option


@dataclass
class RollbackOptions:
    """What changes where a detector with action=rollback sends the run back."""

    lr_factor: float = option("lr is multiplied by this", above=0)
    beta_factor: float = option("beta is multiplied by this", above=0)
    times: int = option("so often at most; then the run is stopped instead", low=1)


@dataclass
class HealthOptions:
    """What is looked for while a run goes."""

    active: bool = option("false: nothing is looked for")
    rollback: RollbackOptions = option("what changes where the run is sent back")
    detectors: dict[str, Any] = option("the detectors by name, each with its action and its thresholds")


@dataclass(frozen=True)
class Health:
    """The group as objects."""

    active: bool
    rollback: RollbackOptions
    detectors: dict[str, Detector]
