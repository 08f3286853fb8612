"""Whole runs of a few steps on the untrained embedded model, through the configuration and `run.train`, and the loop alone."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from toy_loop import Recording, loop, options

from grpo_exp import checkpoint, config, run
from grpo_exp.algos.base import Algorithm
from grpo_exp.algos.grpo import GRPO
from grpo_exp.batch import TokenBatch
from grpo_exp.compose import compose
from grpo_exp.errors import ConfigError, NumericsError, RunError
from grpo_exp.policy import Policy
from grpo_exp.track.wording import spread

Row = dict[str, Any]
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

BASE = [
    "model=tiny_random",
    "track=quiet",
    "hardware=cpu",
    "hardware.threads=1",
    "reward=custom",
    "steps=2",
    "prompts_per_step=4",
    "G=4",
    "max_new_tokens=8",
    "data.train=24",
    "data.heldout=6",
    "eval.samples=2",
    "lr=1e-3",
    "optim.warmup_steps=0",
    "checkpoint.export=false",
]
REWARDS = """
def digits(completions):  # differs between nearly all samples
    return [sum(c.isdigit() for c in text) / 8 + len(set(text)) / 80 for text in completions]

def same(completions):
    return [0.3] * len(completions)

def some(completions):  # with G=4: no contrast in every other group
    return [value if i // 4 % 2 else 0.5 for i, value in enumerate(digits(completions))]

calls = []
def late_failure(completions):
    calls.append(1)
    if len(calls) > 3:
        raise ValueError("no more")
    return digits(completions)
"""


def train(folder: Path, *words: str, reward: str = "digits") -> list[Row]:
    """Run with options changed; the rows of metrics.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "rewards.py").write_text(REWARDS)
    composed = compose([*BASE, f"reward.path={folder.parent / 'rewards.py'}:{reward}", *words])
    run.train(config.build(composed), config.resolved(composed), set(), folder)
    return rows(folder / "metrics.jsonl")


def rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def of(kind: str, found: Iterable[Row]) -> list[Row]:
    return [row for row in found if row["kind"] == kind]


def without_times(found: Iterable[Row]) -> list[Row]:
    timed = ("time/", "throughput/", "memory/")
    return [{k: v for k, v in row.items() if k != "seconds" and not k.startswith(timed)} for row in found]


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return checkpoint.load(folder / "checkpoints" / f"step-{step:06d}").weights


# ---- repeatable, and the same however it is cut up


SEVERAL = ("algo.updates_per_rollout=2", "algo.minibatch_count=2", "steps=3")


def test_the_same_seed_gives_the_same_run_bit_for_bit(tmp_path: Path) -> None:
    one, again, other = (train(tmp_path / name, *SEVERAL, f"seed={seed}") for name, seed in (("a", 5), ("b", 5), ("c", 6)))
    assert without_times(one) == without_times(again)
    assert without_times(one) != without_times(other)
    assert (tmp_path / "a/samples.jsonl").read_bytes() == (tmp_path / "b/samples.jsonl").read_bytes()
    assert (tmp_path / "a/eval.jsonl").read_bytes() == (tmp_path / "b/eval.jsonl").read_bytes()
    first, second = weights(tmp_path / "a", 3), weights(tmp_path / "b", 3)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("reward", ["some", "same"])
def test_rows_without_a_gradient_are_looked_at_without_one(
    tmp_path: Path, reward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is changed by it but the time: not the metrics, not the weights, not even where no row has a gradient."""
    words = ("beta=0", "steps=3", "hardware.update_rows=4", "optim.weight_decay=0.1")
    modes: list[tuple[int, bool]] = []
    forward = Policy.forward

    def watched(self: Policy, rows: TokenBatch, *args: Any, train: bool = False, **more: Any) -> Any:
        if train:
            modes.append((len(rows), torch.is_grad_enabled()))
        return forward(self, rows, *args, train=train, **more)

    monkeypatch.setattr(Policy, "forward", watched)
    quick = train(tmp_path / "quick", *words, reward=reward)
    assert {grad for _, grad in modes} == ({True, False} if reward == "some" else {False})
    monkeypatch.setattr(GRPO, "idle", Algorithm.idle)
    modes.clear()
    plain = train(tmp_path / "plain", *words, reward=reward)
    assert all(grad for _, grad in modes)
    for one, other in zip(without_times(quick), without_times(plain), strict=True):
        assert one.pop("kind") == other.pop("kind")
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)
    first, second = weights(tmp_path / "quick", 3), weights(tmp_path / "plain", 3)
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=1e-4)


PLAIN_STEP = ("steps=1", "optim.clip_grad=0", "eval.start=false", "optim.beta1=0")
"""Without beta1 AdamW's mean of gradients is the last one. Weights would not do: the first step is a sign, noise and all."""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((), marks=pytest.mark.slow),
        ("algo.aggregation=token_mean", "algo.mask_truncated=true", "rollout.stop=[a,e,i,o,u,'0','1']", "beta=5"),
        pytest.param(("algo.aggregation=constant_length", "algo.kl.place=reward"), marks=pytest.mark.slow),
        ("rollout.top_p=0.9", "model.adapter=lora", "temperature=0.8"),
    ],
)
def test_rows_at_a_time_do_not_change_the_gradient(tmp_path: Path, words: tuple[str, ...]) -> None:
    start = Policy.load(
        config.build(compose(["model=tiny_random", *words])).model, torch.device("cpu"), torch.float32, 0
    ).state()
    gradients, metrics = [], []
    for i, (update, rollout) in enumerate([(16, 16), (3, 5)]):
        folder = tmp_path / str(i)
        found = train(folder, *PLAIN_STEP, *words, f"hardware.update_rows={update}", f"hardware.rollout_rows={rollout}")
        state = checkpoint.load(folder / "checkpoints" / "step-000001").optimizer["state"]
        gradients.append({name: state[i]["exp_avg"] for i, name in enumerate(start)})
        metrics.append(of("train", found)[0])
        assert weights(folder, 1).keys() == start.keys()
    largest = max(g.abs().max().item() for g in gradients[0].values())
    assert largest > 1e-3
    for other, row in zip(gradients[1:], metrics[1:], strict=True):
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(other[name], gradient, rtol=0, atol=1e-5 * largest)
        for name in (
            "loss/total",
            "loss/policy",
            "loss/kl",
            "entropy/mean",
            "grad/norm",
            "clip/low",
            "reward/mean",
            "length/mean",
        ):
            if name in metrics[0]:
                assert row[name] == pytest.approx(metrics[0][name], rel=1e-5, abs=1e-7), name


# ---- what is true before the first update


@pytest.mark.parametrize(
    "words",
    [
        ("temperature=0.6",),
        ("model.adapter=lora",),
        ("algo.kl.place=reward",),
        ("model.gradient_checkpointing=true",),
        ("model.dtype=bfloat16",),
    ],
)
def test_step_one_has_kl_zero_and_ratio_one(tmp_path: Path, words: tuple[str, ...]) -> None:
    first, second = of("train", train(tmp_path / "run", *words))
    kl = ("kl/mean", "kl/median", "kl/p95", "kl/k1", "kl/k2", "kl/k3")
    assert [first[name] for name in kl] == [0] * 6
    assert first["ratio/max"] == 1
    assert first["adv/absmax"] > 0 and first["grad/norm"] > 0
    assert second["kl/k2"] > 0 and second["kl/k3"] > 0 and second["kl/k1"] != 0
    assert second["ratio/max"] == 1  # one update a rollout
    assert second["clip/low"] == second["clip/high"] == 0
    # The sampler's log-probs are the training forward's, at this temperature too.
    assert 0 < max(first["mismatch/abs_max"], second["mismatch/abs_max"]) < (0.1 if "model.dtype=bfloat16" in words else 1e-4)


def test_several_updates_on_a_rollout_move_the_ratio(tmp_path: Path) -> None:
    first, *_ = of("train", train(tmp_path / "run", *SEVERAL, "lr=1e-2"))
    assert first["ratio/max"] > 1.2
    assert first["clip/low"] + first["clip/high"] > 0
    assert abs(first["kl/k1"]) < 1e-6  # measured before the first of them, on other micro-batches than the reference
    (once,) = of("train", train(tmp_path / "once", "lr=1e-2", "steps=1"))
    assert once["clip/low"] + once["clip/high"] == 0
    assert not all(
        torch.equal(a, b)
        for a, b in zip(weights(tmp_path / "run", 3).values(), weights(tmp_path / "once", 1).values(), strict=True)
    )


def test_rewards_without_contrast_move_nothing(tmp_path: Path) -> None:
    """Nor through a KL term in the reward, which is 0 for every row and not the sampler's rounding."""
    for place in ("loss", "reward"):
        (row,) = of("train", train(tmp_path / place, "steps=1", f"algo.kl.place={place}", "algo.std_eps=0", reward="same"))
        assert row["adv/absmax"] == row["grad/norm"] == row["loss/total"] == 0
        assert row["reward/zero_std_frac"] == row["wasted/token_frac"] == 1
        assert row["reward/mean"] == pytest.approx(0.3)


def test_kl_in_the_reward_holds_the_policy_near_its_reference(tmp_path: Path) -> None:
    """With weight on it, the KL after some steps is smaller than without."""
    words = ("algo.kl.place=reward", "algo.kl.estimator=k1", "algo.std=none", "lr=3e-3", "steps=6", "eval.start=false")
    loose = of("train", train(tmp_path / "loose", *words, "beta=1e-6"))
    tight = of("train", train(tmp_path / "tight", *words, "beta=3"))
    assert "loss/kl" not in loose[-1]
    assert tight[-1]["kl/k3"] < 0.7 * loose[-1]["kl/k3"]


@pytest.mark.parametrize("words", [("beta=0",), ("algo.kl.place=none",)])
@pytest.mark.parametrize("every", [0, 10])
def test_without_a_kl_term_there_is_no_reference(
    tmp_path: Path, words: tuple[str, ...], every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pass of it but in the steps that report the KL, and none is kept where no step does."""

    def refused(self: Policy, moves: bool = False) -> Any:
        raise AssertionError("the reference was asked for")

    monkeypatch.setattr(Policy, "reference", refused)
    if not every:
        monkeypatch.setattr(Policy, "freeze_reference", refused)
    found = of("train", train(tmp_path / "run", *words, "steps=1", "eval.start=false", f"algo.kl.report_every={every}"))
    assert not [name for row in found for name in row if name.startswith("kl/") or name == "loss/kl"]
    assert found[0]["grad/norm"] > 0


def test_it_learns(tmp_path: Path) -> None:
    """A character more often, within a few steps."""
    found = of("train", train(tmp_path / "run", "steps=25", "lr=3e-3", "prompts_per_step=8", "eval.start=false"))
    early, late = (sum(row["reward/mean"] for row in part) / 5 for part in (found[:5], found[-5:]))
    assert late > early + 0.2


def test_supervised_steps_reduce_the_loss(tmp_path: Path) -> None:
    words = (
        "algo=sft",
        "steps=12",
        "lr=3e-3",
        "prompts_per_step=16",
        "max_new_tokens=60",
        "eval.start=false",
        "eval.max_items=1",
    )
    found = of("train", train(tmp_path / "run", *words))
    assert found[0]["loss/total"] == pytest.approx(math.log(89), abs=0.2)  # an untrained model's guess among 89 tokens
    assert found[-1]["loss/total"] < found[0]["loss/total"] - 1
    assert not [name for name in found[0] if name.startswith(("kl/", "reward/", "clip/"))]


# ---- what a run leaves


CONTRACT = """
reward/mean reward/std reward/group_std reward/zero_std_frac reward/all_right_frac reward/all_wrong_frac
reward/part/math reward/part/format kl/mean kl/median kl/p95 kl/k1 kl/k2 kl/k3 length/mean length/p50 length/p95
length/wrong length/truncated_frac format/rate text/unique_frac text/repetition entropy/mean ratio/max clip/low
clip/high adv/absmax loss/total loss/policy loss/kl grad/norm lr mismatch/abs_mean mismatch/abs_max time/rollout
time/reward time/logp time/update time/total throughput/tokens_per_s memory/peak_gib wasted/token_frac
"""
TRAIN_NAMES = CONTRACT.split()
EVAL_NAMES = ["eval/pass@1", "eval/pass@k", "eval/maj@k", "eval/format", "eval/length"]


def test_rows_have_the_names_of_the_contract(tmp_path: Path) -> None:
    composed = compose([*(w for w in BASE if w != "reward=custom"), "steps=2", "eval.every=1"])
    run.train(config.build(composed), config.resolved(composed), set(), tmp_path)
    found = rows(tmp_path / "metrics.jsonl")
    assert [(row["kind"], row["step"]) for row in found] == [("eval", 0), ("train", 1), ("eval", 1), ("train", 2), ("eval", 2)]
    for row in found:
        assert list(row)[:4] == ["step", "kind", "tokens", "seconds"]
        assert not [name for name in (TRAIN_NAMES if row["kind"] == "train" else EVAL_NAMES) if row.get(name) is None]
    assert found[0]["tokens"] == 0
    train_rows = of("train", found)
    assert train_rows[1]["tokens"] == sum(round(row["length/mean"] * 16) for row in train_rows)
    assert "gap/train_minus_eval" in found[-1] and "gap/train_minus_eval" not in found[0]
    samples = rows(tmp_path / "samples.jsonl")
    assert len(samples) == 32 and {s["step"] for s in samples} == {1, 2}
    names = {"step", "prompt", "completion", "reward/part/math", "reward/part/format", "total", "length", "finished"}
    assert names <= set(samples[0])
    shown = spread(samples, 2)  # what the console shows of them: the keys that the loop writes are those that a sink reads
    assert [s["total"] for s in shown] == [max(s["total"] for s in samples), min(s["total"] for s in samples)]
    assert len(rows(tmp_path / "eval.jsonl")) == 3 * 6 * 2


def test_checkpoints_and_card(tmp_path: Path) -> None:
    found = train(
        tmp_path / "run",
        "steps=5",
        "checkpoint.every=1",
        "eval.every=2",
        "checkpoint.keep_last=1",
        "objective.metric=eval/reward",
    )
    card = json.loads((tmp_path / "run/run.json").read_text())
    assert card["status"] == "finished" and card["objective"] == of("eval", found)[-1]["eval/reward"]
    values = {row["step"]: row["eval/reward"] for row in of("eval", found) if row["step"] > 0}
    best = max(values, key=lambda step: (values[step], -step))
    steps = sorted(int(p.name[5:]) for p in (tmp_path / "run/checkpoints").iterdir())
    assert steps == sorted({best, 5})
    manifest = json.loads((tmp_path / f"run/checkpoints/step-{best:06d}/manifest.json").read_text())
    assert manifest["objective"] == values[best]
    progress = checkpoint.load(tmp_path / "run/checkpoints/step-000005").progress
    assert progress["step"] == 5 and progress["tokens"] == of("train", found)[-1]["tokens"]


def test_an_objective_belongs_to_the_step_it_was_measured_at(tmp_path: Path) -> None:
    train(tmp_path / "run", "steps=5", "checkpoint.every=1", "eval.every=2", "checkpoint.keep_last=9")
    known = {}
    for folder in sorted((tmp_path / "run/checkpoints").iterdir()):
        known[int(folder.name[5:])] = json.loads((folder / "manifest.json").read_text())["objective"] is not None
    assert known == {1: False, 2: True, 3: False, 4: True, 5: True}


LOAD = """
import json, sys, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
full, adapter, base = sys.argv[1:]
ids = AutoTokenizer.from_pretrained(full)("12+7=?", return_tensors="pt")["input_ids"]
model = AutoModelForCausalLM.from_pretrained(full)
start = AutoModelForCausalLM.from_pretrained(base)
adapted = PeftModel.from_pretrained(start, adapter)
assert not [name for name in sys.modules if name.startswith("grpo_exp")]
with torch.no_grad():
    print(json.dumps([m(ids).logits[0, -1].tolist() for m in (model.eval(), adapted.eval())]))
"""


@pytest.mark.slow
def test_an_export_loads_without_this_package(tmp_path: Path) -> None:
    """Its logits are those of the weights in the last checkpoint."""
    train(tmp_path / "full", "eval.start=false", "checkpoint.export=true")
    train(tmp_path / "lora", "model.adapter=lora", "lr=0.05", "eval.start=false", "checkpoint.export=true")
    options = config.build(compose(["model=tiny_random"])).model
    Policy.load(options, torch.device("cpu"), torch.float32, 0).export(tmp_path / "base")
    command = [sys.executable, "-W", "ignore", "-c", LOAD, *(str(tmp_path / p) for p in ("full/export", "lora/export", "base"))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    for name, theirs in zip(("full", "lora"), json.loads(done.stdout), strict=True):
        options = config.build(compose(["model=tiny_random", *(["model.adapter=lora"] if name == "lora" else [])])).model
        ours = Policy.load(options, torch.device("cpu"), torch.float32, 0)
        before = ours.model(torch.tensor([ours.tokenizer("12+7=?")["input_ids"]])).logits[0, -1]
        ours.load_state(weights(tmp_path / name, 2))
        logits = ours.model(torch.tensor([ours.tokenizer("12+7=?")["input_ids"]])).logits[0, -1]
        torch.testing.assert_close(torch.tensor(theirs), logits.detach(), rtol=0, atol=1e-5)
        assert (logits - before).abs().max() > 1e-3  # it did train
    assert not [name for name in load_file(tmp_path / "lora/export/adapter_model.safetensors") if "lora" not in name]


def test_a_run_that_fails_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no more"):
        train(tmp_path / "run", "steps=9", "eval.start=false", reward="late_failure")
    card = json.loads((tmp_path / "run/run.json").read_text())
    assert card["status"] == "failed" and "no more" in card["error"] and card["objective"] is None
    assert [row["step"] for row in rows(tmp_path / "run/metrics.jsonl")] == [
        1,
        2,
    ]  # the first call was the check before the run


# ---- the loop alone


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.8, 0.6, 0.4]),  # 0.2 would come next
        ("cosine", [0.5, 1.0, 1.0, 0.2 + 0.8 * (2 + 2**0.5) / 4, 0.6, 0.2 + 0.8 * (2 - 2**0.5) / 4]),
    ],
)
def test_learning_rates(schedule: str, expected: list[float]) -> None:
    optim = options(warmup_steps=2, schedule=schedule, min_ratio=0.2)
    assert [optim.rate(2.0, step, 6) / 2.0 for step in range(6)] == pytest.approx(expected)


def test_learning_rate_without_warm_up_and_with_too_much() -> None:
    assert options(schedule="linear").rate(1.0, 0, 1) == 1.0
    assert [options(warmup_steps=10, schedule="cosine").rate(1.0, step, 3) for step in range(3)] == pytest.approx(
        [0.1, 0.2, 0.3]
    )


@pytest.mark.parametrize("word", ["optim.beta1=1", "optim.beta2=1", "optim.eps=0", "optim.clip_grad=-1", "optim.schedule=step"])
def test_what_the_optimizer_would_refuse_is_refused_before_the_model_loads(word: str) -> None:
    with pytest.raises(ConfigError, match=word.split("=")[0]):
        config.build(compose(["model=tiny_random", word]))


def test_each_pass_sees_every_row_once_and_groups_stay_together(tmp_path: Path) -> None:
    algorithm = Recording("r", "r")
    trainer, tracker = loop(tmp_path, algorithm, options(), update_rows=4)
    trainer.run()
    group = [0, 2, 1, 0, 2, 1]
    assert algorithm.counts == [3] * 12  # 2 steps, 3 passes, 2 parts
    parts = algorithm.seen
    assert len(parts) == 12
    for i in range(0, 12, 2):
        assert sorted(parts[i] + parts[i + 1]) == list(range(6))
        groups = [group[row] for row in parts[i] + parts[i + 1]]
        assert groups[0] == groups[1] and groups[2] == groups[3] and groups[4] == groups[5]
    assert len({tuple(parts[i]) for i in range(0, 6, 2)}) > 1  # in another order from pass to pass
    assert parts[:6] != parts[6:]  # and from step to step
    # Metrics are sums over all passes divided once, and largest values.
    assert [row["x"] for row in tracker.rows] == [2.5, 2.5] and [row["y"] for row in tracker.rows] == [5, 5]


def test_gradients_of_micro_batches_add_up_and_are_clipped(tmp_path: Path) -> None:
    norms = {}
    for update_rows in (1, 6):
        trainer, tracker = loop(tmp_path, Recording("r", "r", passes=1, parts=1), options(clip_grad=0.5), update_rows, steps=1)
        trainer.run()
        norms[update_rows] = tracker.rows[0]["grad/norm"]
        clipped = torch.cat([p.grad.flatten() for p in trainer.optimizer.parameters if p.grad is not None]).norm().item()
        assert clipped == pytest.approx(0.5, rel=1e-4)
        assert norms[update_rows] > 1  # the norm before clipping is what is recorded
    assert norms[1] == pytest.approx(norms[6], rel=1e-5)


def test_an_optimizer_step_uses_its_own_gradient_alone(tmp_path: Path) -> None:
    """On the same batch, with weights that hardly move, the second step's gradient is the first's."""
    trainer, tracker = loop(tmp_path, Recording("r", "r", passes=1, parts=1), options(), lr=1e-9)
    trainer.run()
    first, second = (row["grad/norm"] for row in tracker.rows)
    assert second == pytest.approx(first, rel=1e-4)


def test_weights_move_by_the_rate_of_the_step(tmp_path: Path) -> None:
    """AdamW's first step is the rate, whatever the gradient's size."""
    trainer, tracker = loop(tmp_path, Recording("r", "r", passes=1, parts=1), options(warmup_steps=10), steps=1)
    before = [p.detach().clone() for p in trainer.optimizer.parameters]
    trainer.run()
    moved = max((p - q).abs().max().item() for p, q in zip(trainer.optimizer.parameters, before, strict=True))
    assert tracker.rows[0]["lr"] == pytest.approx(0.001)
    assert moved == pytest.approx(0.001, rel=1e-3)


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_stops_before_the_step(tmp_path: Path, factor: float) -> None:
    trainer, _ = loop(tmp_path, Recording("r", "r", passes=1, parts=1, factor=factor), options())
    before = {name: p.clone() for name, p in trainer.policy.state().items()}
    with pytest.raises(NumericsError, match=r"step 1.*not finite"):
        trainer.run()
    assert all(torch.equal(before[name], p) for name, p in trainer.policy.state().items())
    assert not list(tmp_path.glob("step-*"))
