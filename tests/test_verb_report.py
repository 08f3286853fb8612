"""`python -m grpo_exp report`, from the command line to the files."""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from pathlib import Path

import pytest
import yaml
from command import SMALL, call

from grpo_exp import config
from grpo_exp.command_line import read
from grpo_exp.compose import compose


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two values of beta by two of G, really run."""
    from grpo_exp.__main__ import main

    folder = tmp_path_factory.mktemp("sweeps") / "small"
    fixed = [word for word in SMALL if not word.startswith(("G=", "steps="))]
    with pytest.raises(SystemExit) as end:
        main(["-m", *fixed, "steps=1", "beta=0.01,0.1", "G=2,4", f"hydra.sweep.dir={folder}"])
    assert not end.value.code
    return folder


def test_a_real_grid(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "report", str(grid), "--no-html")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("small: 4 runs of 4 settings, 4 finished\nvaried: beta 0.01, 0.1; G 2, 4\n")
    assert "4 held-out items, 2 samples each" in answer.out and "It cannot be told apart from any of the 3 others" in answer.out
    assert "Every setting has one seed" in answer.out
    assert "\x1b" not in answer.out


def test_the_best_command_composes_to_the_best_runs_configuration(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(call(capsys, "report", str(grid), "--json", "-").out)
    words = shlex.split(answer["command"])
    assert words[:3] == ["python", "-m", "grpo_exp"]
    again = json.loads(json.dumps(config.resolved(compose(read(words[3:])))))
    ran = yaml.safe_load((Path(answer["ranked"][0]["runs"][0]["folder"]) / "config.yaml").read_text())
    assert {key.partition(".")[0] for key in config.difference(again, ran)} <= {"track", "hardware", "sweep", "preflight"}


def test_json_has_the_whole_answer(grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "answer.json"
    assert call(capsys, "report", str(grid), "--no-html", "--json", str(target)).code == 0
    answer = json.loads(target.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert (answer["metric"], answer["direction"], answer["varied"]) == ("eval/pass@1", "maximize", ["beta", "G"])
    assert [row["rank"] for row in answer["ranked"]] == [1, 2, 3, 4] and answer["pairs_corrected_for"] == 6
    assert answer["ranked"][0]["to_best"] is None and answer["failures"] == [] == answer["not_compared"]
    for row in answer["ranked"][1:]:
        assert row["to_best"]["real"] is False and row["to_best"]["compares"] == "models"


def test_csv_has_a_line_a_run(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = call(capsys, "report", str(grid), "--csv", "-").out
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["trial"], row["beta"], row["G"], row["status"]) for row in rows] == [
        ("0", "0.01", "2", "finished"),
        ("1", "0.01", "4", "finished"),
        ("2", "0.1", "2", "finished"),
        ("3", "0.1", "4", "finished"),
    ]
    for row in rows:
        card = json.loads((Path(row["folder"]) / "run.json").read_text())
        assert float(row["value"]) == card["objective"] and int(float(row["tokens"])) == card["tokens"]
        assert row["metric"] == "eval/pass@1" and not math.isnan(float(row["kl"])) and row["seed"] == "0"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: FOLDER"),
        (["nowhere"], "nowhere: no such folder"),
        (["."], r".: no run in it"),
        (
            ["GRID", "--by", "bta"],
            "--by bta: no option of these runs has that name, such as beta or algo. Did you mean 'beta'?",
        ),
        (["GRID", "--csv", "-", "--json", "-"], "only one of them"),
        (["GRID", "--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_wrong_words_are_refused_in_one_message(
    words: list[str],
    message: str,
    grid: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, "report", *(str(grid) if word == "GRID" else word for word in words))
    assert answer.code == 2 and message in answer.err and answer.out == "" and "Traceback" not in answer.err


def test_a_file_that_cannot_be_written_is_named(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "report", str(grid), "--no-html", "--csv", str(grid / "no" / "x.csv"))
    assert answer.code == 3 and "x.csv: cannot be written (No such file or directory)" in answer.err


def test_help_says_what_the_words_are(capsys: pytest.CaptureFixture[str]) -> None:
    out = call(capsys, "report", "--help").out
    assert "--by beta" in out and "--csv" in out
    assert "report" in call(capsys, "--help").out
