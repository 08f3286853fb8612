"""The run card: everything one must know about a run to judge it or to do it again. It becomes run.json."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import subprocess
from pathlib import Path
from typing import Any

from grpo_exp import __version__, overlap
from grpo_exp.config import Config
from grpo_exp.data.base import Dataset
from grpo_exp.evaluate import Evaluation
from grpo_exp.hardware import Machine, describe
from grpo_exp.policy import Policy

LIBRARIES = ("torch", "transformers", "peft", "hydra-core", "omegaconf", "wandb", "optuna", "numpy")
Card = dict[str, Any]


def opening(config: Config, data: Dataset, policy: Policy, machine: Machine, folder: Path, rows: dict[str, int]) -> Card:
    """The card of a run that begins."""
    root, algorithm = config.root, config.algo
    parameters, trainable = policy.sizes()
    total = root.prompts_per_step * root.G
    batch = {
        "prompts_per_step": root.prompts_per_step,
        "G": root.G,
        "rows": total,
        "rounds": config.experience.rounds,
        "updates_per_rollout": algorithm.optimizer_steps,
        "rows_per_update": math.ceil(total / algorithm.minibatches),
        "tokens_max": total * root.max_new_tokens * config.experience.rounds,
        **rows,
    }
    critic = {} if policy.critic is None else {"critic": sum(p.numel() for p in policy.critic.trainable())}
    adapter = None
    if config.model.adapter == "lora":
        adapter = f"lora r={config.model.lora_rank}" + (
            f" from {config.model.start_adapter}" if config.model.start_adapter else ""
        )
    return {
        "name": root.name,
        "status": "running",
        "objective": None,
        "folder": str(folder),
        "algo": algorithm.name,
        "formula": ";  ".join(part for part in _formulas(config) if part),
        "model": {"name": config.model.name, "parameters": parameters, "trainable": trainable, "adapter": adapter, **critic},
        "data": {
            "name": config.data.name,
            "source": data.source,
            "train": len(data.train),
            "heldout": len(data.heldout),
            "sha256": data.sha256,
            "notes": data.notes,
        },
        "reward": {
            "name": config.reward_name,
            "parts": {
                name: {"weight": part.weight, "role": part.role, **part.about()} for name, part in config.reward.parts.items()
            },
        },
        "batch": batch,
        "steps": root.steps,
        "beta": root.beta,
        "temperature": root.temperature,
        "lr": root.lr,
        "max_new_tokens": root.max_new_tokens,
        "hardware": describe(machine),
        "versions": versions(),
        "seeds": seeds(config),
        "git": git(),
        "goal": {"metric": config.objective.metric, "direction": config.objective.direction},
    }


def seeds(config: Config) -> dict[str, int]:
    """The seeds by purpose."""
    sources = {
        "data": config.data,
        **{f"data.sources.{name}": part for name, part in getattr(config.data, "parts", {}).items()},
    }
    data = {
        f"{key}.{name}": value
        for key, source in sources.items()
        for name in ("seed", "split_seed")
        if (value := getattr(source, name, None)) is not None
    }
    return {"run": config.root.seed, "evaluation": config.eval.seed, **data}


def closing(before: Evaluation | None, after: Evaluation | None) -> Card:
    """The first and the last evaluation with their intervals, and the paired difference."""
    if before is None or after is None:
        return {}

    def rows(intervals: dict[str, Any]) -> dict[str, list[float]]:
        return {name: list(interval) for name, interval in intervals.items() if not math.isnan(interval.value)}

    return {"before": rows(before.intervals()), "after": rows(after.intervals()), "difference": rows(after.minus(before))}


def versions() -> dict[str, str]:
    """Python's, ours, and the libraries' that a result depends on."""
    found = {"python": platform.python_version(), "grpo_exp": __version__}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git() -> dict[str, Any] | None:
    """Commit of the checkout that this package runs from, and whether files in it are changed; None outside a checkout."""
    root = Path(__file__).parent.parent
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain"))} if (root / ".git").exists() else None
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=5, check=True)
    return done.stdout.strip()


def _formulas(config: Config) -> list[str]:
    """The algorithm's formula, and what reward, sampler and experience add to it."""
    samples = [config.reward.formula(), overlap.formula(config)] if config.algo.online else []
    return [config.algo.formula(), *samples, config.experience.formula()]
