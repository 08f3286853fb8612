"""`python -m grpo_exp doctor`, from the command line to exit code and screen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import SMALL, call

from grpo_exp import config as configuration
from grpo_exp.compose import compose
from grpo_exp.explained import explainer

TITLE = "the KL explodes"
WATCHED = ["health.detectors.kl_explosion.median=1e-6", "health.detectors.kl_explosion.window=2"]
"""Thresholds under which any run that moves at all is found."""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of our own: one moves, one does not; the first finds that its KL explodes."""
    from grpo_exp.__main__ import main

    folder = tmp_path_factory.mktemp("sweeps") / "two"
    rewards = folder.parent / "rewards.py"
    rewards.write_text("def score(completions):\n    return [float(sum(map(ord, text)) % 2) for text in completions]\n")
    fixed = [word for word in SMALL if not word.startswith(("steps=", "G="))]
    words = ["-m", *fixed, *WATCHED, "steps=5", "G=4", "eval.every=2", "lr=0.02,1e-12", "reward=custom"]
    words.append(f"reward.path={rewards}:score")
    with pytest.raises(SystemExit) as end:
        main([*words, f"hydra.sweep.dir={folder}"])
    assert not end.value.code
    return folder


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    """What `--json -` says of the runs."""
    answer = call(capsys, "doctor", *words, "--json", "-")
    assert answer.code == 0, answer.err
    runs = json.loads(answer.out, parse_constant=lambda name: pytest.fail(name))["runs"]
    assert isinstance(runs, list)
    return runs


def kl_findings(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in run["findings"] if row["detector"] == "kl_explosion"]


def test_a_run_is_seen_as_it_was_while_it_went(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, moves in enumerate((True, False)):
        (run,) = doctor(capsys, str(sweep / str(number)))
        assert (run["kind"], run["state"], run["step"], run["steps"]) == ("grpo_exp", "grpo, finished", 5, 5)
        assert bool(kl_findings(run)) == moves
        if (told := sweep / str(number) / "health.jsonl").exists():
            assert [json.loads(line) for line in told.read_text().splitlines()] == run["findings"]
    (found,) = kl_findings(doctor(capsys, str(sweep / "0"))[0])
    assert found["step"] == 2 and found["tries"][0] == "lr=0.00667"  # by its own thresholds, and its own lr


def test_the_screen(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "doctor", str(sweep / "0"))
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0] == f"{sweep}/0: grpo_exp, grpo, finished, 5 steps"
    assert (
        f"  warn  {TITLE}, since step 2" in answer.out and "        why: " in answer.out and "        try lr=0.00667" in lines
    )
    assert "kl_explosion" in next(line for line in lines if line.startswith("looked "))
    assert max(map(len, lines[1:])) <= 120 and "\x1b" not in answer.out


def test_a_sweep_has_a_line_for_a_run_in_which_nothing_is_found(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = [f"health.detectors.{name}.action=off" for name in configuration.build(compose([])).health.detectors]
    mine = [word for word in only if "kl_explosion" not in word]
    answer = call(capsys, "doctor", str(sweep), *mine)
    assert answer.code == 0, answer.err
    assert answer.out.count(TITLE) == 1
    assert f"{sweep}/1: grpo_exp, grpo, finished, 5 steps: nothing found by 1 detector" in answer.out.splitlines()
    assert len(doctor(capsys, str(sweep / "0"), str(sweep / "1"))) == 2


def test_thresholds_may_be_changed(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = doctor(
        capsys, str(sweep / "0"), "health.detectors.kl_explosion.median=1e6", "health.detectors.kl_explosion.growth=1e9"
    )
    assert kl_findings(run) == [] and "kl_explosion" in run["looked"]
    (run,) = doctor(capsys, str(sweep / "0"), "health.detectors.kl_explosion.action=off")
    assert kl_findings(run) == [] and "kl_explosion" in run["off"]
    (run,) = doctor(capsys, str(sweep / "0"), "health=standard", "health.detectors.kl_explosion.window=3")
    assert all(row["step"] > 2 for row in kl_findings(run))


def test_strict_is_for_scripts(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    off = [f"health.detectors.{name}.action=off" for name in configuration.build(compose([])).health.detectors]
    others = [word for word in off if "kl_explosion" not in word]
    assert call(capsys, "doctor", str(sweep), "--strict", *others).code == 3
    assert call(capsys, "doctor", str(sweep), "--strict", *others, "health.detectors.kl_explosion.action=note").code == 0
    assert call(capsys, "doctor", str(sweep / "1"), "--strict", *others).code == 0


def test_a_run_that_looked_for_nothing_or_is_damaged(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("blind", "torn", "broken", "old"):
        shutil.copytree(sweep / "0", tmp_path / "runs" / name)
    config = yaml.safe_load((tmp_path / "runs/blind/config.yaml").read_text())
    config["health"]["active"] = False
    (tmp_path / "runs/blind/config.yaml").write_text(yaml.safe_dump(config))
    config["health"] = {"active": True, "detectors": {"gone": {"action": "warn"}}}
    (tmp_path / "runs/old/config.yaml").write_text(yaml.safe_dump(config))
    with (tmp_path / "runs/torn/metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "kind": "tr')
    (tmp_path / "runs/broken/metrics.jsonl").write_text('nonsense\n{"step": 1}\n')
    blind, broken, old, torn = doctor(capsys, str(tmp_path / "runs"))
    assert "kl_explosion" in blind["looked"] and kl_findings(blind) == []  # by conf/health
    assert (torn["step"], len(kl_findings(torn))) == (5, 1)
    assert broken["looked"] == [] and "metrics.jsonl:1: not JSON" in broken["notes"][0]
    assert "kl_explosion" in old["looked"] and "conf/health counts" in old["notes"][0]
    assert call(capsys, "doctor", str(tmp_path / "runs/broken")).code == 2


def test_another_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name, kl in (("good", [0.02] * 20), ("bad", [0.02] * 10 + [0.03 * 2**step for step in range(10)])):
        Path(name).mkdir()
        history = [{"step": step, "kl": value, "reward": 0.5 + 0.01 * (step % 3)} for step, value in enumerate(kl, 1)]
        Path(name, "trainer_state.json").write_text(json.dumps({"log_history": history, "max_steps": 50}))
        Path(f"{name}.csv").write_text("it,drift\n" + "".join(f"{step},{value}\n" for step, value in enumerate(kl, 1)))
    Path("names.yaml").write_text("kl/mean: drift\nstep: it\n")
    for words in (
        ["bad"],
        ["bad/trainer_state.json"],
        ["bad.csv", "metrics.kl/mean=drift", "metrics.step=it"],
        ["bad.csv", "mapping=names.yaml"],
    ):
        (run,) = doctor(capsys, *words)
        assert len(kl_findings(run)) == 1, words
        assert all(run["could_not"].values()), "what is missing is named"
    answer = call(capsys, "doctor", "bad")
    assert answer.out.startswith("bad/trainer_state.json: TRL, 20 of 50 steps\n") and "kl/mean = kl" in answer.out
    assert TITLE not in call(capsys, "doctor", "good", "good.csv", "mapping=names.yaml", "metrics.step=it").out
    assert call(capsys, "doctor", "bad", "--strict").code == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: RUN"),
        (["nowhere"], "nowhere: no such file or folder"),
        (["."], "no run in it"),
        (["RUN", "beta=3"], "beta=3: doctor takes health..., metrics.NAME=COLUMN and mapping=NAME"),
        (["RUN", "helth=off"], "Did you mean 'health'"),
        (["RUN", "health=off"], "health.active=false: then there is nothing to look for"),
        (["RUN", "health=standart"], "Did you mean 'standard'"),
        (["RUN", "health.detectors.kl_explosion.medium=3"], "medium"),
        (["RUN", "health.detectors.kl_explosion.median=-3"], "health.detectors.kl_explosion.median=-3: expected a number"),
        (["health.active=true"], "no run is named"),
        (["RUN", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["a.csv", "metrics.kl/maen=kl"], "no metric has that name; they are in docs/metrics.md. Did you mean 'kl/mean'"),
        (["a.csv", "mapping=trll"], "mapping=trll: expected trl, verl, openrlhf or a YAML file"),
        (["a.csv", "mapping=none.yaml"], "none.yaml: cannot be read"),
        (["a.csv"], "a.csv: none of its columns is known"),
        (["empty.jsonl"], "empty.jsonl: empty; nothing was logged"),
    ],
)
def test_wrong_words_are_refused_in_one_message(
    words: list[str],
    message: str,
    sweep: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("step,drift\n1,0.1\n")
    Path("empty.jsonl").write_text("\n")
    answer = call(capsys, "doctor", *(str(sweep / "0") if word == "RUN" else word for word in words))
    assert answer.code == 2 and message in answer.err and answer.out == "" and "Traceback" not in answer.err


def test_a_file_that_cannot_be_written_is_named(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "doctor", str(sweep), "--json", str(tmp_path / "no" / "x.json"))
    assert answer.code == 3 and "x.json: cannot be written (No such file or directory)" in answer.err


def test_what_the_reward_read_in_a_sample() -> None:
    explain = explainer(configuration.build(compose(["model=tiny_random"])).reward)
    assert explain is not None
    row = {"id": "1", "prompt": "2+2=?", "completion": "<answer>5</answer>", "reference": "4"}
    assert "5" in explain(row) and explain(row) != explain(row | {"completion": "<answer>4</answer>"})
    assert explain({}) != ""


def test_a_reward_that_costs_something_is_not_asked() -> None:
    judge = ["reward=judge", "reward.parts.judge.base_url=http://127.0.0.1:9/v1", "reward.parts.judge.model=x"]
    assert explainer(configuration.build(compose(["model=tiny_random", *judge]), judged=False).reward) is None
