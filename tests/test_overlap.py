"""Sampling ahead: every rollout but the first is one step old, runs repeat and go on bit for bit, no process is left behind."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command import SMALL, call, finish, start
from overlap_work import Failing, Greedy
from toy_policy import CPU, options

from grpo_exp import checkpoint, hardware, overlap
from grpo_exp import config as configuration
from grpo_exp.batch import Completions, Example, Prompts, Rollout
from grpo_exp.command_line import options as named
from grpo_exp.compose import compose
from grpo_exp.errors import ConfigError, RankError, RunError
from grpo_exp.experience import Experience, ExperienceOptions, Online
from grpo_exp.learner import Learner
from grpo_exp.memory import Rows
from grpo_exp.overlap import Ahead
from grpo_exp.policy import Policy
from grpo_exp.prompt_order import PromptOrder
from grpo_exp.replay import ReplayOptions
from grpo_exp.rewards.base import Reward, RewardSum
from grpo_exp.rollout.ahead import Recipe, Sampler, weights_of
from grpo_exp.rollout.base import Engine, Sampling
from grpo_exp.rollout.torch import TorchEngine
from grpo_exp.track.card import card_lines

TORCH = {"kind": "torch", "top_p": 1.0, "top_k": 0, "weight_max": 0.0, "stop": []}
EXAMPLES = [Example(f"i{i}", f"{i}+{i}=?", str(2 * i)) for i in range(7)]
SAMPLING = Sampling(1.0, 6, 4, (3, 0, 0))
Row = dict[str, Any]


def loaded() -> Policy:
    """Random weights that depend on the seed alone, whatever process asks for them."""
    return Policy.load(options(), CPU, torch.float32, seed=5)


def moved(policy: Policy, step: int) -> None:
    """An update that changes nearly every sample."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for x in policy.trainable():
            x.add_(0.1 * torch.randn(x.shape, generator=generator))


# ---- the source, with a sampler in this process


class Here:
    """What the process does, at once and here; counts what it is asked."""

    def __init__(self) -> None:
        self.policy, self.engine, self.count = loaded(), TorchEngine(**TORCH), 0

    def ask(self, weights: dict[str, torch.Tensor], prompts: Prompts, sampling: Sampling, rows: Rows) -> None:
        self.count += 1
        self.policy.load_state(weights)
        self.rollout = self.engine.sample(self.policy, prompts, sampling, rows.size)

    def answer(self, prompts: Prompts, samples: int, pad_id: int, rows: Rows) -> Rollout:
        assert torch.equal(prompts.tokens, self.rollout.prompts.tokens)
        return self.rollout


class Steps(Reward):
    """How many steps of training were over when a sample was made."""

    def score(self, completions: Completions) -> list[float | None]:
        return [float(completions.steps)] * len(completions)


def source(ahead: bool, last: int = 9, groups: int = 0) -> Online:
    replay = ReplayOptions(groups, 8, 2.0)
    made = ExperienceOptions(max_tokens=0, dynamic_sampling=False, max_rounds=1, skip_visits=0, replay=replay)
    rewards, order = RewardSum({"steps": Steps("steps", 1.0, "outcome")}), PromptOrder(EXAMPLES, 0, 2)
    what: Any = (loaded(), TorchEngine(**TORCH), rewards, EXAMPLES, order, SAMPLING, 2, Rows(100), made)
    return Ahead(*what, sampler=Here(), last=last, weight_max=1.5) if ahead else Online(*what)


def drawn(one: Online, steps: range) -> list[Experience]:
    """The batches of some steps, each followed by an update."""
    found = []
    for step in steps:
        found.append(one.draw(step))
        moved(one.policy, step)
    return found


def assert_same(one: Experience, other: Experience) -> None:
    assert one.samples == other.samples
    assert one.batch.behaviour_logp is not None and other.batch.behaviour_logp is not None
    assert torch.equal(one.batch.tokens, other.batch.tokens)
    assert torch.equal(one.batch.behaviour_logp, other.batch.behaviour_logp)


def test_every_rollout_but_the_first_is_one_step_old() -> None:
    """By what a policy samples that makes each update a step later; the prompts are those of a run that does not look ahead."""
    ahead, plain = drawn(source(True), range(1, 6)), source(False)
    for step in range(1, 6):
        if step > 2:
            moved(plain.policy, step - 2)
        expected = plain.draw(step)
        got = ahead[step - 1]
        assert [row["completion"] for row in got.samples] == [row["completion"] for row in expected.samples], step
        assert [row["id"] for row in got.samples] == [row["id"] for row in expected.samples]
        assert got.samples[0]["total"] == max(0, step - 2)
    fresh = drawn(source(False), range(1, 6))
    assert fresh[0].samples == ahead[0].samples
    assert all(one.samples != other.samples for one, other in zip(fresh[1:], ahead[1:], strict=True)), "they differ by age"


def test_importance_weights_are_cut_off_where_the_options_say() -> None:
    assert source(True).draw(1).fresh_max == 1.5
    assert source(False).draw(1).fresh_max == 0


@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_source_goes_on_as_if_it_had_not_been_stopped(stop: int, groups: int) -> None:
    """Stopped after a step, with its weights as they are then."""
    whole = drawn(source(True, groups=groups), range(1, 7))
    one = source(True, groups=groups)
    drawn(one, range(1, stop + 1))
    state, tensors = json.loads(json.dumps(one.state())), {name: x.clone() for name, x in one.tensors().items()}
    other = source(True, groups=groups)
    other.policy.load_state(one.policy.state())
    other.load(state, tensors)
    assert json.loads(json.dumps(other.state())) == state and other.tensors().keys() == tensors.keys()
    for got, expected in zip(drawn(other, range(stop + 1, 7)), whole[stop:], strict=True):
        assert_same(got, expected)


def test_what_was_before_a_step_can_be_put_back() -> None:
    """As where a signal comes in the middle of it."""
    one = source(True)
    drawn(one, range(1, 3))
    place = one.state(), one.tensors()
    before = one.draw(3)
    one.load(*place)
    assert_same(one.draw(3), before)


def test_the_last_step_asks_for_nothing_and_a_longer_run_is_the_same() -> None:
    whole, short = drawn(source(True), range(1, 7)), source(True, last=3)
    drawn(short, range(1, 4))
    assert short.sampler.count == 3  # type: ignore[attr-defined]
    longer = source(True)
    longer.policy.load_state(short.policy.state())
    longer.load(short.state(), short.tensors())
    for got, expected in zip(drawn(longer, range(4, 7)), whole[3:], strict=True):
        assert_same(got, expected)


def test_without_it_the_weights_that_were_kept_are_left_out() -> None:
    """Where a run is forced to go on without sampling ahead."""
    one, other = source(True, groups=1), source(False, groups=1)
    drawn(one, range(1, 3))
    other.load(one.state(), one.tensors())
    assert [row["id"] for row in other.draw(3).samples] == [row["id"] for row in one.draw(3).samples]


# ---- runs, and what they leave

RUN = [*SMALL, "hardware.overlap=1", "steps=4", "lr=1e-2", "eval.every=2", "checkpoint.every=0", "checkpoint.keep_last=9"]
RUN += ["reward=custom", "reward.path=mine.py:score", "preflight.notes=false", "checkpoint.export=false"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def score(completions):\n    return [len(set(text)) / 8 for text in completions]\n")
    yield tmp_path


def rows(folder: str, name: str = "metrics.jsonl") -> list[Row]:
    """Without what takes time or memory."""
    timed = ("time/", "throughput/", "memory/", "seconds")
    lines = map(json.loads, Path(folder, name).read_text().splitlines())
    return [{key: value for key, value in row.items() if not key.startswith(timed)} for row in lines]


def completions(folder: str, step: int) -> list[str]:
    return [row["completion"] for row in rows(folder, "samples.jsonl") if row["step"] == step]


def card(folder: str = "run") -> Row:
    return dict(json.loads(Path(folder, "run.json").read_text()))


def ran(capsys: pytest.CaptureFixture[str], folder: str, *words: str) -> int:
    return call(capsys, *RUN, f"hydra.run.dir={folder}", *words).code


def assert_same_run(one: str, other: str, step: int = 4) -> None:
    for name in ("metrics.jsonl", "samples.jsonl", "eval.jsonl"):
        assert rows(one, name) == rows(other, name), name
    a, b = (checkpoint.load(Path(folder, f"checkpoints/step-{step:06d}")) for folder in (one, other))
    for x, y in ((a.weights, b.weights), (a.source, b.source)):
        assert x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)
    assert a.progress["source"] == b.progress["source"]


# ---- options


def refused(*words: str) -> str:
    with pytest.raises(ConfigError) as error:
        configuration.build(compose(["model=tiny_random", "hardware.overlap=1", *words]))
    return str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        ["experience.dynamic_sampling=true"],
        ["experience.skip_visits=2"],
        ["hardware.processes=2"],
        ["rollout=vllm", "rollout.url=http://localhost:1"],
    ],
    ids=" ".join,
)
def test_what_does_not_go_together_is_refused(words: list[str]) -> None:
    message = refused(*words)
    assert message.startswith("hardware.overlap=1: ") and "Use " in message and "hardware.overlap=0" in message
    assert words[0].partition("=")[2] in message


@pytest.mark.parametrize("name", named("algo"))
def test_an_algorithm_weighs_its_samples_or_is_refused(name: str) -> None:
    """Found by listing: where samples are of an older policy, the loss has their weights, and the formula says so."""
    words = ["model=tiny_random", f"algo={name}", "experience.dynamic_sampling=false"]
    plain = configuration.build(compose(words), judged=False)
    if plain.algo.online and plain.algo.weighs_replay:
        made = configuration.build(compose([*words, "hardware.overlap=1"]))
        assert "min(pi_old / pi_behaviour, 2)" in overlap.formula(made)
        assert overlap.formula(plain) == ""
        assert overlap.weight_max(configuration.build(compose([*words, "hardware.overlap=1", "rollout.weight_max=3"]))) == 3
    else:
        assert f"algo={name}" in refused(f"algo={name}")


def test_under_torchrun_it_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "4", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    answer = call(capsys, *SMALL, "hardware.overlap=1")
    assert answer.code == 2 and "this run has 4 processes" in answer.err


def test_it_is_another_experiment_and_the_card_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of before there was the option went without."""
    plain = ["hardware.overlap=0", "eval.start=false", "steps=1"]
    assert ran(capsys, "run", *plain) == 0
    answer = call(capsys, *RUN, "hydra.run.dir=run", "eval.start=false", "steps=2")
    assert answer.code == 2 and "hardware.overlap: 0 -> 1" in answer.err
    older = Path("run/config.yaml").read_text()
    Path("run/config.yaml").write_text(older.replace("  overlap: 0\n", ""))
    assert older != Path("run/config.yaml").read_text() and ran(capsys, "run", *plain) == 0
    found = card()
    said = dict(card_lines(found | {"hardware": found["hardware"] | {"overlap": 1}}))
    assert "sampling one step ahead in another process" in said["machine"]
    assert "another process" not in dict(card_lines(found))["machine"]


def test_the_cores_are_shared_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(hardware, "cores", lambda: 6)
    monkeypatch.setattr(hardware, "_threads", lambda: 6)
    try:
        for asked, beside, threads in ((0, True, 3), (0, False, 6), (2, True, 2)):
            words = ["model=tiny_random", "hardware=cpu", f"hardware.threads={asked}", "hardware.keep_memory=false"]
            made = hardware.prepare(configuration.build(compose(words)).hardware, "float32", overlap=beside)
            assert made.threads == torch.get_num_threads() == threads
            assert (made.ahead, made.sharing) == ((CPU, 2) if beside else (None, 1))
    finally:
        torch.set_num_threads(before)


# ---- the process


def recipe(engine: Engine | None = None, patience: float = 120.0) -> Recipe:
    return Recipe(options(), engine or TorchEngine(**TORCH), 5, CPU, torch.float32, 1, False, patience)


@pytest.mark.slow
def test_the_process_samples_with_the_weights_that_it_is_given() -> None:
    """To the bit what this process samples; an answer that nobody fetches is dropped."""
    policy, rows = loaded(), Rows(3)
    with Sampler(recipe(), weights_of(policy)) as sampler:
        for step in range(1, 4):
            moved(policy, step)
            prompts, sampling = policy.prompts(EXAMPLES[step : step + 3]), replace(SAMPLING, key=(3, 0, step))
            sampler.ask(weights_of(loaded()), prompts, sampling, rows)
            sampler.ask(weights_of(policy), prompts, sampling, rows)
            got = sampler.answer(prompts, 4, policy.pad_id, rows)
            expected = TorchEngine(**TORCH).sample(policy, prompts, sampling, 3)
            assert got.texts == expected.texts and got.prompts is prompts
            for name in ("tokens", "mask", "behaviour_logp", "finished", "group"):
                assert torch.equal(getattr(got, name), getattr(expected, name)), name
    assert sampler.process.exitcode == -signal.SIGKILL


@pytest.mark.slow
def test_with_top_p_the_support_comes_along() -> None:
    policy, rows, engine = loaded(), Rows(100), TorchEngine(**(TORCH | {"top_p": 0.7}))
    prompts = policy.prompts(EXAMPLES[:2])
    with Sampler(recipe(engine), weights_of(policy)) as sampler:
        sampler.ask(weights_of(policy), prompts, SAMPLING, rows)
        got, expected = sampler.answer(prompts, 4, policy.pad_id, rows), engine.sample(policy, prompts, SAMPLING, 100)
    assert got.support is not None and expected.support is not None and torch.equal(got.support, expected.support)


@pytest.mark.slow
def test_memory_that_runs_out_there_halves_the_rows() -> None:
    policy, rows, told = loaded(), Rows(8, "hardware.rollout_rows"), list[str]()
    rows.tell = told.append
    prompts = policy.prompts(EXAMPLES[:2])
    with Sampler(recipe(Greedy(**TORCH)), weights_of(policy)) as sampler:
        sampler.ask(weights_of(policy), prompts, SAMPLING, rows)
        got = sampler.answer(prompts, 4, policy.pad_id, rows)
    assert got.texts == TorchEngine(**TORCH).sample(policy, prompts, SAMPLING, 2).texts
    assert rows.size == 2 and len(told) == 2 and "out of memory in sampling with 8 rows" in told[0]


@pytest.mark.slow
def test_what_it_fails_with_is_passed_on_and_what_kills_it_is_named() -> None:
    policy, rows = loaded(), Rows(100)
    short, long = policy.prompts([Example("a", "1+1")]), policy.prompts([Example("b", "1+12")])
    with Sampler(recipe(Failing(**TORCH)), weights_of(policy)) as sampler:
        sampler.ask(weights_of(policy), short, SAMPLING, rows)
        with pytest.raises(
            RunError, match=rf"sampler \(process {sampler.process.pid}\) failed: ValueError: of the sampler alone"
        ):
            sampler.answer(short, 4, policy.pad_id, rows)
    with Sampler(recipe(patience=60), weights_of(policy)) as sampler:
        sampler.ask(weights_of(policy), long, SAMPLING, rows)
        sampler.answer(long, 4, policy.pad_id, rows)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(sampler.process.pid or 0, number)  # which are the run's to heed
        sampler.ask(weights_of(policy), long, SAMPLING, rows)
        sampler.answer(long, 4, policy.pad_id, rows)
        sampler._patience = 0.5
        os.kill(sampler.process.pid or 0, signal.SIGSTOP)
        sampler.ask(weights_of(policy), long, SAMPLING, rows)
        with pytest.raises(RankError, match=r"has not answered for 0.5 s \(hardware.rank_timeout\)"):
            sampler.answer(long, 4, policy.pad_id, rows)
        os.kill(sampler.process.pid or 0, signal.SIGKILL)
        with pytest.raises(RankError, match=r"was ended by SIGKILL, so the run has ended; it goes on from its last checkpoint"):
            sampler.answer(long, 4, policy.pad_id, rows)


# ---- whole runs


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what it samples is of the policy as it was: the second step's as of one that does not learn, the third's not."""
    assert ran(capsys, "run") == ran(capsys, "again") == 0
    assert ran(capsys, "still", "hardware.overlap=0", "lr=1e-30") == ran(capsys, "plain", "hardware.overlap=0") == 0
    assert_same_run("run", "again")
    assert completions("run", 1) == completions("still", 1) == completions("plain", 1)
    assert completions("run", 2) == completions("still", 2) != completions("plain", 2)
    assert completions("run", 3) != completions("still", 3)
    trained = [row for row in rows("run") if row["kind"] == "train"]
    assert trained[0]["mismatch/abs_mean"] < 1e-4 < trained[1]["mismatch/abs_mean"]
    assert all(row["ratio/max"] == pytest.approx(1, abs=1e-5) and 0 < row["mismatch/weight_mean"] < 2 for row in trained)
    assert card()["hardware"]["overlap"] == 1 and card("plain")["hardware"]["overlap"] == 0
    assert "sampled by the policy one step before, each token's terms times min(pi_old / pi_behaviour, 2)" in card()["formula"]
    assert "pi_behaviour" not in card("plain")["formula"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "at", "step"),
    [(Learner, "update", 2, 2), (Sampler, "answer", 3, 2), (Sampler, "ask", 3, 1)],
    ids=["update", "waiting for samples", "asking for samples"],
)
def test_stopped_by_a_signal_it_goes_on_as_if_nothing_had_happened(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int, step: int
) -> None:
    assert ran(capsys, "whole") == 0
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, sends(getattr(owner, name), at))
        assert ran(capsys, "run") == 143
    assert card()["status"] == "stopped"
    assert [int(found.name[-6:]) for found in Path("run/checkpoints").iterdir()] == [step]
    assert call(capsys, "resume", "run", "hardware.overlap=0").code == 2, "another experiment"
    assert ran(capsys, "run") == 0 and card()["resumed_from"] == step
    assert_same_run("run", "whole")


def sends(function: Callable[..., Any], at: int) -> Callable[..., Any]:
    """The function, which sends this process SIGTERM at its call number `at`."""
    calls: list[int] = []

    def signalling(*words: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return function(*words, **options)

    return signalling


@pytest.mark.slow
def test_a_run_that_is_made_longer_is_the_long_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(capsys, "whole", "eval.every=0", "eval.start=false") == 0
    assert ran(capsys, "run", "eval.every=0", "eval.start=false", "steps=2") == 0
    assert ran(capsys, "run", "eval.every=0", "eval.start=false") == 0 and card()["resumed_from"] == 2
    assert rows("run", "samples.jsonl") == rows("whole", "samples.jsonl")
    a, b = (checkpoint.load(Path(folder, "checkpoints/step-000004")) for folder in ("run", "whole"))
    assert all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights)


def children(pid: int) -> list[int]:
    """Processes that a command has started by multiprocessing."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if "multiprocessing" in Path(f"/proc/{child}/cmdline").read_text()]


def sampler_of(pid: int) -> int:
    (found,) = [child for child in children(pid) if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    return found


def wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_sampler_ends_the_run_which_goes_on(here: Path) -> None:
    words = [*RUN, "hydra.run.dir=run", "steps=300", "eval.every=0", "checkpoint.every=1", "checkpoint.keep_last=2"]
    running = start(here, *words)
    wait_for(Path("run/checkpoints/step-000002/manifest.json").exists)
    pid = sampler_of(running.pid)
    os.kill(pid, signal.SIGKILL)
    answer = finish(running)
    assert answer.code == 3 and f"grpo_exp: the sampler (process {pid}) was ended by SIGKILL" in answer.err, answer
    assert "it goes on from its last checkpoint" in answer.err
    assert card()["status"] == "failed" and card()["error_type"] == "RankError"
    done = max(int(checkpoint.load(found).progress["step"]) for found in Path("run/checkpoints").iterdir())
    answer = finish(start(here, *[word for word in words if word != "steps=300"], f"steps={done + 2}"))
    assert answer.code == 0 and card()["resumed_from"] == done, answer


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_no_process_is_left_behind(here: Path, number: signal.Signals, code: int) -> None:
    running = start(here, *RUN, "hydra.run.dir=run", "steps=3000", "eval.every=0", "checkpoint.every=2")
    wait_for(Path("run/checkpoints/step-000002/manifest.json").exists)
    there = children(running.pid)
    assert sampler_of(running.pid) in there
    os.kill(running.pid, number)
    assert finish(running).code == code
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in there))


@pytest.mark.slow
def test_in_a_sweep_beside_runs_that_do_not_look_ahead(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has its own samples, whatever ran in this process before."""
    words = [word for word in RUN if not word.startswith("hardware.overlap")]
    assert call(capsys, *words, "-m", "hardware.overlap=1,0", "hydra.sweep.dir=sweep").code == 0
    found = {card(f"sweep/{i}")["hardware"]["overlap"]: f"sweep/{i}" for i in (0, 1)}
    assert ran(capsys, "run") == ran(capsys, "plain", "hardware.overlap=0") == 0
    assert rows(found[1], "samples.jsonl") == rows("run", "samples.jsonl") != rows("plain", "samples.jsonl")
    assert rows(found[0], "samples.jsonl") == rows("plain", "samples.jsonl")
