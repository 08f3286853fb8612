"""Weights shared out over processes by FSDP2: the run that one process makes, and each process holds its part of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from command import SMALL, call
from rank_work import BASE, Held, Runs, held, work
from safetensors.torch import load_file
from test_processes import MORE, THREE, assert_same, card, in_a_folder_of_its_own, kept, numbers, rows
from vllm_stand_in import FakeServer

from grpo_exp import checkpoint, config, processes, run
from grpo_exp.command_line import read
from grpo_exp.compose import compose
from grpo_exp.errors import RankError, RunError, Stopped
from grpo_exp.hardware import prepare

__all__ = ["in_a_folder_of_its_own"]  # a fixture of every test here
FULL = "hardware.shard=full"
VARIANTS = {
    **MORE,
    "recomputed": ["model.gradient_checkpointing=true"],
    "recomputed modules": ["model.gradient_checkpointing=true", "model.forward=modules"],
    "two adapters": ["algo=ppo", "model.adapter=lora"],
    "a shared critic": ["algo=ppo", "algo.critic.trunk=shared"],
    "by transformers": ["rollout=hf", "model.forward=modules"],
    "one samples by modules": ["model.forward=modules", "prompts_per_step=1", "steps=3"],
}
BFLOAT16 = {"grpo": [], "ppo": ["algo=ppo"], "an adapter": ["model.adapter=lora"], "modules": ["model.forward=modules"]}


def assert_same_checkpoint(one: Path, other: Path) -> None:
    """The newest ones: weights, and what AdamW remembers of each."""
    a, b = (checkpoint.load(max((folder / "checkpoints").glob("*"))) for folder in (one, other))
    assert a.weights.keys() == b.weights.keys() and a.optimizer["state"].keys() == b.optimizer["state"].keys()
    for name, x in a.weights.items():
        torch.testing.assert_close(b.weights[name], x, rtol=1e-5, atol=2e-5)  # AdamW's first steps divide by tiny moments
    for key, moments in a.optimizer["state"].items():
        for name, x in moments.items():
            torch.testing.assert_close(b.optimizer["state"][key][name], x, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "shard", "words"), [(2, "full", VARIANTS), (2, "offload", THREE)], ids=["2", "2-offload"])
def test_the_same_experiment_in_parts(count: int, shard: str, words: dict[str, list[str]]) -> None:
    words = {name: [*options, "hardware.rollout_rows=6", "hardware.update_rows=3"] for name, options in words.items()}
    parts = {name: [*options, f"hardware.shard={shard}"] for name, options in words.items()}
    assert work(Runs(Path("alone").absolute(), words)) == 1
    assert processes.run(work, Runs(Path("several").absolute(), parts), count, 60) == count
    for name in words:
        assert_same(Path("alone", name), Path("several", name))
        assert_same_checkpoint(Path("alone", name), Path("several", name))
        assert card(Path("several", name))["hardware"]["shard"] == shard


@pytest.mark.slow
def test_in_bfloat16_it_is_nearly_the_same() -> None:
    """The first rollout is sampled and scored alike but for rounding; nothing here is exact."""
    words = {name: [*options, "model.dtype=bfloat16", "steps=1"] for name, options in BFLOAT16.items()}
    work(Runs(Path("alone").absolute(), words))
    processes.run(work, Runs(Path("several").absolute(), {name: [*given, FULL] for name, given in words.items()}), 2, 60)
    for name in words:
        one, other = (numbers(Path(side, name))[1] for side in ("alone", "several"))
        for key in ("entropy/mean", "grad/norm", "loss/total"):
            assert other[key] == pytest.approx(one[key], rel=0.1, abs=0.02), (name, key)


@pytest.mark.slow
def test_each_process_holds_its_part() -> None:
    """Of weights, moments, reference and critic, a little more than half with two processes: some sizes are odd."""
    for words in (["algo=ppo"], ["algo=dpo"], ["model.adapter=lora"]):
        for shard, most in (("none", 1.0), ("full", 0.52)):
            shares = processes.run(held, Held(Path.cwd(), [*words, f"hardware.shard={shard}"]), 2, 60)
            assert shares is not None and 0.48 * most < shares <= most, words


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weights", "an adapter", "a reward model"])
def test_the_export_is_whole(name: str) -> None:
    words = [*MORE.get(name, []), "checkpoint.export=true", "steps=1"]
    work(Runs(Path("alone").absolute(), {"run": words}))
    processes.run(work, Runs(Path("several").absolute(), {"run": [*words, FULL]}), 2, 60)
    one, other = Path("alone/run/export"), Path("several/run/export")
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    (weights,) = one.glob("*.safetensors")
    a, b = load_file(weights), load_file(other / weights.name)
    assert a.keys() == b.keys()
    for name, x in a.items():
        torch.testing.assert_close(b[name], x, rtol=1e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("forward", ["stream", "modules"])
def test_a_signal_within_a_layer_leaves_all_in_parts(forward: str) -> None:
    """It comes while one process samples, in the middle of a unit, and a checkpoint is put together right after it."""
    words = ["steps=4", "checkpoint.every=3", f"model.forward={forward}", FULL]
    with pytest.raises(Stopped, match="in step 2, before its update; the checkpoint of step 1 is there"):
        processes.run(work, Runs(Path.cwd(), {"run": words}, "signal in a layer"), 2, 60)
    assert kept(Path("run")) == [1]
    assert processes.run(work, Runs(Path.cwd(), {"run": words, "whole": words}), 2, 60) == 2
    assert rows(Path("run"), "samples.jsonl") == rows(Path("whole"), "samples.jsonl")
    assert numbers(Path("run")) == numbers(Path("whole"))


@pytest.mark.slow
def test_a_run_in_parts_goes_on_exactly_and_in_other_parts_all_the_same() -> None:
    """Stopped by a signal to one process while it samples, which the other must not take for a pass."""
    with pytest.raises(Stopped, match="in step 2, before its update; the checkpoint of step 1 is there"):
        processes.run(work, Runs(Path.cwd(), {"run": ["steps=4", FULL]}, "signal in sampling"), 2, 60)
    assert kept(Path("run"))[-1] == 1
    runs = {"run": ["steps=4", FULL], "whole": ["steps=4", FULL]}
    assert processes.run(work, Runs(Path.cwd(), runs), 2, 60) == 2
    assert card(Path("run"))["resumed_from"] == 1
    assert rows(Path("run"), "samples.jsonl") == rows(Path("whole"), "samples.jsonl")
    assert numbers(Path("run")) == numbers(Path("whole"))
    work(Runs(Path.cwd(), {"run": ["steps=5"]}))  # alone, and whole
    assert card(Path("run"))["resumed_from"] == 4 and card(Path("run"))["hardware"]["shard"] == "none"
    assert processes.run(work, Runs(Path.cwd(), {"run": ["steps=6", FULL]}), 2, 60) == 2
    assert card(Path("run"))["resumed_from"] == 5 and numbers(Path("run"))[-1]["step"] == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "timeout", "told"),
    [("dies in a pass", 60, "was ended by SIGKILL"), ("hangs in a pass", 15, "has not answered for 15 s")],
)
def test_one_that_fails_in_a_pass_ends_the_run(trouble: str, timeout: float, told: str) -> None:
    with pytest.raises(RunError) as ended:
        processes.run(work, Runs(Path.cwd(), {"run": ["steps=4", FULL]}, trouble, timeout), 2, timeout)
    assert isinstance(ended.value, RankError) and ended.value.exit_code == 3 and told in str(ended.value)
    assert "rank 1 (process" in str(ended.value) and "rank 0" not in str(ended.value)
    assert kept(Path("run")) == [1] and card(Path("run"))["status"] == "failed"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["model.quantize=4bit", "model.adapter=lora"], "model.quantize=4bit does not go with it"),
        (["optim.name=adamw_8bit"], "optim.name=adamw_8bit does not go with it"),
        (["hardware.critic=cpu", "algo=ppo"], "hardware.critic=cpu does not go with it"),
        (["hardware.reference=8bit"], "hardware.reference=8bit does not go with it"),
        (["hardware.reference=cpu"], "hardware.reference=cpu does not go with it"),
    ],
)
@pytest.mark.parametrize("shard", ["full", "offload"])
def test_what_has_no_parts_is_refused(shard: str, words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *SMALL, *words, f"hardware.shard={shard}", "hydra.run.dir=run")
    assert answer.code == 2 and f"hardware.shard={shard}: {told}" in answer.err and not os.path.exists("run")


def test_one_process_alone_has_all(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *SMALL, FULL, "hydra.run.dir=run")
    assert answer.code == 0, answer
    assert json.loads(Path("run/run.json").read_text())["hardware"]["shard"] == "none"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["model.adapter=lora", "model.lora_rank=2"], [], [FULL, "model.adapter=lora", "model.lora_rank=2"], [FULL]]
)
def test_the_first_process_asks_a_server_for_all(words: list[str]) -> None:
    """It is given the weights as they are now, whole, and the samples are those that a run of one process is given."""
    plain = [word for word in words if word != FULL]
    made = config.build(compose(read([*BASE, *plain])))
    policy = run.load_policy(made, prepare(made.hardware, "float32"))
    policy.export_base(Path("served"))
    for name, count in (("alone", 1), ("several", 2)):
        with FakeServer(Path("served")) as server:
            asks = ["rollout=vllm", f"rollout.url={server.url}", "rollout.timeout=20"]
            runs = Runs(Path.cwd(), {name: [*(plain if count == 1 else words), *asks]})
            assert (work(runs) if count == 1 else processes.run(work, runs, count, 60)) == count
            sent = [path for path, _ in server.asked if "load" in path or "rpc" in path]
            assert len(sent) >= 2, "the weights before the first step and after it"
    assert_same(Path("alone"), Path("several"))
