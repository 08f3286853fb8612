"""Back to an earlier checkpoint, or on with other options: a new branch takes the folder, and nothing of the old is lost."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command import SMALL, call

from grpo_exp import branch, subject
from grpo_exp.__main__ import main
from grpo_exp.checkpoint import load
from grpo_exp.report import runs

Row = dict[str, Any]
RUN, OLD = Path("run"), Path("run/earlier-1")
WORDS = [*SMALL, "steps=4", "lr=1e-3", "eval.every=2", "checkpoint.every=1", "checkpoint.keep_last=9"]
WORDS += ["reward.parts.format.weight=1", "experience.skip_visits=1", "prompts_per_step=3", "data.train=12"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, evaluated at 0, 2 and 4, with a checkpoint of each."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.raises(SystemExit) as end:
        main([*WORDS, f"hydra.run.dir={folder}"])
    assert not end.value.code
    return folder


@pytest.fixture(autouse=True)
def a_copy(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, RUN)
    yield
    torch.set_num_threads(1)


def rows(folder: Path, name: str = "metrics.jsonl") -> list[Row]:
    """The rows of a file, without what takes time."""
    timed = ("seconds", "time/", "throughput/", "memory/")
    found = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(timed)} for row in found]


def card(folder: Path) -> Row:
    return dict(json.loads((folder / "run.json").read_text()))


def kept(folder: Path) -> list[int]:
    """The steps of the checkpoints, each of them read and checked."""
    return [load(path).progress["step"] for path in sorted((folder / "checkpoints").iterdir())]


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_back_to_a_step_is_a_new_branch_and_the_old_one_stays(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(RUN)
    answer = call(capsys, "resume", "run@2")
    assert (answer.code, answer.err) == (0, "")
    about = card(RUN)
    assert about["branch"] == {"number": 2, "from_step": 2, "before": "earlier-1", "changed": []}
    assert (about["status"], about["resumed_from"]) == ("finished", 2) and "branch" not in card(OLD)
    for name in ("metrics.jsonl", "samples.jsonl", "eval.jsonl"):
        assert rows(RUN, name) == rows(finished, name), "the same options give the same numbers, each step once"
    assert kept(RUN) == kept(OLD) == [1, 2, 3, 4]
    after = files(OLD)
    assert after.keys() == before.keys()
    assert {name for name in before if before[name] != after[name]} == {"run.json"}, "the old branch is whole"
    assert card(OLD) == json.loads(before["run.json"]) | {"folder": str(OLD.absolute())}
    assert load(subject.find("run/earlier-1@3").checkpoint or RUN).progress["step"] == 3
    assert [run.label for run in runs.find([Path()])] == ["run"] and [run.label for run in runs.find([OLD])] == ["earlier-1"]
    assert "nothing to do" in call(capsys, "resume=run@2").out and "nothing to do" in call(capsys, "resume", "run").out
    assert not (RUN / "earlier-2").exists(), "a branch from the same step with the same options would be the same"


def test_a_branch_has_no_checkpoints_of_the_one_before(capsys: pytest.CaptureFixture[str]) -> None:
    """Or a kill before its first one would lead back to those."""
    answer = call(capsys, "resume", "run@1", "steps=2", "track.console=plain")
    assert answer.code == 0 and "going on from step 1, branch 2" in answer.out
    assert kept(RUN) == [1, 2] and kept(OLD) == [1, 2, 3, 4]
    assert [row["step"] for row in rows(RUN)] == [0, 1, 2, 2]


def test_a_branch_that_was_killed_goes_on(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the same words, by `resume RUN`; it is not begun once more."""
    assert call(capsys, "resume", "run@1").code == 0
    for words in (["resume", "run@1"], ["resume", "run"]):
        shutil.rmtree(RUN / "checkpoints/step-000004")
        (RUN / "run.json").write_text(json.dumps(card(RUN) | {"status": "running"}))
        assert call(capsys, *words).code == 0
        assert card(RUN)["resumed_from"] == 3 and card(RUN)["branch"]["from_step"] == 1
        assert rows(RUN) == rows(finished) and not (RUN / "earlier-2").exists()


@pytest.mark.slow
def test_a_kill_while_it_begins_loses_nothing(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed before a thing is moved, copied or removed, then the same command again."""
    total = 1000 - _changes_left(1000)
    assert total > 30
    for done in (0, 12, *range(total - 4, total)):
        shutil.rmtree(RUN)
        shutil.copytree(finished, RUN)
        assert _changes_left(done) == 0
        assert call(capsys, "resume", "run@2").code == 0
        assert rows(RUN) == rows(finished) and card(RUN)["branch"]["from_step"] == 2
        olds = [old for old in RUN.glob("earlier-*") if rows(old) == rows(finished) and kept(old) == [1, 2, 3, 4]]
        assert olds, f"the old branch is lost, killed before change {done} of {total}"


def _changes_left(changes: int) -> int:
    """Begin a branch and kill it after so many changes to the disk; how many were left to it at its end."""
    left = iter(range(changes))

    def counted(function: Any) -> Any:
        def call_or_die(*words: Any, **options: Any) -> Any:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return function(*words, **options)

        return call_or_die

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        for module, name in ((os, "replace"), (os, "link"), (shutil, "rmtree"), (shutil, "copy2"), (Path, "unlink")):
            patch.setattr(module, name, counted(getattr(module, name)))
        branch.begin(RUN.absolute(), card(RUN), 2)
    return len(list(left))


def test_no_room_for_the_copy_changes_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(RUN)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", full)
    answer = call(capsys, "resume", "run@2")
    assert answer.code == 3 and "No space left" in answer.err and "nothing was changed" in answer.err
    after = files(RUN)
    assert {name for name in after.keys() | before.keys() if after.get(name) != before.get(name)} == {"run.json", "error.txt"}
    assert card(RUN)["status"] == "failed" and card(RUN)["before"] == json.loads(before["run.json"])["before"]


def test_other_options_need_force_and_are_told(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(RUN)
    answer = call(capsys, *WORDS, "steps=6", "lr=0.01", "beta=0.5", "hydra.run.dir=run")
    assert answer.code == 2 and answer.err.count("\n") == 1
    for part in ("beta: 0.04 -> 0.5", "lr: 0.001 -> 0.01", "resume", "force=true"):
        assert part in answer.err
    answer = call(capsys, "resume", "run@2", "lr=0.01")
    assert answer.code == 2 and "lr=0.01: resume takes" in answer.err and "force=true" in answer.err
    answer = call(capsys, "resume", "run", "lr=0.01", "force=true")
    assert answer.code == 2 and "all of its 4 steps are done" in answer.err
    assert files(RUN) == before

    answer = call(capsys, "resume", "run@2", "lr=0.01", "optim.beta2=0.9", "force=true")
    assert (answer.code, answer.err) == (0, "") and "forced to go on from step 2 with other options" in answer.out
    changed = ["lr: 0.001 -> 0.01", "optim.beta2: 0.99 -> 0.9"]
    assert card(RUN)["branch"] == {"number": 2, "from_step": 2, "before": "earlier-1", "changed": changed}
    assert [row for row in rows(RUN) if row["step"] <= 2] == [row for row in rows(finished) if row["step"] <= 2]
    later = [row for row in rows(RUN) if row["step"] > 2 and row["kind"] == "train"]
    assert [(row["step"], row["lr"]) for row in later] == [(s, pytest.approx(0.01 * s / 5)) for s in (3, 4)]
    (group,) = load(RUN / "checkpoints/step-000004").optimizer["param_groups"]
    assert group["betas"] == (0.9, 0.9)
    assert yaml.safe_load((RUN / "config.yaml").read_text())["lr"] == 0.01
    assert rows(OLD) == rows(finished) and yaml.safe_load((OLD / "config.yaml").read_text())["lr"] == 0.001

    answer = call(capsys, "resume", "run", "steps=5")
    assert answer.code == 0 and [row["step"] for row in rows(RUN)][-1] == 5, "its options are its own now"
    assert card(RUN)["branch"]["changed"] == changed and not (RUN / "earlier-2").exists()


def test_other_data_begins_its_order_and_its_measurements_anew(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "resume", "run", "force=true", "steps=6", "data.train=11", "data.heldout=7", "eval.max_items=0")
    assert (answer.code, answer.err) == (0, ""), answer
    assert "data.train: 12 -> 11" in answer.out and "begin anew" in answer.out
    evaluated = [row["step"] for row in rows(RUN) if row["kind"] == "eval"]
    assert evaluated == [0, 2, 4, 6], "that of step 4 is of the new items"
    assert len({row["id"] for row in rows(RUN, "eval.jsonl") if row["step"] == 4}) == 7
    first = next(row for row in rows(RUN) if (row["kind"], row["step"]) == ("eval", 4))
    assert card(RUN)["before"]["eval/length"][0] == first["eval/length"]


def test_weights_that_do_not_fit_are_refused_and_nothing_is_changed(capsys: pytest.CaptureFixture[str]) -> None:
    before = files(RUN)
    for words in (["algo=ppo"], ["model.adapter=lora"]):
        answer = call(capsys, "resume", "run@2", "force=true", *words)
        assert answer.code == 2 and "does not fit" in answer.err and answer.err.count("\n") == 1, answer
        assert files(RUN) == before


ALL = ["run.json", "config.yaml", "metrics.jsonl", "samples.jsonl", "eval.jsonl"]


@pytest.mark.parametrize("gone", [["run.json"], pytest.param(ALL, marks=pytest.mark.slow)])
def test_checkpoints_of_a_run_that_is_gone_are_no_other_runs(gone: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in gone:
        (RUN / name).unlink()
    words = [*WORDS, "seed=1", "hydra.run.dir=run"]
    assert call(capsys, *words, "steps=2").code == 0
    assert kept(RUN) == [1, 2] and kept(OLD) == [1, 2, 3, 4] and "resumed_from" not in card(RUN)
    assert call(capsys, *words, "steps=3").code == 0 and card(RUN)["resumed_from"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run@9"], "no checkpoint of that step; there are those of 1, 2, 3, 4"),
        (["run@two"], "no checkpoint of that step"),
        (["run@"], "a step is missing"),
        (["nowhere@2"], "no run there"),
        (["run@2", "force=yes"], "force=yes"),
        (["run@2", "force=true", "betta=1"], "Did you mean 'beta'"),
    ],
)
def test_errors(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(RUN)
    answer = call(capsys, "resume", *words)
    assert (answer.code, answer.out) == (2, "") and said in answer.err and answer.err.count("\n") == 1
    assert files(RUN) == before


def test_a_damaged_checkpoint_that_is_asked_for_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    (RUN / "checkpoints/step-000002/optimizer.pt").write_bytes(b"x")
    before = files(RUN)
    answer = call(capsys, "resume", "run@2")
    assert answer.code == 3 and "step-000002" in answer.err and "earlier checkpoint" in answer.err
    assert files(RUN) == before


def test_hardware_may_be_another_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "resume", "run", "steps=6", "hardware.threads=2", "hardware.update_rows=3")
    assert answer.code == 0 and not (RUN / "earlier-1").exists()
    assert "not bit for bit the run that it was: threads was 1 and is 2; update_rows was 6 and is 3" in answer.out
    assert card(RUN)["hardware"]["threads"] == 2 and rows(RUN)[-1]["step"] == 6
    answer = call(capsys, *WORDS, "steps=7", "hardware.rollout_rows=2", "hydra.run.dir=run")
    assert answer.code == 0 and "rollout_rows was 6 and is 2" in answer.out and rows(RUN)[-1]["step"] == 7


@pytest.mark.slow
def test_a_branch_is_a_wandb_run_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "resume", "run", "steps=5", "track.wandb=offline").code == 0
    assert call(capsys, "resume", "run@2", "track.wandb=offline").code == 0
    assert call(capsys, "resume", "run", "steps=6", "track.wandb=offline").code == 0
    old, new = card(OLD)["wandb"], card(RUN)["wandb"]
    assert old["id"] != new["id"]
    assert Path(old["folder"]).is_dir() and Path(old["folder"]).is_relative_to(OLD.absolute())
    assert "run/earlier-1/wandb" in old["sync"]
    # offline-run-TIME-ID, and -1 after it where a second one began within the same second
    ids = {path.name.split("-")[3] for path in (RUN / "wandb").glob("offline-run-*")}
    assert ids == {new["id"]}, "a branch that is resumed keeps its own"
