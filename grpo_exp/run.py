"""One run: compose -> build -> train -> return the objective."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from grpo_exp import config as configuration
from grpo_exp.errors import ConfigError, DataError, GrpoError, InputError, Stopped

if TYPE_CHECKING:
    from grpo_exp.batch import Example
    from grpo_exp.config import Config
    from grpo_exp.data.base import Dataset
    from grpo_exp.hardware import Machine
    from grpo_exp.policy import Policy
    from grpo_exp.train import Result

Hook = Callable[[int, float], None]


def run(composed: DictConfig) -> float | None:
    """What Hydra calls for one job: train and return the objective.

    Raises:
        InputError: before the model loads where possible.
        RunError: afterwards; run.json says status failed.
        Stopped: on a signal, after a checkpoint.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    config = configuration.build(composed)
    plain = configuration.resolved(composed)
    if hydra.mode == RunMode.MULTIRUN and config.track.group is None:
        config.track.group = Path(hydra.sweep.dir).name
    finished = _finished(folder, plain)
    if finished is not None:
        return finished
    return train(config, plain, configuration.secret_values(composed), folder)


def train(config: Config, plain: dict[str, Any], secrets: set[str], folder: Path, hook: Hook = lambda step, value: None) -> float | None:
    """Load, train, evaluate and write everything into `folder`; returns the objective.

    `hook` is called with (step, objective) after each evaluation.
    """
    from grpo_exp import card as cards
    from grpo_exp import track
    from grpo_exp.hardware import prepare
    from grpo_exp.policy import Policy
    from grpo_exp.rewards.base import check
    from grpo_exp.stop import StopSignals
    from grpo_exp.track.redact import redact

    data = config.data.load()
    _check_data(config, data)
    check(config.reward, data.train[0])
    tracker = track.build(config.track, folder)
    machine = prepare(config.hardware, config.model.dtype)
    policy = Policy.load(config.model, machine.device, machine.dtype, config.root.seed)
    rows = _rows(config, policy, machine, data.train)
    card = cards.opening(config, data, policy, machine, folder, rows)
    started = time.perf_counter()
    with StopSignals() as stop:
        try:
            tracker.start(card, redact(plain, secrets))
            trainer, checkpoints = _assemble(config, data, policy, tracker, folder, rows, hook, stop)
            result = trainer.run()
            _export(config, policy, checkpoints, folder)
            card |= {"status": "finished", "objective": result.objective, **_ending(result)}
        except Stopped as stopped:
            card |= {"status": "stopped", "error": str(stopped)}
            raise
        except BaseException as error:
            card |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            raise
        finally:
            card["wall_seconds"] = round(time.perf_counter() - started, 2)
            tracker.finish(card)
    return result.objective


def _assemble(
    config: Config, data: Dataset, policy: Policy, tracker: Any, folder: Path, rows: dict[str, int], hook: Hook, stop: Any
) -> Any:
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
            mask_truncated=getattr(config.algo, "mask_truncated", False),
        )
    else:
        source = Offline(policy, data.train, order, root.prompts_per_step, root.max_new_tokens)
    evaluator = Evaluator(policy, config.rollout, config.reward, data.heldout, config.eval, rows["eval_rows"]) if data.heldout else None
    checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint, config.objective.direction == "maximize")
    trainer = Trainer(
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
    return trainer, checkpoints


def _check_data(config: Config, data: Dataset) -> None:
    """What an algorithm needs from the data.

    Raises:
        DataError: worked targets are missing.
    """
    if not data.train:
        raise DataError(f"data={config.data.name}: no training items are left")
    if not config.algo.online:
        missing = [example.id for example in data.train if not example.target]
        if missing:
            raise DataError(
                f"algo={config.algo.name} learns from worked targets, and {len(missing)} of {len(data.train)} training items have none "
                f"({', '.join(missing[:3])}, ...). Name them with data.target=FIELD_OR_TEMPLATE"
            )


def _rows(config: Config, policy: Policy, machine: Machine, examples: list[Example]) -> dict[str, int]:
    """How many rows sampling, evaluation and update take at a time, from the sizes of the model and of the longest prompt."""
    from grpo_exp.hardware import fit_rows

    sample = examples[:: max(1, len(examples) // 256)]
    prompt = max(len(policy.encode_prompt(e.prompt, policy.render(e.prompt))) for e in sample)
    sizes = policy.model.config
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


def _export(config: Config, policy: Policy, checkpoints: Any, folder: Path) -> None:
    from grpo_exp.checkpoint import write_export

    if config.checkpoint.export:
        write_export(folder / "export", policy.export)


def _ending(result: Result) -> dict[str, Any]:
    from grpo_exp.card import closing

    return {"tokens": result.tokens, **closing(result.before, result.after)}


def _finished(folder: Path, plain: dict[str, Any]) -> float | None:
    """The objective of a finished run of the same configuration in this folder; None where the folder is free.

    Raises:
        ConfigError: the folder holds another run.
    """
    try:
        card = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / 'run.json'} cannot be read: {error}. Choose another folder with hydra.run.dir=") from error
    import yaml  # type: ignore[import-untyped]

    before = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    different = configuration.difference(before, json.loads(json.dumps(plain)))
    if different:
        raise ConfigError(
            f"the folder {folder} holds a run of another configuration ({', '.join(different[:5])} differ); choose another one with "
            "hydra.run.dir= or hydra.sweep.dir="
        )
    if card.get("status") != "finished":
        return None
    print(f"{folder}: finished before, objective {card['objective']}; nothing to do")
    return float(card["objective"]) if card["objective"] is not None else None


__all__ = ["GrpoError", "run", "train"]
