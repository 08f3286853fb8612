"""Trials claimed, run, told: with jobs that take no time."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fake_jobs import Jobs, options, quality, sweep, table

from grpo_exp.errors import ConfigError, RunError
from grpo_exp.sweep import results
from grpo_exp.sweep.study import lock, repair

HERE = Path(__file__).parent


def trial(folder: Path, number: int) -> dict[str, Any]:
    return json.loads((folder / str(number) / "trial.json").read_text())  # type: ignore[no-any-return]


def test_a_grid_runs_each_point_once_in_order(tmp_path: Path) -> None:
    sweep(tmp_path, ["beta=0.001,0.01", "G=2,4"], grid=True).run()
    assert [(n, values) for n, values, *_ in table(tmp_path)] == [
        (0, {"beta": 0.001, "G": 2}),
        (1, {"beta": 0.001, "G": 4}),
        (2, {"beta": 0.01, "G": 2}),
        (3, {"beta": 0.01, "G": 4}),
    ]
    again = Jobs(tmp_path)
    sweep(tmp_path, ["beta=0.001,0.01", "G=2,4"], grid=True, jobs=again).run()
    assert again.calls == [] and trial(tmp_path, 3)["value"] == pytest.approx(1.004)


def test_n_trials_is_the_total_and_the_sampler_goes_on(tmp_path: Path) -> None:
    """Six at once, and two and then six: the same trials."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    sweep(whole, n_trials=6).run()
    sweep(parts, n_trials=2).run()
    sweep(parts, n_trials=6).run()
    assert table(whole) == table(parts) and len(table(whole)) == 6
    assert len({str(row[1]) for row in table(whole)}) == 6


def test_seeds_belong_to_a_trial(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    sweep(tmp_path, ["beta=0.01,0.1"], grid=True, jobs=jobs, how=options(seeds=[3, 5])).run()
    assert [[w for w in call if "seed" in w] for call in jobs.calls[:2]] == [
        ["seed=3", "hydra.sweep.subdir=0/seed-3"],
        ["seed=5", "hydra.sweep.subdir=0/seed-5"],
    ]
    first = trial(tmp_path, 0)
    assert first["by_seed"] == {"3": quality({}, 3), "5": quality({}, 5)}
    assert first["value"] == pytest.approx(quality({}, 4)) and first["tokens"] == 20
    iqm = options(seeds=[0, 1, 2, 30], aggregate="iqm")
    sweep(tmp_path / "iqm", ["beta=choice(0.01)"], grid=True, how=iqm).run()
    assert trial(tmp_path / "iqm", 0)["value"] == pytest.approx(quality({}, 0) + 1.5 / 10_000)


def test_a_bad_trial_is_pruned_while_it_runs(tmp_path: Path) -> None:
    median = {"name": "median", "n_startup_trials": 2}
    sweep(tmp_path, ["beta=0.01,0.1,1,0.02"], grid=True, pruner=median).run()
    states = [row[2] for row in table(tmp_path)]
    assert states == ["COMPLETE", "COMPLETE", "PRUNED", "COMPLETE"]
    assert json.loads((tmp_path / "2" / "run.json").read_text())["status"] == "pruned"
    assert trial(tmp_path, 2)["state"] == "pruned" and "step 1" in trial(tmp_path, 2)["reason"]


def test_pruning_may_stop_after_any_seed(tmp_path: Path) -> None:
    wilcoxon = {"name": "wilcoxon", "p_threshold": 0.2, "n_startup_steps": 2}
    jobs = Jobs(tmp_path)
    sweep(tmp_path, ["beta=0.01,1"], grid=True, pruner=wilcoxon, jobs=jobs, how=options(seeds=list(range(8)))).run()
    assert [row[2] for row in table(tmp_path)] == ["COMPLETE", "PRUNED"]
    assert 8 + 3 <= len(jobs.calls) < 16


def test_constraints_decide_which_trial_is_best(tmp_path: Path) -> None:
    said: list[str] = []
    made = sweep(tmp_path, ["beta=0.01,0.1"], grid=True, constraints=["kl/median <= 0.9"], say=said.append)
    made.run()
    best = results.best(made.study)
    assert best is not None and best.params == {"beta": 0.1}  # the better one oversteps its KL
    assert best.constraints == {"kl/median <= 0.9": pytest.approx(quality({"beta": 0.1}, 0) - 0.9)}
    assert "best so far 0.754 (trial 1)" in said[-1]


def test_several_objectives(tmp_path: Path) -> None:
    both = {"metrics": ["eval/pass@1", "eval/length"], "direction": ["maximize", "minimize"]}
    sweep(tmp_path, ["beta=0.01,0.1"], grid=True, **both).run()
    assert trial(tmp_path, 0)["values"] == [quality({}, 0), 10 * quality({}, 0)]


def test_points_to_try_first_and_earlier_trials(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    first = {"beta": 0.5, "G": 8}
    sweep(tmp_path, n_trials=2, enqueue=[first], jobs=jobs).run()
    sweep(tmp_path, n_trials=3, enqueue=[first], jobs=jobs).run()
    rows = table(tmp_path)
    assert rows[0][1] == first and [row[1] for row in rows].count(first) == 1 and len(rows) == 3


def failing(kind: str, text: str = "bad luck") -> Any:
    def trouble(folder: Path) -> None:
        results.write(folder / "run.json", {"status": "failed", "error": text, "error_type": kind})

    return trouble


def test_a_failed_trial_does_not_take_the_sweep_down(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    jobs.misbehave = {
        1: failing("NumericsError", "the gradient is not finite"),
        2: failing("OSError"),
        4: lambda folder: ConnectionError("killed"),
    }
    sweep(tmp_path, ["beta=0.01,0.1,0.2"], grid=True, jobs=jobs).run()
    # The first fails for good, the second succeeds at its second attempt, the third was killed and comes back.
    assert [row[2] for row in table(tmp_path)] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert trial(tmp_path, 0)["reason"] == "the gradient is not finite" and len(jobs.calls) == 5


def test_a_trial_without_a_number_is_a_failure(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, lambda values, seed: math.nan if values["beta"] == "0.01" else 0.5)
    sweep(tmp_path, ["beta=0.01,0.1"], grid=True, jobs=jobs).run()
    assert [row[2:] for row in table(tmp_path)] == [("FAIL", None), ("COMPLETE", 0.5)]
    assert "not a number" in trial(tmp_path, 0)["reason"]


def test_a_launcher_that_raises_loses_no_finished_trial(tmp_path: Path) -> None:
    """As joblib does when one of its processes is killed: the batch's other jobs are done, their results are not returned."""

    class Batch(Jobs):
        def __call__(self, jobs: Any, number: int) -> Any:
            super().__call__(jobs[:1], number)
            raise ConnectionError("a worker died")

    sweep(tmp_path, ["beta=0.01,0.1"], grid=True, jobs=Batch(tmp_path), n_jobs=2, how=options(retries=0)).run()
    assert [row[2] for row in table(tmp_path)] == ["COMPLETE", "FAIL"]
    assert "a worker died" in trial(tmp_path, 1)["reason"]


def test_too_many_failures_end_the_sweep(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    jobs.misbehave = {i: failing("RewardError", "no such key") for i in range(1, 9)}
    with pytest.raises(RunError, match=r"2 trials .*max_failures=2.*no such key"):
        sweep(tmp_path, ["beta=range(1,9)"], grid=True, jobs=jobs, how=options(max_failures=2)).run()
    assert len(jobs.calls) == 2


def test_another_plan_is_refused_with_the_difference(tmp_path: Path) -> None:
    sweep(tmp_path, ["beta=0.01,0.1"], grid=True).run()
    with pytest.raises(ConfigError, match=r"space.beta was choice\(0.01, 0.1\) and is choice\(0.01, 0.2\)"):
        sweep(tmp_path, ["beta=0.01,0.2"], grid=True)
    with pytest.raises(ConfigError, match=r"seeds was not there and is \[1\]"):
        sweep(tmp_path, ["beta=0.01,0.1"], grid=True, how=options(seeds=[1]))


def test_a_torn_journal_is_repaired(tmp_path: Path) -> None:
    """What a full disk leaves: half a record. Optuna alone could not read the file after two more."""
    sweep(tmp_path, n_trials=2).run()
    before = table(tmp_path)
    with (tmp_path / "study.journal").open("a") as journal:
        journal.write('{"op_code": 4, "worker_id": "x')
    assert repair(tmp_path / "study.journal") == 30
    assert repair(tmp_path / "study.journal") == 0
    sweep(tmp_path, n_trials=4).run()
    assert table(tmp_path)[:2] == before and len(table(tmp_path)) == 4


def test_a_lock_is_free_when_its_holder_is_gone(tmp_path: Path) -> None:
    with lock(tmp_path / "x", wait=False) as first:
        assert first
        code = f"""
from pathlib import Path
from grpo_exp.sweep.study import lock
with lock(Path({str(tmp_path)!r}) / "x", wait=False) as had:
    print(had)
"""
        held = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HERE.parents[1])
        assert held.stdout.strip() == "False"
    with lock(tmp_path / "x", wait=False) as again:
        assert again


def test_killed_at_any_moment_it_ends_as_if_undisturbed(tmp_path: Path) -> None:
    """Ten kills; every trial once, with the numbers of the sweep that was left alone."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    sweep(whole, n_trials=8, how=options(seeds=[0, 1])).run()
    random, kills = Random(0), 0
    words = [sys.executable, str(HERE / "fake_jobs.py"), str(killed), "8", "0.1"]
    while True:
        process = subprocess.Popen(words, cwd=HERE.parents[1], env={"PYTHONPATH": str(HERE.parents[1])}, stderr=subprocess.PIPE)
        try:
            _, err = process.communicate(timeout=random.uniform(0.8, 2.5) if kills < 10 else 120)
            assert process.returncode == 0, err.decode()
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
    assert table(killed) == table(whole)
    assert kills == 10 or len(table(killed)) == 8
