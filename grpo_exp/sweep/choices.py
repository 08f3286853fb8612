"""Samplers and pruners by name, with their own options checked; those of Optuna, and the grid."""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna

from grpo_exp.errors import ConfigError, nearest

SAMPLERS = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "qmc": "QMCSampler",
    "nsgaii": "NSGAIISampler",
}
PRUNERS = {
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "successive_halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "wilcoxon": "WilcoxonPruner",
    "threshold": "ThresholdPruner",
}
NEEDED = {"cmaes": "cmaes", "gp": "scipy", "qmc": "scipy", "wilcoxon": "scipy"}
"""The package that an option needs besides Optuna."""


def check_sampler(options: Mapping[str, Any]) -> str:
    """The sampler's name, after a look at its options; `auto` and `grid` are this project's own.

    Raises:
        ConfigError: no such sampler or option, or its package is not installed.
    """
    name = _name(options, "sampler", ["auto", "grid", *SAMPLERS], "Sampler")
    if name in SAMPLERS:
        _arguments(getattr(optuna.samplers, SAMPLERS[name]), options, "sampler")
    elif wrong := set(options) - {"name", "_target_", "_partial_", "seed"}:
        raise ConfigError(f"hydra.sweeper.sampler.{min(wrong)}: {name} has no such option")
    return name


def sampler(options: Mapping[str, Any], number: int, place: int = 0) -> optuna.samplers.BaseSampler:
    """The sampler that suggests the value at `place` of trial `number`.

    It is made anew for each, its random numbers decided by its seed, the trial's number and the place alone, so that a sweep
    that was stopped goes on as if it had not been. Quasi-random sequences count by themselves and keep one seed.
    """
    name, seed = check_sampler(options), options.get("seed")
    if name not in SAMPLERS:
        return optuna.samplers.RandomSampler(seed=0)  # a grid's points are queued, nothing is left to suggest
    cls = getattr(optuna.samplers, SAMPLERS[name])
    given = _arguments(cls, options, "sampler")
    if seed is not None and name != "qmc":
        given["seed"] = int(np.random.SeedSequence((int(seed), number, place)).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        made: optuna.samplers.BaseSampler = cls(**given)
    return made


def pruner(options: Mapping[str, Any]) -> optuna.pruners.BasePruner:
    """The pruner; `patient` waits some evaluations without progress before it asks the one named by `wrapped`.

    Raises:
        ConfigError: no such pruner or option, or its package is not installed.
    """
    name = _name(options, "pruner", ["none", "patient", *PRUNERS], "Pruner")
    if name == "none":
        return optuna.pruners.NopPruner()
    if name == "patient":
        wrapped = options.get("wrapped")
        inner = pruner({"name": wrapped}) if wrapped else None
        rest = {k: v for k, v in options.items() if k not in ("name", "wrapped", "_target_", "wrapped_pruner")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.pruners.PatientPruner(inner, **rest)
    cls = getattr(optuna.pruners, PRUNERS[name])
    given = _arguments(cls, options, "pruner")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            made: optuna.pruners.BasePruner = cls(**given)
        return made
    except (TypeError, ValueError) as error:
        raise ConfigError(f"hydra.sweeper.pruner={name}: {error}") from error


def _name(options: Mapping[str, Any], what: str, valid: list[str], suffix: str) -> str:
    """The name, also from the `_target_: optuna.samplers.TPESampler` of sweep files written for Hydra's Optuna plugin."""
    name = options.get("name")
    if name is None and "_target_" in options:
        wanted = str(options["_target_"]).rpartition(".")[2].removesuffix(suffix).lower()
        name = next((n for n in valid if n.replace("_", "") == wanted), wanted)
    if name not in valid:
        raise ConfigError(f"hydra/sweeper/{what}={name}: no such {what}. Valid: {', '.join(valid)}.{nearest(str(name), valid)}")
    package = NEEDED.get(str(name))
    if package and importlib.util.find_spec(package) is None:
        raise ConfigError(f"hydra/sweeper/{what}={name} needs the package {package}: pip install {package}")
    return str(name)


def _arguments(cls: type, options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The options that the class takes.

    Raises:
        ConfigError: there is one that it does not take.
    """
    valid = [p for p in inspect.signature(cls).parameters if p != "self"]
    given = {k: v for k, v in options.items() if k not in ("name", "_target_", "_partial_")}
    for key in given:
        if key not in valid:
            raise ConfigError(
                f"hydra.sweeper.{what}.{key}: {options.get('name', cls.__name__)} has no such option. "
                f"It has {', '.join(valid)}.{nearest(key, valid)}"
            )
    return {k: v for k, v in given.items() if v is not None}
