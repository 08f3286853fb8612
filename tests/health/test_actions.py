"""What is done about a finding: told, the run stopped, the run sent back; and that none of it is lost by a kill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command import SMALL, call

from grpo_exp import run as runs
from grpo_exp.__main__ import main
from grpo_exp.checkpoint import load
from grpo_exp.errors import RolledBack

Row = dict[str, Any]
RUN = Path("run")
FILES = ("metrics.jsonl", "samples.jsonl", "eval.jsonl", "health.jsonl")
WORDS = [*SMALL, "steps=4", "lr=1e-3", "G=4", "eval.every=2", "checkpoint.every=2", f"hydra.run.dir={RUN}"]
WORDS += ["reward=custom", "reward.path=mine.py:Falling"]
KL = "health.detectors.kl_explosion"
WORDS += [f"{KL}.window=2", f"{KL}.median=1e-12"]  # so any update at all is an explosion
REWARD = """
class Falling:  # what it pays falls from step to step, so that no drift is one that pays
    calls = 0
    def __call__(self, completions, **about):
        self.calls += 1
        return [sum(map(ord, text)) % 7 / 7 - 5 * self.calls for text in completions]
    def state_dict(self): return {"calls": self.calls}
    def load_state_dict(self, state): self.calls = state["calls"]
"""


LATER = ["health.detectors.reward_zero.window=4", "health.detectors.reward_zero.samples=1"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is told of a finding in step 2, and of another one in step 4."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "mine.py").write_text(REWARD)
    words = [word for word in WORDS if not word.startswith(("hydra.run.dir", "reward.path"))]
    with pytest.raises(SystemExit) as end:
        main([*words, *LATER, f"hydra.run.dir={folder / 'run'}", f"reward.path={folder / 'mine.py'}:Falling"])
    assert not end.value.code
    return folder / "run"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARD)
    yield
    torch.set_num_threads(1)


def rows(folder: Path, name: str) -> list[Row]:
    """The rows of a file, without what takes time."""
    timed = ("seconds", "time/", "throughput/", "memory/")
    found = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(timed)} for row in found]


def findings(folder: Path, detector: str = "kl_explosion") -> list[Row]:
    return [row for row in rows(folder, "health.jsonl") if row["detector"] == detector]


def card(folder: Path) -> Row:
    return dict(json.loads((folder / "run.json").read_text()))


def same(one: Path, other: Path) -> None:
    for name in FILES:
        assert rows(one, name) == rows(other, name), name


def test_a_finding_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *WORDS, f"{KL}.action=warn", "track.console=plain", "track.picture=true")
    assert answer.code == 0, answer
    (found,) = findings(RUN)
    assert found["since"] == 2 and found["step"] == 2 and found["action"] == "warn" and found["metric"] == "kl/mean"
    assert found["values"]["kl/mean"] > 0 and found["tries"] == ["lr=0.000333", "beta=0.12"]
    assert answer.out.count("health: the KL explodes since step 2") == 1 and "try: lr=0.000333 or beta=0.12" in answer.out
    about = card(RUN)
    assert about["status"] == "finished"
    brief = {"since": 2, "step": 2, "action": "warn", "title": "the KL explodes"}
    assert about["health"]["kl_explosion"] == brief and (RUN / "curves.png").exists()
    report = call(capsys, "report", str(RUN), "--no-html")
    assert report.code == 0 and "the KL explodes  run from step 2" in report.out


@pytest.mark.slow
def test_quiet_says_warnings_and_no_notes(capsys: pytest.CaptureFixture[str]) -> None:
    for action, told in (("warn", True), ("note", False), ("off", False)):
        answer = call(capsys, *WORDS, "steps=2", f"{KL}.action={action}")
        assert answer.code == 0 and ("the KL explodes" in answer.out) == told, (action, answer)
        assert len(findings(RUN)) == (action != "off")
        shutil.rmtree(RUN)


@pytest.mark.slow
def test_off_looks_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *WORDS, "steps=2", "health=off")
    assert answer.code == 0 and (RUN / "health.jsonl").read_text() == "" and card(RUN)["health"] == {}


def test_stop_saves_and_the_same_command_goes_on(capsys: pytest.CaptureFixture[str], undisturbed: Path) -> None:
    answer = call(capsys, *WORDS, f"{KL}.action=stop")
    assert answer.code == 3 and "step 2: the KL explodes, since step 2" in answer.err and "Traceback" not in answer.err
    assert card(RUN)["status"] == "stopped" and not (RUN / "error.txt").exists()
    assert load(RUN / "checkpoints/step-000002").progress["step"] == 2 and not (RUN / "export").exists()
    again = call(capsys, *WORDS, f"{KL}.action=stop")
    assert again.code == 0 and "the KL explodes" not in again.out, "it was told before"
    assert card(RUN)["status"] == "finished" and card(RUN)["health"]["kl_explosion"]["step"] == 2
    for name in FILES[:3]:
        assert rows(RUN, name) == rows(undisturbed, name), name


def test_a_run_that_goes_on_finds_what_it_would_have_found(capsys: pytest.CaptureFixture[str], undisturbed: Path) -> None:
    """The course up to the checkpoint is read from the files: windows reach over it."""
    assert [(row["step"], row["since"]) for row in findings(undisturbed, "reward_zero")] == [(4, 1)]
    assert [(row["step"], row["action"]) for row in findings(undisturbed)] == [(2, "warn")]
    assert call(capsys, *WORDS, *LATER, "steps=2").code == 0 and not findings(RUN, "reward_zero")
    assert call(capsys, *WORDS, *LATER).code == 0
    same(RUN, undisturbed)


def test_rollback_changes_lr_and_goes_back(capsys: pytest.CaptureFixture[str]) -> None:
    back = [f"{KL}.action=rollback", "health.rollback.lr_factor=0.1", "health.rollback.times=1"]
    answer = call(capsys, *WORDS, *back)
    assert answer.code == 3, "the second finding stops it"
    assert "sent back by a health check (the KL explodes since step 2); it goes on from step 0" in answer.out
    about, old = card(RUN), card(RUN / "earlier-1")
    (sent,) = about["rollbacks"]
    assert sent == {
        "detector": "kl_explosion", "title": "the KL explodes", "since": 2, "step": 2, "to": 0,
        "changes": {"lr": [0.001, 0.0001]}, "done": True,
    }  # fmt: skip
    assert about["branch"]["before"] == "earlier-1" and about["lr"] == 0.0001 and about["status"] == "stopped"
    assert old["status"] == "stopped" and old["lr"] == 0.001 and len(findings(RUN / "earlier-1")) == 1
    (first, *_), (before, *_) = rows(RUN, "samples.jsonl"), rows(RUN / "earlier-1", "samples.jsonl")
    assert first == before, "the first step is the same"
    drift, was = (next(r["kl/mean"] for r in rows(f, "metrics.jsonl") if r["step"] == 2 and r["kind"] == "train")
                  for f in (RUN, RUN / "earlier-1"))  # fmt: skip
    assert 0 < drift < was / 2, "a smaller step went less far"
    again = call(capsys, *WORDS, *back)
    assert again.code == 0 and card(RUN)["lr"] == 0.0001 and card(RUN)["rollbacks"] == about["rollbacks"], again
    done = call(capsys, *WORDS, *back)
    assert done.code == 0 and "finished before" in done.out


@pytest.mark.slow
def test_rollback_goes_to_the_checkpoint_before_the_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    back = [f"{KL}.action=rollback", f"{KL}.median=9", f"{KL}.floor=1e-12", f"{KL}.growth=1.0001", "eval.start=false"]
    answer = call(capsys, *WORDS, *back, "health.rollback.beta_factor=10", "health.rollback.times=1", "checkpoint.every=1")
    assert answer.code in (0, 3), answer
    (sent,) = card(RUN)["rollbacks"]
    assert sent["since"] == 2 and sent["to"] == 1 and sent["changes"] == {"lr": [0.001, 0.0005], "beta": [0.04, 0.4]}
    assert card(RUN)["beta"] == 0.4 and "+ 0.4 k3" in card(RUN)["formula"], "the loss has it too"
    steps = [row["step"] for row in rows(RUN, "metrics.jsonl") if row["kind"] == "train"]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.slow
def test_a_kill_before_it_went_back_loses_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    back = [f"{KL}.action=rollback", "health.rollback.times=1"]
    call(capsys, *WORDS, *back, "hydra.run.dir=whole")
    real = runs.train

    def dies(*given: Any) -> float | None:
        try:
            return real(*given)
        except RolledBack as error:
            raise KeyboardInterrupt from error

    monkeypatch.setattr(runs, "train", dies)
    assert call(capsys, *WORDS, *back).code == 130
    assert not card(RUN)["rollbacks"][-1]["done"] and not (RUN / "earlier-1").exists()
    monkeypatch.setattr(runs, "train", real)
    call(capsys, *WORDS, *back)
    assert (RUN / "earlier-1").is_dir()
    same(RUN, Path("whole"))
    same(RUN / "earlier-1", Path("whole/earlier-1"))


def test_in_a_sweep_it_counts_as_pruned(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*(word for word in WORDS if not word.startswith("hydra.run.dir")), "steps=2"]
    answer = call(capsys, "-m", *words, "hydra.sweep.dir=swept", f"{KL}.action=stop", "lr=1e-3,1e-12", f"{KL}.median=1e-9")
    assert answer.code == 0 and "trial 0 pruned by a health check: step 2: the KL explodes" in answer.out, answer
    states = [json.loads(Path(f"swept/{i}/trial.json").read_text())["state"] for i in range(2)]
    assert states == ["pruned", "complete"] and card(Path("swept/0"))["status"] == "pruned"
    again = call(capsys, "-m", *words, "hydra.sweep.dir=swept", f"{KL}.action=stop", "lr=1e-3,1e-12", f"{KL}.median=1e-9")
    assert again.code == 0 and "trial 0 (" not in again.out, "what was pruned is not run again"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["+health.detectors.kl_explosio.action=warn"], "Did you mean 'kl_explosion'?"),
        ([f"{KL}.action=stopp"], "expected off, note, warn, stop, rollback"),
        ([f"{KL}.median=-1"], "health.detectors.kl_explosion.median=-1"),
        ([f"{KL}.action=rollback", "health.rollback.lr_factor=1"], "change nothing"),
        ([f"{KL}.action=rollback", "health.rollback.lr_factor=1", "health.rollback.beta_factor=2", "beta=0"], "change nothing"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *WORDS, *words)
    assert answer.code == 2 and told in answer.err and not RUN.exists(), answer
