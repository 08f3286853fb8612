"""`python -m grpo_exp preflight`: exit codes, files, what is found; and the short form in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, call

REWARD = """
from zlib import crc32

def half(completions):
    return [float(crc32(text.encode()) % 2) for text in completions]

def once(completions):
    return [float(crc32(text.encode()) % 90 == 0) for text in completions]

def short(completions, finished):
    return [float(done) for done in finished]
"""
LOOK = [*SMALL, "preflight.prompts=5", "preflight.samples=4", "preflight.steps=2", "hydra.run.dir=look", "reward=custom"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARD)


def facts(folder: str = "look") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(folder) / "preflight.json").read_text())
    return found


def rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_a_run_that_can_work(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "preflight", *LOOK, "reward.path=mine.py:half", "preflight.price=2", "preflight.trials=7")
    assert (answer.code, answer.err) == (0, "")
    assert {p.name for p in Path("look").iterdir()} == {"preflight.json", "pass_rates.jsonl", "samples.jsonl", "config.yaml"}
    assert "5 training prompts of arithmetic, 4 samples each at temperature 1" in answer.out
    assert "KL 0, largest ratio 1," in answer.out and "7 trials" in answer.out and "money" in answer.out
    assert answer.out.splitlines()[-1] == "written to look"

    told = facts()
    assert told["exit_code"] == 0 and not any(finding["level"] == "stop" for finding in told["findings"])
    assert told["first_step"]["kl"] == 0 and told["first_step"]["ratio"] == 1
    assert told["first_step"]["mismatch"] < 1e-4 and told["first_step"]["gradient"] > 0 and told["first_step"]["error"] is None
    rates, sampled = rows("look/pass_rates.jsonl"), rows("look/samples.jsonl")
    assert len(rates) == len(sampled) == 5 * 4 and len({row["item"] for row in rates}) == 5
    assert [row["outcome"] for row in rates] == [row["outcome"] for row in sampled]
    right = [row["outcome"] for row in rates]
    assert told["pass_rate"]["overall"]["value"] == pytest.approx(sum(right) / len(right))
    spent = told["cost"]
    assert spent["steps"] == 2 and spent["evaluations"] == 2 and spent["wall"] > 2 * spent["step"] > 0
    assert 0 < spent["memory"]["needed"] < spent["memory"]["there_is"]
    assert told["prompt"]["prompt"] == sampled[0]["prompt"]


@pytest.mark.slow
def test_the_same_look_twice(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in LOOK if not word.startswith("hydra")]
    for folder in "ab":
        assert call(capsys, "preflight", *words, "reward.path=mine.py:half", f"hydra.run.dir={folder}").code == 0
    assert Path("a/samples.jsonl").read_bytes() == Path("b/samples.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("words", "level", "text"),
    [
        (["reward=math"], "stop", "samples earn 0, so"),
        (["reward.path=mine.py:once", "preflight.samples=40"], "warn", "under 5 %"),
        (["reward.path=mine.py:short", "G=4"], "warn", "are cut off at max_new_tokens=6"),
        (["reward.path=mine.py:half", "temperature=0.001", "G=4"], "warn", "only 1.0 of 4 samples of a prompt are distinct"),
        (["reward.path=mine.py:half"], "warn", "G=2: a sample is compared with the mean of 2"),
    ],
    ids=["all wrong", "too hard", "cut off", "no temperature", "two samples"],
)
def test_what_is_wrong_is_found(words: list[str], level: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "preflight", *LOOK, "preflight.steps=1", *words)
    told = [(finding["level"], finding["text"]) for finding in facts()["findings"]]
    assert any(level == one and text in said for one, said in told), told
    assert answer.code == (2 if any(one == "stop" for one, _ in told) else 0)
    assert answer.err == ""


def test_supervised_steps_and_all_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in SMALL if word != "G=2"]
    answer = call(capsys, "preflight", *words, "algo=sft", "preflight.prompts=0", "preflight.samples=2", "preflight.steps=1")
    assert answer.code == 0, answer.out
    folder = answer.out.splitlines()[-1].removeprefix("written to ")
    assert folder.startswith("outputs/preflight/") and folder.endswith("_sft_tiny_random_arithmetic")
    assert len(rows(f"{folder}/pass_rates.jsonl")) == 8 * 2
    assert facts(folder)["findings"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["temperature=0"], "temperature=0: expected a number greater than 0"),
        (["-m", "beta=0.1,0.2"], "it looks at one run"),
        (["preflight.promts=3"], "Did you mean 'preflight.prompts'"),
        (["preflight.hard=5"], "preflight.hard=5: expected a number from 0 to 1"),
    ],
)
def test_errors(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "preflight", *SMALL, *words)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err and answer.err.count("\n") == 1
    assert not Path("outputs").exists()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "look before a run" in call(capsys, "help").out
    assert "pass_rates.jsonl" in call(capsys, "help", "preflight").out


# ---- the short form


def test_a_run_says_what_its_first_evaluation_shows(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "reward=custom", "reward.path=mine.py:once", "steps=1", "checkpoint.export=false"]
    for folder, more in (("on", []), ("off", ["preflight.notes=false"])):
        assert call(capsys, *words, *more, f"hydra.run.dir={folder}").code == 0
    on, off = ([note["text"] for note in json.loads(Path(f"{f}/run.json").read_text()).get("notes", [])] for f in ("on", "off"))
    assert any("pass@1 before training is 0.0 %: under 5 %" in text for text in on)
    assert not any("before training" in text for text in off)
    same = [[row["total"] for row in rows(f"{folder}/samples.jsonl")] for folder in ("on", "off")]
    assert same[0] == same[1]
    assert "preflight" not in Path("on/config.yaml").read_text()
    assert call(capsys, *words, "preflight.notes=false", "hydra.run.dir=on").out.endswith("nothing to do\n")
