"""A run that goes on from a checkpoint is, bit for bit, the run that was not interrupted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command import call

from grpo_exp.__main__ import main
from grpo_exp.checkpoint import load
from grpo_exp.command_line import options

Row = dict[str, Any]
BASE = [
    *("model=tiny_random", "track=quiet", "hardware.threads=1", "prompts_per_step=3", "G=4", "max_new_tokens=8"),
    *(
        "data.train=12",
        "data.heldout=6",
        "eval.samples=2",
        "eval.every=2",
        "lr=1e-3",
        "checkpoint.every=1",
        "checkpoint.keep_last=9",
    ),
    *("checkpoint.export=false", "reward=custom", "reward.path=mine.py:score"),
]
PAIRS = ["data=preferences", "data.path=pairs.jsonl", "data.split=4", "data.answer=null", "objective.metric=eval/pair_accuracy"]
NEEDS = {
    "sft": ["data=arithmetic_worked"],
    "dpo_offline": PAIRS,
    "reward_model": PAIRS,
}
"""What an algorithm cannot be without."""
REWARD = """
def score(completions):
    return [sum(c.isdigit() for c in text) / 8 + len(set(text)) / 80 for text in completions]
"""
REMEMBERS = """
class Rising:
    'More than the mean of all that were scored before, evaluations not counted.'

    def __init__(self):
        self.seen, self.total = 0, 0.0

    def __call__(self, completions):
        values = [len(set(text)) + text.count("1") for text in completions]
        before = self.total / self.seen if self.seen else 0.0
        self.seen, self.total = self.seen + len(values), self.total + sum(values)
        return [value - before for value in values]

    def state_dict(self):
        return {"seen": self.seen, "total": self.total}

    def load_state_dict(self, state):
        self.seen, self.total = state["seen"], state["total"]
"""
MORE = {
    "several updates": ["algo.updates_per_rollout=2", "algo.minibatch_count=2"],
    "replay and dynamic sampling": ["experience.replay.groups=2", "experience.dynamic_sampling=true"],
    "curriculum": ["experience.skip_visits=1", "reward.path=mine.py:coarse", "prompts_per_step=2"],
    "a moving reference": ["algo.reference.update=ema", "algo.reference.every=1", "algo.reference.alpha=0.3"],
    "an adaptive beta": ["algo.kl.target=0.001", "algo.kl.horizon=2"],
    "an adapter with dropout": ["model.adapter=lora", "model.lora_dropout=0.2"],
    "a reward that remembers": ["reward.path=mine.py:Rising", "experience.dynamic_sampling=true"],
    "a schedule": ["optim.schedule=cosine", "optim.warmup_steps=2"],
}


WHOLE = Path("whole")
"""Where the run of BASE over four steps is, that was not interrupted; the other folders are those of one test."""


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    coarse = "\ndef coarse(completions):\n    return [float(len(set(text)) > 6) for text in completions]\n"
    (folder / "mine.py").write_text(REWARD + coarse + REMEMBERS)
    pairs = [{"prompt": f"{i}+{i}=?", "chosen": str(2 * i), "rejected": str(2 * i + 1)} for i in range(14)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return folder


@pytest.fixture(autouse=True)
def here(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(shared_folder)
    yield
    for folder in {path for path in shared_folder.iterdir() if path.is_dir()} - {shared_folder / WHOLE}:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def whole(shared_folder: Path) -> None:
    before = Path.cwd()
    os.chdir(shared_folder)
    with pytest.raises(SystemExit) as end:
        main([*BASE, "steps=4", f"hydra.run.dir={WHOLE}"])
    os.chdir(before)
    assert not end.value.code


def rows(folder: Path, name: str = "metrics.jsonl") -> list[Row]:
    """The rows of a file, without what takes time."""
    timed = ("time/", "throughput/", "memory/")
    found = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds" and not k.startswith(timed)} for row in found]


def card(folder: Path) -> Row:
    return json.loads((folder / "run.json").read_text())  # type: ignore[no-any-return]


def cut(folder: Path, step: int) -> None:
    """Make a finished run, or a copy of WHOLE, look as a kill -9 left it a little after the checkpoint of `step`: the rows are
    ahead of it."""
    if not folder.exists():
        shutil.copytree(WHOLE, folder)
    for later in sorted((folder / "checkpoints").glob("step-*")):
        if int(later.name.removeprefix("step-")) > step:
            shutil.rmtree(later)
    (folder / "run.json").write_text(json.dumps(card(folder) | {"status": "running"}))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "kind": "tra')


def the_same_after(capsys: pytest.CaptureFixture[str], words: list[str], steps: int, at: int, whole: Path = WHOLE) -> None:
    """Takes a copy of a run that is `whole`, or runs, cuts it at a step, runs again, and compares everything."""
    if whole != WHOLE:
        answer = call(capsys, *words, f"steps={steps}", f"hydra.run.dir={whole}")
        assert answer.code == 0, answer.err
    shutil.copytree(whole, "cut")
    cut(Path("cut"), at)
    answer = call(capsys, *words, f"steps={steps}", "hydra.run.dir=cut")
    assert (answer.code, answer.err) == (0, ""), answer
    assert card(Path("cut"))["resumed_from"] == at and card(Path("cut"))["status"] == "finished"
    for name in ("metrics.jsonl", "samples.jsonl", "eval.jsonl"):
        assert rows(Path("cut"), name) == rows(whole, name), name
    one, other = (load(folder / "checkpoints" / f"step-{steps:06d}") for folder in (whole, Path("cut")))
    assert one.weights.keys() == other.weights.keys()
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    assert {k: v for k, v in one.progress.items() if k != "seconds"} == {
        k: v for k, v in other.progress.items() if k != "seconds"
    }
    for name in ("objective", "tokens", "before", "after", "difference"):
        assert card(Path("cut")).get(name) == card(whole).get(name), name


QUICK = ("grpo", "ppo", "dpo_offline")
"""One of each kind of data and with a critic; all others are among the slow tests."""
ALGORITHMS = [algo if algo in QUICK else pytest.param(algo, marks=pytest.mark.slow) for algo in options("algo")]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_goes_on(algo: str, capsys: pytest.CaptureFixture[str], whole: None) -> None:
    words = [*BASE, f"algo={algo}", *NEEDS.get(algo, [])]
    if algo in NEEDS:
        words = [w for w in words if not w.startswith(("data.train", "data.heldout"))] if "data=preferences" in words else words
    the_same_after(capsys, words, steps=4, at=2, whole=WHOLE if algo == "grpo" else Path("first"))


ALWAYS = ("replay and dynamic sampling", "a moving reference")
MOVING = [what if what in ALWAYS else pytest.param(what, marks=pytest.mark.slow) for what in MORE]


@pytest.mark.parametrize("what", MOVING)
def test_everything_that_moves_goes_on(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    the_same_after(capsys, [*BASE, *MORE[what]], steps=5, at=3, whole=Path("first"))


def test_a_reward_remembers_what_it_was_trained_on_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the try before the run nor an evaluation: three steps of 3 prompts with 4 samples."""
    words = [*BASE, "reward.path=mine.py:Rising", "steps=3", "eval.every=1", "hydra.run.dir=run"]
    assert call(capsys, *words).code == 0
    assert load(Path("run/checkpoints/step-000003")).progress["source"]["rewards"]["custom"]["seen"] == 3 * 3 * 4


@pytest.mark.parametrize("at", [1, *(pytest.param(at, marks=pytest.mark.slow) for at in (3, 4))])
def test_from_any_step(at: int, capsys: pytest.CaptureFixture[str], whole: None) -> None:
    """Of the second, in the middle, every algorithm goes on."""
    the_same_after(capsys, BASE, steps=4, at=at)


def test_more_steps_are_no_difference(capsys: pytest.CaptureFixture[str], whole: None) -> None:
    assert call(capsys, *BASE, "steps=2", "hydra.run.dir=short").code == 0
    answer = call(capsys, *BASE, "steps=4", "hydra.run.dir=short")
    assert (answer.code, answer.err) == (0, "")
    train = [[row for row in rows(Path(name)) if row["kind"] == "train"] for name in ("short", WHOLE)]
    assert train[0] == train[1] and card(Path("short"))["steps"] == 4


@pytest.mark.slow
def test_the_verb_takes_a_run_by_its_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, whole: None
) -> None:
    """From another folder, with no word of what it was: `resume RUN`, or `resume=RUN`."""
    for name in ("cut", "again"):
        cut(Path(name), 2)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    for name, words in (("cut", ["resume", "../cut"]), ("again", ["resume=../again", "track.console=plain"])):
        answer = call(capsys, *words)
        assert (answer.code, answer.err) == (0, "")
        assert rows(Path("..", name)) == rows(Path("..", WHOLE))
    assert not list(Path().iterdir())
    assert "nothing to do" in call(capsys, "resume", "../cut").out
    assert call(capsys, "resume", "../cut", "steps=5").code == 0
    assert rows(Path("../cut"))[-1]["step"] == 5


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_loudly(capsys: pytest.CaptureFixture[str], whole: None) -> None:
    cut(Path("cut"), 3)
    weights = Path("cut/checkpoints/step-000003/weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:-8])
    answer = call(capsys, *BASE, "steps=4", "hydra.run.dir=cut")
    assert answer.code == 0 and "step-000003" in answer.out and "damaged" in answer.out and "the one before" in answer.out
    assert card(Path("cut"))["resumed_from"] == 2
    assert rows(Path("cut")) == rows(WHOLE)


def test_without_a_checkpoint_it_begins_anew(capsys: pytest.CaptureFixture[str], whole: None) -> None:
    cut(Path("run"), 0)
    answer = call(capsys, *BASE, "steps=4", "hydra.run.dir=run")
    assert (answer.code, answer.err) == (0, "") and "resumed_from" not in card(Path("run"))
    assert rows(Path("run")) == rows(WHOLE)


def test_another_configuration_is_refused(capsys: pytest.CaptureFixture[str], whole: None) -> None:
    cut(Path("run"), 1)
    answer = call(capsys, *BASE, "steps=4", "hydra.run.dir=run", "beta=0.5", "seed=3")
    assert answer.code == 2 and "beta" in answer.err and "seed" in answer.err


def test_another_machine_is_said(capsys: pytest.CaptureFixture[str], whole: None) -> None:
    cut(Path("run"), 3)
    changed = card(Path("run"))
    changed["hardware"]["threads"] = 7
    Path("run/run.json").write_text(json.dumps(changed))
    answer = call(capsys, *BASE, "steps=4", "hydra.run.dir=run")
    assert answer.code == 0 and "not bit for bit" in answer.out and "threads was 7 and is 1" in answer.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resume"], "usage:"),
        (["resume", "nowhere"], "nowhere"),
        (["resume=nowhere"], "nowhere"),
        (["resume", "run", "beta=1"], "beta=1: resume takes"),
        (["resume", "run", "stps=9"], "stps"),
    ],
)
def test_errors(words: list[str], said: str, capsys: pytest.CaptureFixture[str], whole: None) -> None:
    if "run" in words:
        shutil.copytree(WHOLE, "run")
    answer = call(capsys, *words)
    assert (answer.code, answer.out) == (2, "") and said in answer.err and answer.err.count("\n") == 1
