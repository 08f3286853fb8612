"""Whole runs, from the command line, of each way to call a reward function, of gates and of normalised parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, call

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

FUNCTIONS = """
import asyncio

def own(completions, answers, **columns):
    return [0.5 * text.count("1") + 0.1 * (answer in text) for text, answer in zip(completions, answers)]

def for_trl(prompts, completions, ground_truth, trainer_state=None, **kwargs):
    assert trainer_state.global_step in (0, 1, 2) and all(prompt.endswith("=?") for prompt in prompts)
    return own(completions, ground_truth)

def for_verl(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "arithmetic" and extra_info == {}
    return {"score": own([solution_str], [ground_truth])[0], "acc": 0}

async def later(completions, answers):
    await asyncio.sleep(0.01)
    return own(completions, answers)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    return tmp_path


def card(where: str) -> dict[str, Any]:
    return dict(json.loads(Path(where, "run.json").read_text()))


def rows(where: str, kind: str = "train") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in Path(where, "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if row["kind"] == kind]


@pytest.mark.slow
def test_a_function_is_called_as_it_was_written_and_the_card_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    samples = []
    for name, style in {"own": "grpo_exp", "for_trl": "trl", "for_verl": "verl", "later": "grpo_exp"}.items():
        answer = call(capsys, "reward=custom", f"reward.path=mine.py:{name}", *SMALL, f"hydra.run.dir={name}")
        assert answer.code == 0, answer.err
        assert card(name)["reward"]["parts"] == {"custom": {"weight": 1.0, "role": "outcome", "style": style}}
        samples.append(Path(name, "samples.jsonl").read_text())
    assert len(set(samples)) == 1, "four ways to write one reward"
    assert json.loads(samples[0].splitlines()[0])["total"] >= 0


def test_gates_and_normalised_parts_in_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reward=custom", "reward.path=mine.py:own", "+reward/part@reward.parts.form=format", "reward.parts.form.role=gate"]
    words += ["reward.gate.closed=-1", "reward.normalize.scale=group", "algo.std=batch", *SMALL, "hydra.run.dir=run"]
    answer = call(capsys, *words)
    assert answer.code == 0, answer.err
    assert all(row["reward/closed_frac"] == 1 and row["reward/mean"] == -1 for row in rows("run"))
    assert "custom counts -1 and all else 0 where form <= 0" in card("run")["formula"]
    assert rows("run", "eval")[0]["eval/reward"] == -1


@pytest.mark.slow
def test_a_sweep_and_a_branch_over_these_options(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["reward=custom", "reward.path=mine.py:own", *SMALL]
    words = ["-m", *base, "reward.normalize.scale=none,group", "+reward.kwargs.unused=1,2", "hydra.sweep.dir=sweep"]
    assert call(capsys, *words).code == 0
    assert [card(f"sweep/{i}")["status"] for i in range(4)] == ["finished"] * 4
    assert ["std_group[ddof 1] part" in card(f"sweep/{i}")["formula"] for i in range(4)] == [False, False, True, True]

    words = [*base, "experience.replay.groups=1", "checkpoint.every=1", "hydra.run.dir=run"]
    assert call(capsys, *words).code == 0
    answer = call(capsys, "resume", "run@1", "force=true", "reward.normalize.scale=group", "reward.gate.above=0.5")
    assert answer.code == 0, answer.err
    assert len(card("run")["branch"]["changed"]) == 2
