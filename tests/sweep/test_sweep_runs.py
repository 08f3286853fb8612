"""Sweeps of real runs, from the command line."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from random import Random
from typing import Any

import optuna
import pytest
from command import ROOT, SMALL, call, finish, start

from grpo_exp.sweep.study import lock, storage

SWEEP = ["-m", *SMALL, "hydra.sweep.dir=swept"]


def trials(folder: Path, url: str | None = None) -> list[tuple[Any, ...]]:
    study = optuna.load_study(study_name=folder.name, storage=storage(folder, url))
    return [(t.number, t.params, t.state.name, t.value, t.intermediate_values) for t in study.get_trials(deepcopy=False)]


def written(folder: Path) -> int:
    """Bytes of metrics so far."""
    return sum(path.stat().st_size for path in folder.rglob("metrics.jsonl"))


def cards(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*/run.json"))]


def test_a_bad_trial_is_pruned_and_its_folder_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    prune = ["hydra/sweeper/pruner=threshold", "hydra.sweeper.pruner.lower=0.5", "eval.every=1", "steps=3"]
    answer = call(capsys, *SWEEP, *prune, "beta=0.01,0.1")
    assert answer.code == 0 and "trial 0 pruned at step 1 with 0" in answer.out, answer
    for number, card in enumerate(cards(tmp_path / "swept")):
        assert card["status"] == "pruned" and "step 1" in card["reason"] and card["trial"] == number
        assert 0 < card["tokens"] <= 2 * 2 * 6 and card["before"] and card["after"] and card["objective"] == 0
        told = json.loads((tmp_path / "swept" / str(number) / "trial.json").read_text())
        assert told["state"] == "pruned" and told["tokens"] == card["tokens"]


@pytest.mark.slow
def test_a_study_in_sqlite_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    url = "sqlite:///study.db"
    words = [*SWEEP, f"hydra.sweeper.storage={url}", "hydra/sweeper/sampler=tpe", "beta=interval(0.0,1.0)", "steps=1"]
    assert call(capsys, *words, "hydra.sweeper.n_trials=1").code == 0
    first = trials(tmp_path / "swept", url)
    answer = call(capsys, *words, "hydra.sweeper.n_trials=2")
    assert answer.code == 0 and "trial 1 (2 of 2)" in answer.out and "trial 0 (" not in answer.out
    assert trials(tmp_path / "swept", url)[:1] == first and len(cards(tmp_path / "swept")) == 2
    assert not (tmp_path / "swept" / "study.journal").exists()


@pytest.mark.slow
def test_a_second_sweep_in_the_folder_is_refused_unless_it_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*SWEEP, "beta=0.01,0.1", "steps=1"]
    with lock(tmp_path / "swept/.locks/sweep", wait=False):
        refused = call(capsys, *words)
        assert refused.code == 2 and "sweep.join=true" in refused.err and not cards(tmp_path / "swept")
        helps = call(capsys, *words, "sweep.join=true")
        assert helps.code == 0 and "trial 1 (2 of 2)" in helps.out and "best: " not in helps.out
    last = call(capsys, *words)
    assert last.code == 0 and "2 trials: 2 complete" in last.out and "trial 0 (" not in last.out


@pytest.mark.slow
def test_an_older_run_in_the_place_of_a_trial_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder as a plain multirun leaves it: runs, and no study. An equal run is taken over, another one is no trial."""
    monkeypatch.chdir(tmp_path)
    for number, beta in enumerate((0.3, 0.1)):
        assert call(capsys, *SMALL, "steps=1", f"beta={beta}", f"hydra.run.dir=swept/{number}").code == 0
    before = (tmp_path / "swept/0/run.json").read_text()
    answer = call(capsys, *SWEEP, "beta=0.01,0.1", "steps=1")
    assert answer.code == 3 and "trial 0 failed" in answer.out and "beta: 0.3 -> 0.01" in answer.out, answer
    assert "swept/1: finished before" in answer.out and (tmp_path / "swept/0/run.json").read_text() == before


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("joblib") is None, reason="needs joblib")
@pytest.mark.skipif(
    importlib.util.find_spec("hydra_plugins.hydra_joblib_launcher") is None, reason="needs hydra-joblib-launcher"
)
def test_joblib_runs_trials_side_by_side_and_prunes_them(tmp_path: Path) -> None:
    prune = ["hydra/sweeper/pruner=threshold", "hydra.sweeper.pruner.lower=0.5", "eval.every=1"]
    joblib = ["hydra/launcher=joblib", "hydra.sweeper.n_jobs=2"]
    answer = finish(start(tmp_path, *SWEEP, *prune, *joblib, "beta=0.01,0.1", "G=2,4"))
    assert answer.code == 0, answer.err
    assert [card["status"] for card in cards(tmp_path / "swept")] == ["pruned"] * 4
    assert [row[2] for row in trials(tmp_path / "swept")] == ["PRUNED"] * 4


@pytest.mark.slow
def test_workers_give_what_one_process_gives(tmp_path: Path) -> None:
    grid = ["beta=0.01,0.1", "G=2,4"]
    for name, words in (("one", []), ("two", ["sweep.workers=2"])):
        answer = finish(start(tmp_path, *SWEEP[:-1], f"hydra.sweep.dir={name}", *grid, *words))
        assert answer.code == 0 and "4 trials: 4 complete" in answer.out, answer
    assert trials(tmp_path / "one") == trials(tmp_path / "two")


@pytest.mark.slow
def test_a_sweep_of_real_runs_killed_three_times_ends_as_if_undisturbed(tmp_path: Path) -> None:
    words = ["hydra.sweeper.n_trials=4", "beta=tag(log,interval(0.001,1.0))", "G=choice(2,4)", "lr=1e-2", "steps=40"]
    words += ["hydra/sweeper/sampler=tpe", "eval.every=2", "checkpoint.every=2", "objective.metric=eval/reward"]
    words += ["hydra/sweeper/pruner=median", "hydra.sweeper.pruner.n_startup_trials=1"]
    assert finish(start(tmp_path, *SWEEP[:-1], "hydra.sweep.dir=whole/swept", *words)).code == 0
    random, kills = Random(0), 0
    while True:
        process = start(tmp_path, *SWEEP[:-1], "hydra.sweep.dir=killed/swept", *words)
        if kills == 3:
            break
        begun, before = time.monotonic(), written(tmp_path / "killed")
        while written(tmp_path / "killed") == before and process.poll() is None and time.monotonic() < begun + 60:
            time.sleep(0.05)  # not in the imports
        time.sleep(random.uniform(0.0, 1.5))
        process.kill()
        kills += 1
        process.communicate()
        assert process.returncode == -9
    assert finish(process).code == 0
    assert trials(tmp_path / "killed/swept") == trials(tmp_path / "whole/swept")
    told = [(card["status"], card["objective"], card["tokens"]) for card in cards(tmp_path / "killed/swept")]
    assert told == [(card["status"], card["objective"], card["tokens"]) for card in cards(tmp_path / "whole/swept")]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "sweeps").glob("*.yaml")))
def test_every_sweep_runs_to_its_end_on_the_embedded_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is but for the size of its runs, and of its search where trials are counted; the report has an answer."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "sweeps" / f"{name}.yaml").read_text()
    words = [f"sweeps={name}", "steps=1", "eval.start=false", "eval.max_items=4", "track=quiet", "hardware.threads=1"]
    words += ["hydra.sweeper.n_trials=3"] * ("n_trials" in text) + ["prompts_per_step=2"] * ("prompts_per_step" not in text)
    answer = call(capsys, *words)
    assert answer.code == 0 and "best: trial" in answer.out and " failed" not in answer.out, answer
    best = answer.out.split("best: trial")[1].splitlines()[1].strip()
    assert best.startswith("python -m grpo_exp ") and "sweeps=" not in best, "it does the best run again, not the sweep"
    folder = tmp_path / "outputs/sweeps" / name
    found = sorted(folder.glob("**/run.json"))
    assert len(found) >= 3 and all(json.loads(path.read_text())["status"] == "finished" for path in found)
    told = call(capsys, "report", str(folder))
    assert told.code == 0 and "python -m grpo_exp" in told.out and (folder / "report.html").stat().st_size > 100_000


@pytest.mark.slow
def test_the_sweep_is_a_wandb_run_beside_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = finish(start(Path.cwd(), *SWEEP, "steps=1", "eval.start=false", "beta=0.01,0.1", "track.wandb=offline"))
    assert answer.code == 0, answer.err
    (line,) = [line for line in answer.out.splitlines() if line.startswith("the sweep in W&B: wandb sync ")]
    assert Path(line.rpartition("wandb sync ")[2]).is_dir()
    assert len(list(Path("swept").glob("*/wandb/offline-run-*"))) == 2
    assert len(list(Path("swept").glob("wandb/offline-run-*"))) == 1
