"""Hydra's launchers, which hand the trials of a sweep to a cluster, come in packages of their own."""

from __future__ import annotations

import importlib.util

from grpo_exp.errors import ConfigError


def check(target: str) -> None:
    """Raise ConfigError where the package of a launcher, by the class that it names, is not installed."""
    plugins, _, rest = target.partition(".")
    name = rest.partition(".")[0]
    if plugins != "hydra_plugins" or importlib.util.find_spec(f"hydra_plugins.{name}") is not None:
        return
    package = name.replace("_", "-")
    raise ConfigError(
        f"hydra/launcher: {target.rpartition('.')[2]} needs the package {package}, which is not installed: pip install "
        f"{package}. Without it, several trials at a time on this machine: hardware=auto sweep.workers=2"
    )
