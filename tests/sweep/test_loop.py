"""Trials claimed, run, told: with jobs that take no time."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from random import Random
from typing import Any

import optuna
import pytest
from fake_jobs import Jobs, options, quality, sweep, table

from grpo_exp.app import _Ended
from grpo_exp.errors import ConfigError, DataError, GrpoError, Pruned, RunError, Stopped
from grpo_exp.sweep import results
from grpo_exp.sweep.study import lock
from grpo_exp.sweep.trial import Reporter

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


@pytest.mark.parametrize("name", ["tpe", "random"])
def test_a_small_space_is_tried_point_by_point_and_no_further(tmp_path: Path, name: str) -> None:
    """A sampler repeats itself in a short list; a run that was made already is not made again, also after a stop."""
    words, how = ["beta=0.001,0.01,0.1", "G=2,4"], {"sampler": {"name": name, "seed": 0}}
    sweep(tmp_path / "whole", words, n_trials=20, **how).run()
    for wanted in (1, 4, 20):
        sweep(tmp_path / "parts", words, n_trials=wanted, **how).run()
    points = [tuple(values.values()) for _, values, *_ in table(tmp_path / "whole")]
    assert len(points) == 6 == len(set(points)) and table(tmp_path / "whole") == table(tmp_path / "parts")


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
    """What a kill leaves: half a record, also while the sweep goes on. Optuna alone could not read the file after two more."""
    journal = tmp_path / "study.journal"

    def tear() -> None:
        with journal.open("a") as file:
            file.write('{"op_code": 4, "worker_id": "x')

    sweep(tmp_path, n_trials=2).run()
    before = table(tmp_path)
    tear()
    made = sweep(tmp_path, n_trials=4)
    made.say = lambda text: tear()
    made.run()
    assert table(tmp_path)[:2] == before and len(table(tmp_path)) == 4
    assert journal.read_text().count('{"op_code": 4, "worker_id": "x') == 1  # the last, which nothing followed
    long = '{"op_code": 4, "worker_id": "' + "x" * 200_000
    with journal.open("a") as file:
        file.write(long)
    sweep(tmp_path, n_trials=5).run()
    assert len(table(tmp_path)) == 5 and all(map(json.loads, journal.read_text().splitlines()))


def test_a_lock_is_free_when_its_holder_is_gone(tmp_path: Path) -> None:
    with lock(tmp_path / "x", wait=False) as first:
        assert first
        code = f"""
from pathlib import Path
from grpo_exp.sweep.study import lock
from grpo_exp.sweep.trial import Reporter
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


@pytest.mark.parametrize("name", ["tpe", "random", "cmaes"])
def test_a_kill_between_two_values_changes_neither(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial that has two values of three goes on with the third that it would have had."""
    words = ["beta=interval(0.0,1.0)", "lr=interval(0.0,1.0)", "G=int(interval(2,1000))"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    sampler = {"name": name, "seed": 1} | ({} if name == "random" else {"n_startup_trials": 2})
    sweep(whole, words, n_trials=4, sampler=sampler).run()
    suggest = optuna.Trial.suggest_int
    calls: list[int] = []

    def once(trial: optuna.Trial, *args: Any, **kwargs: Any) -> int:
        calls.append(trial.number)
        if calls.count(trial.number) == 1:
            raise KeyboardInterrupt
        return suggest(trial, *args, **kwargs)

    monkeypatch.setattr(optuna.Trial, "suggest_int", once)
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            sweep(killed, words, n_trials=4, sampler=sampler).run()
    sweep(killed, words, n_trials=4, sampler=sampler).run()
    assert table(killed) == table(whole)
    assert all(values["beta"] != values["lr"] for _, values, *_ in table(whole))


def test_a_kill_between_the_pruned_job_and_the_study_prunes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    median = {"name": "median", "n_startup_trials": 2}
    words = ["beta=0.01,0.1,1"]
    jobs = Jobs(tmp_path)
    made = sweep(tmp_path, words, grid=True, pruner=median, jobs=jobs)
    tell, told = made.study.tell, []

    def killed(number: int, *args: Any, **kwargs: Any) -> Any:
        told.append(number)
        if number == 2:
            raise KeyboardInterrupt
        return tell(number, *args, **kwargs)

    monkeypatch.setattr(made.study, "tell", killed)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    before = (tmp_path / "2" / "run.json").read_text()
    sweep(tmp_path, words, grid=True, pruner=median, jobs=jobs).run()
    assert len(jobs.calls) == 3 and (tmp_path / "2" / "run.json").read_text() == before
    assert trial(tmp_path, 2)["state"] == "pruned" and table(tmp_path)[2][2] == "PRUNED"


def test_a_kill_between_the_study_and_the_folder_leaves_no_folder_running(tmp_path: Path) -> None:
    sweep(tmp_path, ["beta=0.01,0.1"], grid=True).run()
    file = tmp_path / "1" / "trial.json"
    before = json.loads(file.read_text())
    results.write(file, {**before, "state": "running", "value": None})
    sweep(tmp_path, ["beta=0.01,0.1"], grid=True).run()
    assert json.loads(file.read_text()) == before


def test_a_run_that_goes_on_is_judged_where_it_was_not_yet(tmp_path: Path) -> None:
    """It reports steps again that it had reported; the study keeps the first word, and prunes no earlier than it did."""
    made = sweep(tmp_path, ["beta=0.01,0.1,1"], grid=True, pruner={"name": "threshold", "lower": 0.5})
    number = made.study.ask({"beta": made.space.distributions["beta"]}).number
    first = Reporter(tmp_path, number, 0, 4)
    first(1, 0.9)
    first(2, 0.9)
    with pytest.raises(Pruned):
        first(3, 0.0)
    again = Reporter(tmp_path, number, 0, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again(1, 0.9)
        again(2, 0.9)
        with pytest.raises(Pruned, match="step 3"):
            again(3, 0.0)


@pytest.mark.parametrize("value", [None, math.nan])
def test_what_was_not_measured_keeps_to_no_constraint_and_is_no_objective(tmp_path: Path, value: Any) -> None:
    """None is how a row holds NaN; a metric may also be missing from every row."""

    class Bare(Jobs):
        def one(self, words: list[str]) -> None:
            super().one(words)
            where = self.folder / words[-1].partition("=")[2]
            row = {"kind": "train", "step": 1, "kl/median": value} | ({"kind": "eval", "eval/length": value} if both else {})
            (where / "metrics.jsonl").write_text(json.dumps(row) + "\n[1]\n\xff{\n")

    both = False
    constraints = ["kl/median <= 0.9", "kl/median >= -9", "never >= 0", "never <= 0"]
    made = sweep(tmp_path / "one", ["beta=0.01,0.1"], grid=True, constraints=constraints, jobs=Bare(tmp_path / "one"))
    said: list[str] = []
    made.say = said.append
    made.run()
    kept = made.study.trials[0].constraints
    assert set(kept) == set(constraints) and all(1 < over < math.inf for over in kept.values())
    assert results.best(made.study) is None and "none keeps to its constraints" in said[-1] and "oversteps never" in said[-1]
    both = True
    two = {"metrics": ["eval/length", "eval/never"], "direction": ["maximize", "minimize"]}
    sweep(tmp_path / "two", ["beta=0.01,0.1"], grid=True, jobs=Bare(tmp_path / "two"), **two).run()
    assert [row[2] for row in table(tmp_path / "two")] == ["FAIL", "FAIL"]
    assert "eval/length, eval/never: not a number" in trial(tmp_path / "two", 0)["reason"]


def test_one_impossible_point_is_a_failure_and_the_same_trouble_twice_the_end(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "a")
    jobs.misbehave = {1: lambda folder: ConfigError("G=1: at least 2")}
    sweep(tmp_path / "a", ["G=1,2,4"], grid=True, jobs=jobs).run()
    assert [row[2] for row in table(tmp_path / "a")] == ["FAIL", "COMPLETE", "COMPLETE"]
    jobs = Jobs(tmp_path / "b")
    jobs.misbehave = {i: lambda folder: ConfigError("no such category") for i in (1, 2)}
    with pytest.raises(ConfigError, match="no such category"):
        sweep(tmp_path / "b", ["G=1,2,4"], grid=True, jobs=jobs).run()
    jobs = Jobs(tmp_path / "c")
    jobs.misbehave = {1: lambda folder: DataError("no such file")}
    with pytest.raises(DataError):
        sweep(tmp_path / "c", ["G=1,2,4"], grid=True, jobs=jobs).run()
    sweep(tmp_path / "c", ["G=1,2,4"], grid=True, jobs=jobs).run()  # the file is there now
    assert [row[2] for row in table(tmp_path / "c")] == ["COMPLETE"] * 3


def test_a_stopped_job_runs_again(tmp_path: Path) -> None:
    """As when a cluster takes its machine away, which Hydra's launchers do not tell from an end."""
    jobs = Jobs(tmp_path)
    jobs.misbehave = {1: lambda folder: results.write(folder / "run.json", {"status": "stopped", "error": "SIGTERM"})}
    sweep(tmp_path, ["beta=0.01,0.1"], grid=True, jobs=jobs).run()
    assert [row[2] for row in table(tmp_path)] == ["COMPLETE", "COMPLETE"] and len(jobs.calls) == 3


def test_a_full_disk_is_no_trials_fault(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    jobs.misbehave = {2: failing("RunError", "metrics.jsonl cannot be written (No space left on device)")}
    with pytest.raises(RunError, match="Make room"):
        sweep(tmp_path, ["beta=0.01,0.1,0.2"], grid=True, jobs=jobs).run()
    assert [row[2] for row in table(tmp_path)] == ["COMPLETE", "RUNNING"]
    sweep(tmp_path, ["beta=0.01,0.1,0.2"], grid=True, jobs=jobs).run()
    assert [row[2] for row in table(tmp_path)] == ["COMPLETE"] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_disk_that_fills_up_anywhere_loses_nothing(tmp_path: Path) -> None:
    """A disk that has room for so many bytes more, and then some: whatever write it stops, the trials that were done stay."""
    disk, whole = tmp_path / "disk", tmp_path / "whole"
    sweep(whole, n_trials=6).run()
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        ballast, stopped = disk / "ballast", 0
        for pages in range(14):
            made = sweep(disk / "sweep", n_trials=6)
            before = [row for row in table(disk / "sweep") if row[2] == "COMPLETE"]
            with contextlib.suppress(OSError), ballast.open("ab") as file:
                file.write(bytes(3 * 2**20))
            with ballast.open("ab") as file:
                file.truncate(ballast.stat().st_size // 4096 * 4096 - pages % 7 * 4096)
            try:
                made.run()
            except RunError as error:
                assert "Make room" in str(error)
                stopped += 1
            ballast.unlink()
            assert [row for row in table(disk / "sweep") if row[2] == "COMPLETE"][: len(before)] == before
            assert "FAIL" not in [row[2] for row in table(disk / "sweep")]
        sweep(disk / "sweep", n_trials=6).run()
        assert stopped > 3 and table(disk / "sweep") == table(whole)
        assert all(map(json.loads, (disk / "sweep" / "study.journal").read_text().splitlines()))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_messages_tell_how_far_and_how_well(tmp_path: Path) -> None:
    said: list[str] = []
    jobs = Jobs(tmp_path)
    jobs.misbehave = {4: failing("NumericsError", "the gradient is not finite")}
    median = {"name": "median", "n_startup_trials": 2}
    sweep(tmp_path, ["beta=0.01,0.1,1,0.02"], grid=True, pruner=median, jobs=jobs, say=said.append).run()
    assert said == [
        "trial 0 (1 of 4): beta=0.01",
        "trial 0: eval/pass@1 1.004; best so far 1.004 (trial 0)",
        "trial 1 (2 of 4): beta=0.1",
        "trial 1: eval/pass@1 0.754; best so far 1.004 (trial 0)",
        "trial 2 (3 of 4): beta=1",
        "trial 2 pruned at step 1 with 0.126; best so far 1.004 (trial 0)",
        "trial 3 (4 of 4): beta=0.02",
        "trial 3 failed: the gradient is not finite; best so far 1.004 (trial 0)",
    ]


@pytest.mark.parametrize(
    "error", [Pruned(0.5, "pruned at step 3"), Stopped(15, "stopped"), RunError("failed"), DataError("none")]
)
def test_errors_reach_another_process(error: GrpoError) -> None:
    """Launchers pickle them; one that cannot be unpickled takes the jobs beside it down."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)
    assert str(pickle.loads(pickle.dumps(_Ended(error))).error) == str(error)
