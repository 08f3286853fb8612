"""The main job: the default run lifts the embedded model from a third to most of the held-out problems."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_the_default_run_learns(tmp_path: Path) -> None:
    card, rows = trained(tmp_path / "run", "steps=60", "track.picture=true")
    train = [row for row in rows if row["kind"] == "train"]

    def mean(name: str, part: slice) -> float:
        values = [row[name] for row in train[part]]
        return sum(values) / len(values)

    first, last = slice(0, 10), slice(-10, None)
    assert 0.30 <= card["before"]["eval/pass@1"][0] <= 0.50
    assert card["objective"] == card["after"]["eval/pass@1"][0] >= 0.80
    assert card["difference"]["eval/pass@1"][1] > 0.2, "the interval of the rise must exclude a small one"
    assert mean("reward/mean", last) > mean("reward/mean", first) + 0.25
    assert train[0]["kl/mean"] == 0 and 0 < mean("kl/mean", first) < mean("kl/mean", last) < 0.5
    assert card["after"]["eval/format"][0] > 0.95
    assert mean("length/mean", last) > mean("length/mean", first), "the careful way is the longer one"
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["dr_grpo", "dapo", "gspo", "rloo", "ppo", "dpo"])
def test_each_algorithm_learns(algo: str, tmp_path: Path) -> None:
    """One seed, 30 steps at most; several seeds at equal tokens are in docs/algorithms.md."""
    card, rows = trained(tmp_path / "run", f"algo={algo}", "steps=30", "eval.every=0", "checkpoint.export=false")
    assert card["after"]["eval/pass@1"][0] >= 0.6, card["after"]
    assert card["difference"]["eval/pass@1"][1] > 0.15, "the interval of the rise must exclude a small one"
    assert card["after"]["eval/format"][0] > 0.95
    assert all(row["kl/mean"] < 1 for row in rows if "kl/mean" in row)


@pytest.mark.slow
def test_offline_dpo_learns_from_pairs_of_the_model_itself(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs"
    subprocess.run([sys.executable, "-m", "grpo_exp", "pairs", "tiny", f"hydra.run.dir={pairs}"], check=True, cwd=tmp_path)
    words = ["algo=dpo_offline", "data=preferences", f"data.path={pairs / 'pairs.jsonl'}", "data.answer=answer"]
    words += [f"data.split={pairs / 'heldout.jsonl'}", "steps=40", "eval.every=0", "checkpoint.export=false"]
    card, rows = trained(tmp_path / "run", *words)
    train = [row for row in rows if row["kind"] == "train"]
    assert train[0]["dpo/margin"] == 0 and train[-1]["dpo/margin"] > 0.2
    assert train[-1]["dpo/accuracy"] > 0.6
    assert card["difference"]["eval/pass@1"][1] > 0.05


def trained(folder: Path, *words: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run in a process of its own: its card, and the rows of its metrics."""
    quiet = ["track.wandb=off", "track.console=quiet", "track.picture=false", f"hydra.run.dir={folder}"]
    subprocess.run([sys.executable, "-m", "grpo_exp", *quiet, *words], check=True, cwd=folder.parent)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return json.loads((folder / "run.json").read_text()), rows
