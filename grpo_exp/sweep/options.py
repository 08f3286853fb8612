"""The options of a sweep: how it searches (hydra.sweeper) and how its trials are run (sweep)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grpo_exp.errors import ConfigError
from grpo_exp.options import option


@dataclass
class SweepOptions:
    """The section `sweep`: how trials are run."""

    seeds: list[int] | None = option(
        "train each trial once with each of these seeds and judge it by all; null: once, with seed"
    )
    aggregate: str = option("how the seeds' objectives become the trial's", choices=("mean", "iqm"))
    workers: int = option("trials at a time on this machine, each in a process of its own", low=1)
    retries: int = option("how often a trial that failed for a reason that may pass is run again", low=0)
    max_failures: int = option("end the sweep after so many failed trials", low=1)
    join: bool = option("work alongside a sweep that is running in the same folder, instead of refusing to")

    def __post_init__(self) -> None:
        if self.seeds is not None and (not self.seeds or len(set(self.seeds)) < len(self.seeds)):
            raise ConfigError(f"sweep.seeds={self.seeds}: expected different seeds, such as [0,1,2], or null")


@dataclass
class SearchOptions:
    """The node `hydra.sweeper`: how a sweep searches."""

    params: dict[str, Any] = option("what is searched, as on the command line")
    n_trials: int | None = option("trials wanted in all; null for all points of a grid", low=1)
    direction: Any = option("maximize or minimize; null takes objective.direction; a list for several metrics")
    metrics: list[str] | None = option("several objectives; null takes objective.metric")
    constraints: list[str] = option("metrics that a trial must keep to, such as 'kl/median <= 0.5'")
    conditions: dict[str, str] | None = option("keys that are searched under a condition only; null for none")
    from_sweep: str | None = option("folder of an earlier sweep whose trials the sampler knows from the start")
    storage: str | None = option("where the study is kept; null for study.journal in the sweep's folder")
    study_name: str | None = option("the study's name; null for the folder's")
    n_jobs: int = option("trials handed to the launcher at a time", low=1)
    sampler: dict[str, Any] = option("how points are chosen")
    pruner: dict[str, Any] = option("which trials are stopped early")

    def __post_init__(self) -> None:
        self.enqueue: list[dict[str, Any]] = []
        directions = self.direction if isinstance(self.direction, list) else [self.direction]
        for direction in directions:
            if direction not in (None, "maximize", "minimize"):
                raise ConfigError(f"hydra.sweeper.direction={direction!r}: expected maximize, minimize, or a list of these")
        if self.metrics is not None and len(directions) != len(self.metrics):
            raise ConfigError(
                f"hydra.sweeper.metrics={self.metrics} are {len(self.metrics)} objectives and hydra.sweeper.direction="
                f"{self.direction} has {len(directions)}: give one for each, such as [maximize,minimize]"
            )
        several = len(self.metrics or []) > 1
        if several and self.pruner.get("name", "none") != "none":
            raise ConfigError(
                "hydra/sweeper/pruner: with several objectives no trial can be called worse than another while it runs, so "
                "none is pruned. Use hydra/sweeper/pruner=none, or one metric"
            )
