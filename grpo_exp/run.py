"""One run: compose -> build -> train -> return the objective."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from grpo_exp import config as configuration
from grpo_exp.errors import ConfigError, DataError, InputError, nearest

if TYPE_CHECKING:
    from grpo_exp.batch import Example
    from grpo_exp.config import Config
    from grpo_exp.data.base import Dataset
    from grpo_exp.hardware import Machine
    from grpo_exp.policy import Policy
    from grpo_exp.stop import StopSignals
    from grpo_exp.track import Tracker
    from grpo_exp.train import Trainer

Hook = Callable[[int, float], None]


def run(composed: DictConfig, config: Config | None = None) -> float | None:
    """What Hydra calls for one job: train and return the objective. `config` is what `composed` builds, where that was done.

    Raises:
        InputError: before the model loads where possible; a folder in which nothing was written is removed.
        RunError: afterwards; run.json says status failed, the traceback is in the folder's error.txt.
        Stopped: on a signal, after a checkpoint.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    try:
        config = config or configuration.build(composed)
        plain = configuration.resolved(composed)
        secrets = configuration.secret_values(composed)
        if hydra.mode == RunMode.MULTIRUN and config.track.group is None:
            config.track.group = Path(hydra.sweep.dir).name
        card = _finished(folder, plain, secrets)
        if card is not None:
            return None if card["objective"] is None else float(card["objective"])
        return train(config, plain, secrets, folder, words=list(hydra.overrides.task))
    finally:
        _remove_if_empty(folder)


def train(
    config: Config,
    plain: dict[str, Any],
    secrets: set[str],
    folder: Path,
    hook: Hook = lambda step, value: None,
    words: Sequence[str] = (),
) -> float | None:
    """Load, train, evaluate and write everything into `folder`; returns the objective.

    `hook` is called with (step, objective) after each evaluation; `words` are the overrides, for the run card.
    """
    from grpo_exp import card as cards
    from grpo_exp import track
    from grpo_exp.hardware import prepare
    from grpo_exp.policy import Policy
    from grpo_exp.record import Record
    from grpo_exp.stop import StopSignals
    from grpo_exp.track.redact import redact

    with StopSignals() as stop, Record(folder, config) as record:
        with stop.at_once():
            data = config.data.load()
            _check_data(config, data)
            check_reward(config, data.train[0], config.algo.online)
            machine = prepare(config.hardware, config.model.dtype)
            tracker = track.build(config.track, folder)
            policy = Policy.load(config.model, machine.device, machine.dtype, config.root.seed)
            rows = rows_at_once(config, policy, machine, data.train)
            card = cards.opening(config, data, policy, machine, folder, rows)
        card["overrides"] = redact(_by_key(words), secrets)
        record.open(tracker, card, redact(plain, secrets))
        trainer = _assemble(config, data, policy, tracker, folder, rows, hook, stop)
        result = trainer.run()
        _export(config, policy, folder)
        record.close(result)
    return result.objective


def _by_key(words: Sequence[str]) -> dict[str, str]:
    """Overrides as they are kept in the run card."""
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def _assemble(
    config: Config,
    data: Dataset,
    policy: Policy,
    tracker: Tracker,
    folder: Path,
    rows: dict[str, int],
    hook: Hook,
    stop: StopSignals,
) -> Trainer:
    """The trainer with all it needs."""
    from grpo_exp.checkpoint import Checkpoints
    from grpo_exp.evaluate import Evaluator
    from grpo_exp.experience import TRAIN_STREAM, Offline, Online
    from grpo_exp.prompt_order import PromptOrder
    from grpo_exp.rollout.base import Sampling
    from grpo_exp.train import Trainer

    root = config.root
    order = PromptOrder(data.train, root.seed, memory=root.prompts_per_step)
    if config.algo.online:
        sampling = Sampling(root.temperature, root.max_new_tokens, root.G, (root.seed, TRAIN_STREAM, 0))
        source: Any = Online(
            policy,
            config.rollout,
            config.reward,
            data.train,
            order,
            sampling,
            root.prompts_per_step,
            rows["rollout_rows"],
        )
    else:
        source = Offline(policy, data.train, order, root.prompts_per_step, root.max_new_tokens)
    evaluator = (
        Evaluator(policy, config.rollout, config.reward, data.heldout, config.eval, rows["eval_rows"]) if data.heldout else None
    )
    checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint, config.objective.direction == "maximize")
    return Trainer(
        policy,
        config.algo,
        source,
        evaluator,
        tracker,
        checkpoints,
        config.optim,
        lr=root.lr,
        steps=root.steps,
        seed=root.seed,
        temperature=root.temperature,
        update_rows=rows["update_rows"],
        objective=config.objective.metric,
        hook=hook,
        stop=stop,
    )


def _check_data(config: Config, data: Dataset) -> None:
    """What the algorithm and the objective need from the data.

    Raises:
        DataError: worked targets are missing.
        ConfigError: the objective is of a category that no held-out item has.
    """
    metric = config.objective.metric
    category = metric.removeprefix("eval/pass@1/")
    there = list(dict.fromkeys(example.category for example in data.heldout))
    if category != metric and category not in there:
        near = nearest(category, there)
        raise ConfigError(
            f"objective.metric={metric!r}: no held-out item is of that category; there are {', '.join(there)}.{near}"
        )
    if not data.train:
        raise DataError(f"data={config.data.name}: no training items are left")
    if not config.algo.online:
        missing = [example.id for example in data.train if not example.target]
        if missing:
            raise DataError(
                f"algo={config.algo.name} learns from worked targets, and {len(missing)} of {len(data.train)} training items "
                f"have none ({', '.join(missing[:3])}, ...). Name them with data.target=FIELD_OR_TEMPLATE"
            )


def check_reward(config: Config, example: Example, needed: bool = True) -> None:
    """Try the reward on an item.

    Raises:
        InputError: it raises, returns no numbers, or `needed`, and its outcome part never applies to the item.
    """
    from grpo_exp.rewards.base import check

    outcome = config.reward.outcome_name
    if all(math.isnan(values[outcome]) for _, values in check(config.reward, example)) and needed:
        lacks = ", which has no reference answer; data.answer= names the field" if example.answer is None else ""
        raise ConfigError(
            f"reward={config.reward_name}: its outcome part '{outcome}' does not apply to item {example.id} of "
            f"data={config.data.name}{lacks}. Or choose another reward"
        )


def rows_at_once(config: Config, policy: Policy, machine: Machine, examples: list[Example]) -> dict[str, int]:
    """How many rows sampling, evaluation and update take at a time, from the sizes of the model and of the longest prompt."""
    from grpo_exp.hardware import fit_rows

    sample = examples[:: max(1, len(examples) // 256)]
    prompt = max(len(policy.encode_prompt(e.prompt, policy.render(e.prompt))) for e in sample)
    sizes = policy.shape
    layers, hidden = sizes.num_hidden_layers, sizes.hidden_size
    inner = getattr(sizes, "intermediate_size", None) or 4 * hidden
    tokens = prompt + config.root.max_new_tokens
    cache = 4 * tokens * layers * 2 * hidden + 16 * sizes.vocab_size
    activations = 4 * tokens * layers * (14 * hidden + 4 * inner)
    total = config.root.prompts_per_step * config.root.G
    sampled = len(examples) * config.eval.samples
    return {
        "rollout_rows": fit_rows(config.hardware.rollout_rows, total, cache, machine.device),
        "eval_rows": fit_rows(config.hardware.rollout_rows, max(total, sampled), cache, machine.device),
        "update_rows": fit_rows(config.hardware.update_rows, total, activations, machine.device),
    }


def _export(config: Config, policy: Policy, folder: Path) -> None:
    from grpo_exp.checkpoint import write_export

    if config.checkpoint.export:
        write_export(folder / "export", policy.export)


def _finished(folder: Path, plain: dict[str, Any], secrets: set[str]) -> dict[str, Any] | None:
    """The card of a finished run of the same configuration in this folder; None where the folder is free.

    Raises:
        ConfigError: the folder holds another run.
        InputError: its files cannot be read.
    """
    import yaml

    from grpo_exp.track.redact import redact

    try:
        card: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        before = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(
            f"{folder}: its run.json or config.yaml cannot be read ({error}). Choose another folder with hydra.run.dir="
        ) from error
    different = configuration.difference(before, json.loads(json.dumps(redact(plain, secrets))))
    if different:
        raise ConfigError(
            f"the folder {folder} holds a run of another configuration ({', '.join(different[:5])} differ); choose another one "
            "with hydra.run.dir= or hydra.sweep.dir="
        )
    if card.get("status") != "finished":
        return None
    print(f"{folder}: finished before, objective {card['objective']}; nothing to do")
    return card


def _remove_if_empty(folder: Path) -> None:
    """Remove what Hydra made for a run that never began: the folder, and those above it that are empty now."""
    here = Path.cwd()
    while folder != here and folder.is_relative_to(here) and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
