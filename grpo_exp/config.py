"""The configuration: names, types and meaning in dataclasses, values in YAML; every value is checked before a model loads.

Hydra composes; `build` turns the result into objects. An algorithm, a data set, a reward part and an engine *are* their
dataclass: the class that YAML's `kind` names is called with the options as keywords.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from grpo_exp.errors import ConfigError, nearest
from grpo_exp.options import load_class, option
from grpo_exp.parts import Gate, Normalization
from grpo_exp.paths import expanded
from grpo_exp.preflight.options import PreflightOptions
from grpo_exp.schema import join, make, names, refuse_unknown
from grpo_exp.sweep.options import SweepOptions

if typing.TYPE_CHECKING:
    from grpo_exp.algos.base import Algorithm
    from grpo_exp.checkpoint import CheckpointOptions
    from grpo_exp.data.base import DataSource
    from grpo_exp.evaluate import EvalOptions
    from grpo_exp.experience import ExperienceOptions
    from grpo_exp.hardware import HardwareOptions
    from grpo_exp.health.options import Health
    from grpo_exp.model import ModelOptions
    from grpo_exp.optim import OptimOptions
    from grpo_exp.rewards.base import RewardSum
    from grpo_exp.rollout.base import Engine
    from grpo_exp.track import TrackOptions

SECTIONS = (
    *("algo", "model", "data", "reward", "rollout", "hardware", "eval", "track", "health"),
    *("sweep", "preflight", "experience", "optim", "checkpoint", "objective"),
)
"""What stands at the root besides the root options: the groups, and six sections of conf/config.yaml."""
BEFORE_A_RUN = ("sweep", "preflight")
"""Sections about what is done around a run; a run's own config.yaml is without them."""

T = TypeVar("T")


@dataclass
class RootOptions:
    """The options that stand at the root, the ones most often varied."""

    beta: float = option("weight of the KL term; the algorithm gives its default", low=0)
    G: int = option("samples a prompt: the size of a group", low=1)
    temperature: float = option("sampling temperature; divides the logits of policy, old policy and reference alike", above=0)
    lr: float = option("peak learning rate; the model and the algorithm give its default", above=0)
    seed: int = option("seed of sampling, prompt order and initial adapter weights", low=0, high=2**32 - 1)
    steps: int = option("training steps, each one rollout", low=1)
    prompts_per_step: int = option("prompts a step", low=1)
    max_new_tokens: int = option("longest completion, in tokens; the model gives its default", low=1)
    name: str = option("the run's name")


@dataclass
class RewardOptions:
    """The reward: named parts that add up."""

    name: str = option("name of this reward, for the run card and W&B")
    path: str | None = option("file.py:function of reward=custom")
    style: str = option(
        "whose convention the function of reward=custom follows; auto: told by its signature",
        choices=("auto", "grpo_exp", "trl", "verl"),
    )
    kwargs: dict[str, Any] = option("more arguments for that function, by name")
    on_error: str = option(
        "a part that raises, takes too long or returns no finite number: error ends the run; zero lets it add nothing to those "
        "samples, and counts them",
        choices=("error", "zero"),
    )
    max_failed: float = option("with zero: the share of a step's samples that a part may fail on", low=0, high=1)
    timeout: float = option("seconds that a part may take for the samples of a step, or of an evaluation", above=0)
    gate: Gate = option("parts with role=gate")
    normalize: Normalization = option("each part normalised within its group before they are added up")
    sandbox: str = option("what shuts in programs that a policy wrote; none: nothing", choices=("bubblewrap", "none"))
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
    experience: ExperienceOptions
    optim: OptimOptions
    checkpoint: CheckpointOptions
    objective: ObjectiveOptions
    health: Health
    preflight: PreflightOptions | None = None


def build(composed: DictConfig, judged: bool = True) -> Config:
    """Check everything that Hydra composed and make it objects. `judged`: the objective has to be one that is measured.

    Raises:
        ConfigError: one message for the first thing that is wrong, with its key, its value and what was expected.
    """
    plain = resolved(composed)
    plain.pop("sweeps", None)
    # Cheap checks first: the root needs no torch, so a slip there is answered at once.
    at_root = names(RootOptions)
    refuse_unknown(plain, [*at_root, *SECTIONS], "")
    for section in SECTIONS:
        if section not in plain and section not in BEFORE_A_RUN:
            raise ConfigError(
                f"{section}: missing; the root of the configuration is conf/config.yaml, and a run needs all of it"
            )
    root = make(RootOptions, {name: plain[name] for name in at_root if name in plain}, "")
    _check_name(root.name)
    if "sweep" in plain:
        make(SweepOptions, plain["sweep"], "sweep")
    objective = make(ObjectiveOptions, plain["objective"], "objective")

    from grpo_exp.algos.base import Algorithm
    from grpo_exp.checkpoint import CheckpointOptions
    from grpo_exp.evaluate import EvalOptions
    from grpo_exp.experience import ExperienceOptions
    from grpo_exp.hardware import HardwareOptions
    from grpo_exp.model import ModelOptions, check
    from grpo_exp.optim import OptimOptions
    from grpo_exp.rollout.base import Engine
    from grpo_exp.track import TrackOptions

    reward = make(RewardOptions, plain["reward"], "reward")
    config = Config(
        root=root,
        algo=_choose(Algorithm, "grpo_exp.algos", plain["algo"], "algo"),
        model=make(ModelOptions, plain["model"], "model"),
        data=_data(plain["data"]),
        reward=_reward(reward),
        reward_name=reward.name,
        rollout=_choose(Engine, "grpo_exp.rollout", plain["rollout"], "rollout"),
        hardware=make(HardwareOptions, plain["hardware"], "hardware"),
        eval=make(EvalOptions, plain["eval"], "eval"),
        track=make(TrackOptions, plain["track"], "track"),
        experience=make(ExperienceOptions, plain["experience"], "experience"),
        optim=make(OptimOptions, plain["optim"], "optim"),
        checkpoint=make(CheckpointOptions, plain["checkpoint"], "checkpoint"),
        objective=objective,
        health=build_health(plain["health"]),
        preflight=make(PreflightOptions, plain["preflight"], "preflight") if "preflight" in plain else None,
    )
    check(config.model)
    _check_together(config)
    if judged:
        _check_objective(config)
    return config


def _check_name(name: str) -> None:
    """The run's name becomes part of a folder's name."""
    if not re.fullmatch(r"[\w.,=+@ -]{1,150}", name) or name.startswith("."):
        raise ConfigError(
            f"name={name!r}: it becomes part of a folder's name; use up to 150 letters, digits, blanks and . , = + @ _ -"
        )


def _data(values: Any) -> DataSource:
    """The data set, and where it is a mixture, the sources of it.

    Raises:
        ConfigError: an option is wrong; those of a source are named with it.
    """
    from grpo_exp.data.base import DataSource
    from grpo_exp.data.mixed import MixedData

    data = _choose(DataSource, "grpo_exp.data", values, "data")
    if not isinstance(data, MixedData):
        return data
    shared = {key: values[key] for key in names(DataSource) if key not in ("name", "kind")}
    for name, source in data.sources.items():
        key = f"data.sources.{name}"
        if not isinstance(source, dict) or source.get("kind") == "mixed":
            raise ConfigError(f"{key}={source!r:.80}: expected the options of a data set other than mixed: +data@{key}=OPTION")
        if beyond := next((option for option in shared if option in source), None):
            raise ConfigError(f"{key}.{beyond}: it holds for all sources together: data.{beyond}={source[beyond]}")
        try:
            data.parts[name] = _choose(DataSource, "grpo_exp.data", shared | source, key)
        except ConfigError as error:
            if str(error).startswith(key):
                raise
            raise ConfigError(f"{key}: {error}") from error
    return data


def _check_together(config: Config) -> None:
    """Options that are right alone and wrong together."""
    from grpo_exp import overlap, placement
    from grpo_exp.data.base import check_rates

    check_rates(config.data)
    rows = config.root.prompts_per_step * config.root.G
    if config.algo.minibatches > rows:
        raise ConfigError(
            f"algo.minibatch_count={config.algo.minibatches} cuts a rollout of {rows} rows ({config.root.prompts_per_step} "
            f"prompts x {config.root.G} samples) into empty parts; use {rows} at most, or more prompts_per_step"
        )
    critic, steps = config.algo.critic, config.root.steps
    if critic is not None and critic.warmup_steps >= steps:
        raise ConfigError(
            f"algo.critic.warmup_steps={critic.warmup_steps}: the critic alone learns in that many steps, and with "
            f"steps={steps} the policy would never. Use {steps - 1} at most, or more steps"
        )
    if config.reward.normalization.on and config.algo.online and config.root.G < 2:
        raise ConfigError(
            f"reward.normalize.scale=group: within a group of G={config.root.G} sample every part is normalised to 0. Use G=2 "
            "or more, or reward.normalize.scale=none"
        )
    config.health.check(config.root.beta)
    _check_weights(config)
    _check_experience(config)
    overlap.check(config)
    placement.check(config)


def _check_objective(config: Config) -> None:
    """The run is judged by what its evaluation measures."""
    metric, known = config.objective.metric, measured(config)
    by_category = metric.startswith("eval/pass@1/") and "eval/pass@1" in known
    if metric not in known and not by_category:
        more = ", and eval/pass@1/CATEGORY" if "eval/pass@1" in known else ""
        raise ConfigError(
            f"objective.metric={metric!r}: evaluation does not measure it with these options. It measures "
            f"{', '.join(known)}{more}.{nearest(metric, known)}{_pairs_or_answers(config)}"
        )


def _pairs_or_answers(config: Config) -> str:
    """The way out where a policy that learns from pairs is measured on pairs, and the objective is of answers."""
    if config.algo.product != "policy" or not measures_pairs(config):
        return ""
    return " Use objective.metric=eval/pair_accuracy, or name the field of the answers with data.answer= to measure those"


def _check_weights(config: Config) -> None:
    """Importance weights need a loss that has them."""
    if config.rollout.weight_max and config.algo.online and not config.algo.weighs_replay:
        raise ConfigError(
            f"rollout.weight_max={config.rollout.weight_max:g}: the loss of algo={config.algo.name} has no importance weights. "
            "Use rollout.weight_max=0"
        )


def _check_experience(config: Config) -> None:
    """Options of the section `experience` that the algorithm or the group size leaves without effect, or with a wrong one."""
    options, algorithm = config.experience, config.algo
    on = {
        "experience.dynamic_sampling=true": options.dynamic_sampling,
        f"experience.skip_visits={options.skip_visits}": options.skip_visits,
        f"experience.replay.groups={options.replay.groups}": options.replay.groups,
    }
    word = next((word for word, value in on.items() if value), None)
    if word is None:
        return
    off = f"{word.partition('=')[0]}={'false' if options.dynamic_sampling else 0}"
    if not algorithm.online:
        raise ConfigError(
            f"{word}: it is about samples of the policy, and algo={algorithm.name} learns from stored examples. Use {off}"
        )
    if config.root.G < 2:
        raise ConfigError(f"{word}: the outcomes of G={config.root.G} sample cannot differ. Use G=2 or more, or {off}")
    if options.replay.groups and not algorithm.weighs_replay:
        raise ConfigError(
            f"experience.replay.groups={options.replay.groups}: the loss of algo={algorithm.name} has no importance weights "
            "for samples of an older policy. Use experience.replay.groups=0"
        )


def measured(config: Config) -> list[str]:
    """The metrics of evaluation that a run can be judged by, besides pass@1 of a category."""
    if measures_pairs(config):
        return ["eval/pair_accuracy", "eval/pair_margin"]
    several = ["eval/pass@k", "eval/maj@k"] if config.eval.samples > 1 else []
    form = ["eval/format"] if "format" in config.reward.parts else []
    return ["eval/pass@1", *several, *form, "eval/reward", "eval/length", "eval/truncated_frac"]


def measures_pairs(config: Config) -> bool:
    """Whether held-out items are pairs to tell apart: for a reward model, and where what is learned has no answers."""
    answered = getattr(config.data, "answer", "") is not None  # data that is generated has answers
    return config.algo.product == "reward_model" or (config.algo.learns_from == "pairs" and not answered)


def _reward(options: RewardOptions) -> RewardSum:
    from grpo_exp.rewards.base import Reward, RewardSum, check_roles
    from grpo_exp.scoring import Failures

    parts = {name: _choose(Reward, "grpo_exp.rewards", part, f"reward.parts.{name}") for name, part in options.parts.items()}
    check_roles(parts)
    failures = Failures(options.on_error, options.max_failed, options.timeout)
    return RewardSum(parts, failures, options.gate, options.normalize)


def build_health(values: Any) -> Health:
    """What looks at a run while it goes.

    Raises:
        ConfigError: no such detector, an option of one is wrong, or a rollback would change nothing.
    """
    from grpo_exp.health.base import Detector
    from grpo_exp.health.options import Health, HealthOptions

    options = make(HealthOptions, values, "health")
    found: dict[str, Detector] = {}
    for name, own in options.detectors.items():
        key = f"health.detectors.{name}"
        found[name] = make(load_class("grpo_exp.health.detectors", name, Detector, key), own, key)
    return Health(options.active, options.rollback, found)


def _choose(base: type[T], package: str, values: Any, key: str) -> T:
    """An object of the subclass of `base` that `kind` names, in the module of that name."""
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
        raise ConfigError(f"{key}: expected a group with a key 'kind', got {values!r:.80}")
    return make(load_class(package, values["kind"], base, f"{key}.kind"), values, key)


def option_class(section: str, values: dict[str, Any]) -> type[Any]:
    """The dataclass that a section's options are fields of; `reward/part` stands for a part of the reward.

    Raises:
        ConfigError: `kind` names no class.
    """
    from grpo_exp.algos.base import Algorithm
    from grpo_exp.checkpoint import CheckpointOptions
    from grpo_exp.data.base import DataSource
    from grpo_exp.evaluate import EvalOptions
    from grpo_exp.experience import ExperienceOptions
    from grpo_exp.hardware import HardwareOptions
    from grpo_exp.health.base import Detector
    from grpo_exp.health.options import HealthOptions
    from grpo_exp.model import ModelOptions
    from grpo_exp.optim import OptimOptions
    from grpo_exp.rewards.base import Reward
    from grpo_exp.rollout.base import Engine
    from grpo_exp.track import TrackOptions

    kinds: dict[str, tuple[str, type[Any]]] = {
        "algo": ("grpo_exp.algos", Algorithm),
        "data": ("grpo_exp.data", DataSource),
        "rollout": ("grpo_exp.rollout", Engine),
        "reward/part": ("grpo_exp.rewards", Reward),
        "health/detector": ("grpo_exp.health.detectors", Detector),
    }
    if section in kinds:
        package, base = kinds[section]
        return load_class(package, str(values.get("kind")), base, f"{section}.kind")
    return {
        "": RootOptions,
        "model": ModelOptions,
        "reward": RewardOptions,
        "hardware": HardwareOptions,
        "eval": EvalOptions,
        "track": TrackOptions,
        "health": HealthOptions,
        "experience": ExperienceOptions,
        "sweep": SweepOptions,
        "preflight": PreflightOptions,
        "optim": OptimOptions,
        "checkpoint": CheckpointOptions,
        "objective": ObjectiveOptions,
    }[section]


# ---- what Hydra composed, as plain values


def resolved(composed: DictConfig) -> dict[str, Any]:
    """The composed configuration as plain values, interpolations resolved.

    Raises:
        ConfigError: an interpolation or a mandatory value is missing.
    """
    try:
        plain = OmegaConf.to_container(composed, resolve=True)
    except InterpolationToMissingValueError as error:
        missing = re.search(r"Missing mandatory value: ([\w.]+)", str(error))
        raise ConfigError(f"{missing.group(1) if missing else error.full_key} has no value; give it one") from error
    except OmegaConfBaseException as error:
        where, reason = str(getattr(error, "full_key", "") or ""), str(error).splitlines()[0]
        raise ConfigError(f"{where}: {reason}. A value ${{KEY}} stands for another option's") from error
    except RecursionError as error:
        raise ConfigError("a value ${KEY} leads back to itself") from error
    assert isinstance(plain, dict)
    return {str(k): v for k, v in plain.items()}


PATHS = ("data.path", "data.split", "data.pass_rates", "model.path", "model.start_adapter", "reward.path")
"""Options that may name a file or folder, the last with `:function` after it."""
PART_PATHS = ("path", "schema", "database", "folder")
"""The same of a part of the reward."""
SOURCE_PATHS = ("path", "split")
"""The same of a source of mixed data."""


def anchored(plain: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose files and folders, where they are there, are named from the root, so that it holds anywhere."""
    sections = {name: dict(values) if isinstance(values, dict) else values for name, values in plain.items()}
    for key in PATHS:
        section, _, name = key.partition(".")
        if name in sections.get(section, {}):
            sections[section][name] = _anchored(sections[section][name])
    for section, inner, keys in (("reward", "parts", PART_PATHS), ("data", "sources", SOURCE_PATHS)):
        if inner in sections.get(section, {}):
            parts = sections[section][inner].items()
            sections[section][inner] = {n: p | {key: _anchored(p[key]) for key in keys if key in p} for n, p in parts}
    return sections


def _anchored(value: Any) -> Any:
    """`my.py:score` as `/home/me/my.py:score`; what is no file here stays as it is, such as a hub id or a count."""
    if not isinstance(value, str):
        return value
    file, colon, rest = value.rpartition(":") if ":" in value else (value, "", "")
    path = expanded(file)
    return f"{path.absolute()}{colon}{rest}" if file and path.exists() else value


def secret_values(composed: DictConfig) -> set[str]:
    """The values that come from the environment (`${oc.env:NAME}`), to be kept out of every file."""
    return {
        str(value)
        for node, key in _leaves(composed)
        if isinstance(raw := node._get_node(key)._value(), str) and "oc.env:" in raw and (value := node[key])
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


def difference(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The dotted keys at which two configurations differ."""
    return [key for key, _, _ in changes(one, other)]


def changes(one: dict[str, Any], other: dict[str, Any], key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each dotted key at which two configurations differ, with both values; None stands for a missing one."""
    for name in dict.fromkeys([*one, *other]):
        a, b = one.get(name), other.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from changes(a, b, join(key, name))
        elif a != b:
            yield join(key, name), a, b
