"""Run folders written by hand, after the contracts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from grpo_exp.track.files import json_line

CONFIG: dict[str, Any] = {
    "beta": 0.04,
    "G": 8,
    "seed": 0,
    "lr": 1e-4,
    "name": "grpo_tiny_arithmetic",
    "objective": {"metric": "eval/pass@1", "direction": "maximize"},
    "algo": {"name": "grpo", "kind": "grpo", "beta": 0.04, "G": 8, "clip_low": 0.2},
    "model": {"name": "tiny", "path": None},
    "data": {"name": "arithmetic", "seed": 0},
    "reward": {"name": "math", "parts": {"math": {"kind": "math", "role": "outcome", "weight": 1.0}}},
    "eval": {"every": 25, "start": True, "samples": 1, "temperature": 0.7, "seed": 0},
    "track": {"id": None, "tags": []},
}


def write_run(
    folder: Path,
    right: Sequence[Sequence[int]] | None = ((1,), (0,), (1,), (0,)),
    *,
    status: str = "finished",
    config: Mapping[str, Any] | None = None,
    overrides: Mapping[str, str] | None = None,
    card: Mapping[str, Any] | None = None,
    steps: int = 12,
    start: float | None = 0.25,
    **values: Any,
) -> Path:
    """A run whose last evaluation has `right` (items x samples); `values` are root options, which the algorithm repeats."""
    folder.mkdir(parents=True)
    whole = {**CONFIG, **values, **(config or {})}
    whole["algo"] = {**whole["algo"], "beta": whole["beta"], "G": whole["G"]}
    (folder / "config.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
    flat = [x for row in right or [] for x in row]
    mean = sum(flat) / len(flat) if flat else None
    ended = status == "finished" and mean is not None
    content = {
        "name": whole["name"],
        "status": status,
        "objective": mean if ended else None,
        "data": {"name": "arithmetic", "sha256": "aa"},
        "goal": whole["objective"],
        "seeds": {"run": whole["seed"]},
        "overrides": {k: str(v) for k, v in values.items()} if overrides is None else dict(overrides),
        **({"tokens": 1000 * steps, "wall_seconds": 9.0} if status == "finished" else {}),
        **({"before": {"eval/pass@1": [start, 0.1, 0.5]}} if ended and start is not None else {}),
        **({"after": {"eval/pass@1": [mean, mean - 0.1, mean + 0.1]}} if ended else {}),
        **(card or {}),
    }
    (folder / "run.json").write_text(json.dumps(content))
    rows: list[dict[str, Any]] = []
    for s in range(1, steps + 1):
        metrics = {"reward/mean": s / 10, "kl/mean": s / 100, "length/mean": 20.0}
        rows.append({"step": s, "kind": "train", "tokens": 1000 * s, "seconds": 2.0 * s, **metrics})
    if mean is not None:
        interval = {"eval/pass@1": mean, "eval/pass@1_low": mean - 0.1, "eval/pass@1_high": mean + 0.1}
        rows.append({"step": steps, "kind": "eval", "tokens": 1000 * steps, "seconds": 2.0 * steps, **interval})
    (folder / "metrics.jsonl").write_bytes(b"".join(map(json_line, rows)))
    (folder / "eval.jsonl").write_bytes(b"".join(json_line(row) for row in eval_rows(steps, right or [])))
    return folder


def eval_rows(step: int, right: Sequence[Sequence[int]], text: str = "33") -> list[dict[str, Any]]:
    return [
        {"step": step, "category": "easy", "id": f"heldout-{i}", "prompt": f"{i}+1=?", "completion": text, "reference": "1",
         "total": 1.1 * x, "outcome": float(x), "length": 10 + i, "finished": True}
        for i, samples in enumerate(right)
        for x in samples
    ]  # fmt: skip


def share(items: int, right: int) -> list[list[int]]:
    """One sample an item, the first `right` of them right."""
    return [[int(i < right)] for i in range(items)]


def sweep(folder: Path) -> Path:
    """Mark a folder as a sweep's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "multirun.yaml").write_text("{}\n")
    return folder
