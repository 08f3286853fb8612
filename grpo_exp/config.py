"""The configuration: names, types and meaning in dataclasses, values in YAML; every value is checked before a model loads.

Hydra composes; `build` turns the result into objects. An algorithm, a data set, a reward part and an engine *are* their
dataclass: the class that YAML's `kind` names is called with the options as keywords.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo_exp.errors import ConfigError, nearest
from grpo_exp.options import load_class, option

if typing.TYPE_CHECKING:
    from grpo_exp.algos.base import Algorithm
    from grpo_exp.checkpoint import CheckpointOptions
    from grpo_exp.data.base import DataSource
    from grpo_exp.evaluate import EvalOptions
    from grpo_exp.hardware import HardwareOptions
    from grpo_exp.model import ModelOptions
    from grpo_exp.rewards.base import RewardSum
    from grpo_exp.rollout.base import Engine
    from grpo_exp.track import TrackOptions
    from grpo_exp.train import OptimOptions

GROUPS = ("algo", "model", "data", "reward", "rollout", "hardware", "eval", "track", "sweeps")
T = TypeVar("T")


@dataclass
class RootOptions:
    """The options that stand at the root, the ones most often varied."""

    beta: float = option("weight of the KL term; the algorithm gives its default", low=0)
    G: int = option("samples a prompt: the size of a group", low=1)
    temperature: float = option("sampling temperature; divides the logits of policy, old policy and reference alike", above=0)
    lr: float = option("peak learning rate; the model and the algorithm give its default", above=0)
    seed: int = option("seed of sampling, prompt order and initial adapter weights", low=0)
    steps: int = option("training steps, each one rollout", low=1)
    prompts_per_step: int = option("prompts a step", low=1)
    max_new_tokens: int = option("longest completion, in tokens; the model gives its default", low=1)
    name: str = option("the run's name")


@dataclass
class RewardOptions:
    """The reward: named parts that add up."""

    name: str = option("name of this reward, for the run card and W&B")
    path: str | None = option("file.py:function of reward=custom")
    parts: dict[str, Any] = option("the parts by name; each is an option of reward/part")


@dataclass
class ObjectiveOptions:
    """What a run returns to Hydra, and so what a sweep optimises."""

    metric: str = option("an evaluation metric")
    direction: str = option("which way is better", choices=("maximize", "minimize"))


@dataclass
class Config:
    """A checked configuration, as objects."""

    root: RootOptions
    algo: Algorithm
    model: ModelOptions
    data: DataSource
    reward: RewardSum
    reward_name: str
    rollout: Engine
    hardware: HardwareOptions
    eval: EvalOptions
    track: TrackOptions
    optim: OptimOptions
    checkpoint: CheckpointOptions
    objective: ObjectiveOptions


def build(composed: DictConfig) -> Config:
    """Check everything that Hydra composed and make it objects.

    Raises:
        ConfigError: one message for the first thing that is wrong, with its key, its value and what was expected.
    """
    plain = resolved(composed)
    plain.pop("sweeps", None)
    root_names = [f.name for f in dataclasses.fields(RootOptions)]
    # Cheap checks first: the root needs no torch, so a slip there is answered at once.
    root = make(RootOptions, {name: plain[name] for name in root_names if name in plain}, "")
    _refuse_unknown(plain, [*root_names, *GROUPS, "optim", "checkpoint", "objective"], "")
    objective = make(ObjectiveOptions, plain["objective"], "objective")

    from grpo_exp.algos.base import Algorithm
    from grpo_exp.checkpoint import CheckpointOptions
    from grpo_exp.data.base import DataSource
    from grpo_exp.evaluate import EvalOptions
    from grpo_exp.hardware import HardwareOptions
    from grpo_exp.model import ModelOptions, check
    from grpo_exp.rollout.base import Engine
    from grpo_exp.track import TrackOptions
    from grpo_exp.train import OptimOptions

    config = Config(
        root=root,
        algo=_choose(Algorithm, "grpo_exp.algos", plain["algo"], "algo"),
        model=make(ModelOptions, plain["model"], "model"),
        data=_choose(DataSource, "grpo_exp.data", plain["data"], "data"),
        reward=_reward(make(RewardOptions, plain["reward"], "reward")),
        reward_name=plain["reward"]["name"],
        rollout=_choose(Engine, "grpo_exp.rollout", plain["rollout"], "rollout"),
        hardware=make(HardwareOptions, plain["hardware"], "hardware"),
        eval=make(EvalOptions, plain["eval"], "eval"),
        track=make(TrackOptions, plain["track"], "track"),
        optim=make(OptimOptions, plain["optim"], "optim"),
        checkpoint=make(CheckpointOptions, plain["checkpoint"], "checkpoint"),
        objective=objective,
    )
    check(config.model)
    _check_together(config)
    return config


def _check_together(config: Config) -> None:
    """Options that are right alone and wrong together."""
    rows = config.root.prompts_per_step * config.root.G
    if config.algo.minibatches > rows:
        raise ConfigError(
            f"algo.minibatch_count={config.algo.minibatches} cuts a rollout of {rows} rows ({config.root.prompts_per_step} prompts x "
            f"{config.root.G} samples) into empty parts; use {rows} at most, or more prompts_per_step"
        )
    if not config.objective.metric.startswith("eval/"):
        raise ConfigError(f"objective.metric={config.objective.metric!r}: expected an evaluation metric such as eval/pass@1")


def _reward(options: RewardOptions) -> RewardSum:
    from grpo_exp.rewards.base import Reward, RewardSum, check_roles

    parts = {name: _choose(Reward, "grpo_exp.rewards", part, f"reward.parts.{name}") for name, part in options.parts.items()}
    check_roles(parts)
    return RewardSum(parts)


def _choose(base: type[T], package: str, values: Any, key: str) -> T:
    """An object of the subclass of `base` that `kind` names, in the module of that name."""
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
        raise ConfigError(f"{key}: expected a group with a key 'kind', got {values!r:.80}")
    return make(load_class(package, values["kind"], base, f"{key}.kind"), values, key)


def make(cls: type[T], values: Any, key: str) -> T:
    """Call an options dataclass with values, after checking names, types, ranges and choices.

    Raises:
        ConfigError: the first that is wrong.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{key}={values!r}: expected a group of options: {', '.join(_names(cls))}")
    _refuse_unknown(values, _names(cls), key)
    missing = [name for name in _names(cls) if name not in values]
    if missing:
        raise ConfigError(f"{_join(key, missing[0])} has no value; its YAML file must give one")
    try:
        typed = OmegaConf.merge(OmegaConf.structured(cls), values)
        converted = OmegaConf.to_container(typed)
    except OmegaConfBaseException as error:
        where = str(getattr(error, "full_key", "") or "")
        field, value = _lookup(cls, values, where)
        raise ConfigError(f"{_join(key, where)}={_shown(value)}: expected {_expected(field)}") from error
    assert isinstance(converted, dict)
    _check_ranges(cls, converted, key)
    return OmegaConf.to_object(typed)  # type: ignore[return-value]


def _check_ranges(cls: type[Any], values: dict[Any, Any], key: str) -> None:
    for field in dataclasses.fields(cls):
        value, where, meta = values[field.name], _join(key, field.name), field.metadata
        nested = _hints(cls)[field.name]
        if dataclasses.is_dataclass(nested) and isinstance(value, dict):
            _check_ranges(nested, value, where)  # type: ignore[arg-type]
        if value == "???":
            raise ConfigError(f"{where} must be given: {meta['meaning']}")
        if isinstance(value, str) and meta.get("choices") and value not in meta["choices"]:
            raise ConfigError(f"{where}={value!r}: expected {', '.join(meta['choices'])}.{nearest(value, meta['choices'])}")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            low, high, above = (meta.get(k) for k in ("low", "high", "above"))
            if (
                not math.isfinite(value)
                or (low is not None and value < low)
                or (high is not None and value > high)
                or (above is not None and value <= above)
            ):
                raise ConfigError(f"{where}={value}: expected {_expected(field)}")


def _expected(field: dataclasses.Field[Any] | None) -> str:
    """What a field takes, in words."""
    if field is None:
        return "another kind of value"
    kinds = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}
    text = kinds.get(str(field.type).removesuffix(" | None"), f"a value of type {field.type}")
    meta = field.metadata
    bounds = [f"{words} {meta[name]:g}" for name, words in (("low", "at least"), ("above", "greater than"), ("high", "at most"))
              if meta.get(name) is not None]
    return f"{text} {' and '.join(bounds)}".strip() + f" ({meta.get('meaning', '')})"


def _lookup(cls: type[Any], values: Any, path: str) -> tuple[dataclasses.Field[Any] | None, Any]:
    """The field and the given value at a dotted path below an options class."""
    field: dataclasses.Field[Any] | None = None
    for name in path.replace("[", ".").replace("]", "").split("."):
        if dataclasses.is_dataclass(cls) and name in (named := {f.name: f for f in dataclasses.fields(cls)}):
            field, cls = named[name], _hints(cls)[name]
        if isinstance(values, dict):
            values = values.get(name)
    return field, values


def _refuse_unknown(values: dict[str, Any], valid: list[str], key: str) -> None:
    for name in values:
        if name not in valid:
            raise ConfigError(f"{_join(key, str(name))}: no such option. Valid: {', '.join(valid)}.{nearest(str(name), valid)}")


def _names(cls: type[Any]) -> list[str]:
    return [f.name for f in dataclasses.fields(cls)]


def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key and name else key or name


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value)


# ---- what Hydra composed, as plain values


def resolved(composed: DictConfig) -> dict[str, Any]:
    """The composed configuration as plain values, interpolations resolved.

    Raises:
        ConfigError: an interpolation or a mandatory value is missing.
    """
    try:
        plain = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        where = str(getattr(error, "full_key", "") or "")
        raise ConfigError(f"{where}: {str(error).splitlines()[0]}") from error
    assert isinstance(plain, dict)
    return {str(k): v for k, v in plain.items()}


def secret_values(composed: DictConfig) -> set[str]:
    """The values that come from the environment (`${oc.env:NAME}`), to be kept out of every file."""
    return {
        str(value)
        for node, key in _leaves(composed)
        if isinstance(raw := node._get_node(key)._value(), str) and "oc.env:" in raw and (value := node[key])  # type: ignore[union-attr]
    }


def _leaves(node: Any) -> Iterator[tuple[Any, Any]]:
    if OmegaConf.is_config(node):
        keys = list(node.keys()) if OmegaConf.is_dict(node) else range(len(node))
        for key in keys:
            child = node._get_node(key)
            if OmegaConf.is_config(child):
                yield from _leaves(child)
            elif child is not None:
                yield node, key


def difference(one: dict[str, Any], other: dict[str, Any], key: str = "") -> list[str]:
    """The dotted keys at which two configurations differ."""
    found = []
    for name in dict.fromkeys([*one, *other]):
        a, b = one.get(name), other.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += difference(a, b, _join(key, name))
        elif a != b:
            found.append(_join(key, name))
    return found
