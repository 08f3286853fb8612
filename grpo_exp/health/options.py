"""The group `health`: which detectors look, with which thresholds, and what is done about what they find."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from grpo_exp.errors import ConfigError
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

    def looking(self, last: bool) -> dict[str, Detector]:
        """The detectors that look. `last`: the run was sent back as often as it may be, so that what would is stopped."""
        if not self.active:
            return {}
        spent = {name: replace(one, action="stop") for name, one in self.detectors.items() if one.action == "rollback"}
        return self.detectors | (spent if last else {})

    def check(self, beta: float) -> None:
        """Raise ConfigError where a rollback would only do the same again."""
        options = self.rollback
        names = [name for name, one in self.detectors.items() if one.action == "rollback"]
        if self.active and names and options.lr_factor == 1 and (options.beta_factor == 1 or beta == 0):
            raise ConfigError(
                f"health.detectors.{names[0]}.action=rollback: health.rollback.lr_factor=1 and "
                f"beta_factor={options.beta_factor:g} with beta={beta:g} change nothing, so the same would come again. "
                "Set health.rollback.lr_factor=0.5"
            )
