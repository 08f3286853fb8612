"""The sweeper that Hydra finds here, since it takes none from elsewhere. All it does is in grpo_exp.sweep."""

from __future__ import annotations

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class OptunaSweeper(Sweeper):
    """Optuna behind Hydra's sweep syntax; its options are in conf/hydra/sweeper/optuna.yaml."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.config: DictConfig | None = None
        self.launcher: Any = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra.core.plugins import Plugins

        from grpo_exp.sweep.launchers import check

        check(str(config.hydra.launcher.get("_target_")))
        self.config, self.hydra_context = config, hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from grpo_exp.sweep.sweeper import sweep

        assert self.config is not None and self.hydra_context is not None
        return sweep(self.config, self.hydra_context, self.launcher, arguments)
