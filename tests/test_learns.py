"""The main job: the default run lifts the embedded model from a third to most of the held-out problems."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_default_run_learns(tmp_path: Path) -> None:
    words = ["steps=60", "track.wandb=off", "track.console=quiet", f"hydra.run.dir={tmp_path / 'run'}"]
    subprocess.run([sys.executable, "-m", "grpo_exp", *words], check=True, cwd=tmp_path)
    card = json.loads((tmp_path / "run" / "run.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
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
