"""`python -m grpo_exp reward`: what it says, what it writes, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import call

from grpo_exp.batch import Example
from grpo_exp.errors import DataError
from grpo_exp.laboratory.responses import read

REWARDS = """
def anywhere(completions, answers):
    return [float(answer in text) for text, answer in zip(completions, answers)]

def exact(completions, answers):
    return [float(text.rstrip().endswith(f"<answer>{answer}</answer>")) for text, answer in zip(completions, answers)]

def brittle(completions, answers):
    return [float(text.split("<answer>")[1].split("</answer>")[0] == answer) for text, answer in zip(completions, answers)]

def paid_by_length(completions, answers):
    return [min(1.0, len(text) / 1000) for text in completions]

def odd(completions, answers):
    return [float(answer in text and "~" in text) for text, answer in zip(completions, answers)]
"""
SMALL = ["data.train=20", "data.heldout=4", "hardware.threads=1"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARDS)


def custom(name: str) -> list[str]:
    return ["reward", "reward=custom", f"reward.path=mine.py:{name}", *SMALL, "limit=600"]


def lines(name: str, *rows: dict[str, Any]) -> str:
    Path(name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return f"responses={name}"


def rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.slow
def test_math_is_trustworthy_and_everything_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "reward", "reward=math", *SMALL, "limit=400", "out=kept")
    assert answer.code == 0, answer.out + answer.err
    *_, verdict, written = answer.out.splitlines()
    assert verdict.startswith("trustworthy") and written == "written to kept"
    assert {path.name for path in Path("kept").iterdir()} == {"reward.json", "config.yaml", "responses.jsonl", "attacks.jsonl"}
    found = json.loads(Path("kept/reward.json").read_text())
    assert found["trustworthy"] is True and found["verdict"] == verdict
    responses = rows("kept/responses.jsonl")
    assert len(responses) == 400 and len({row["how"] for row in responses}) > 30
    assert {row["called"] for row in responses} == {"right", "wrong"}
    assert found["labelled"]["right"]["right"] == sum(row["right"] for row in responses) > 100
    assert found["second_opinion"]["asked"] and 0 < found["second_opinion"]["differs"] < len(responses)
    attacks = rows("kept/attacks.jsonl")
    assert {row["verdict"] for row in attacks} == {"ok", "suspicious"} and len({row["attack"] for row in attacks}) > 60
    assert all(row["outcome"] == 0 for row in attacks if row["verdict"] == "ok")
    for line in ("called right", "math-verify, as a second opinion", "attacks:", "each number from 0 to 99 alone", "time-out"):
        assert line in answer.out


def test_the_answer_anywhere_is_a_hole(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *custom("anywhere"))
    assert answer.code == 3
    assert answer.out.splitlines()[-1].startswith("not to be trusted: ")
    for line in ("HOLE", "every number from 0 to 99", "wrong, called right: ", "of what kind: ", "several candidates ("):
        assert line in answer.out


def test_what_a_strict_reward_misses_is_shown_and_may_be_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *custom("exact"))
    assert answer.code == 3 and "HOLE" not in answer.out
    assert "note: answers are stated as this reward reads them: '<answer>5</answer>'" in answer.out
    assert "right, called wrong" in answer.out and "which out=FOLDER writes down" in answer.out
    answer = call(capsys, *custom("exact"), "misses=1")
    assert answer.code == 0 and "misses=1 allows" in answer.out


def test_a_reward_that_raises_is_not_to_be_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *custom("brittle"), "misses=1")
    assert answer.code == 3
    assert "HOLE" in answer.out and "IndexError" in answer.out and "such a completion ends a run" in answer.out


def test_pay_for_length_is_a_hole(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *custom("paid_by_length"), "misses=1")
    assert answer.code == 3
    assert any(line.split()[0] == "HOLE" and "very long, words" in line for line in answer.out.splitlines() if line.strip())


def test_pay_by_shaping_is_suspicious(capsys: pytest.CaptureFixture[str]) -> None:
    shaped = ["+reward/part@reward.parts.mine=custom", "reward.path=mine.py:paid_by_length", "reward.parts.mine.role=shaping"]
    answer = call(capsys, "reward", *shaped, *SMALL, "limit=20")
    assert answer.code == 0, answer.out
    assert "shaping pays" in answer.out


def test_a_gate_decides_which_forms_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "reward", "reward.parts.format.role=gate", *SMALL, "limit=200", "out=kept")
    assert answer.code == 0, answer.out
    assert all("<answer>" in row["response"] for row in rows("kept/responses.jsonl") if row["right"])


def test_no_form_that_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "reward", "reward=custom", "reward.path=mine.py:odd", "data=file", items(), "limit=5")
    assert "it reads the reference answer in none of these forms" in answer.out and answer.code == 3


def items() -> str:
    lines("items.jsonl", *({"prompt": f"who is {i}?", "answer": name} for i, name in enumerate(("ann", "bob", "cy", "dee"))))
    return "data.path=items.jsonl"


def test_responses_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    given = lines(
        "mine.jsonl",
        {"id": "train-0", "response": "<answer>x</answer>", "right": False},
        {"prompt": "1+1=?", "answer": 2, "completion": "<answer>2</answer>", "right": True, "how": "as it should be"},
        {"prompt": "1+1=?", "answer": "2", "response": "two, as far as I know", "right": True},
    )
    answer = call(capsys, "reward", *SMALL, given)
    assert answer.code == 3
    assert "labelled responses: 3 to 3 items, from mine.jsonl" in answer.out
    assert "right, called wrong: mine.jsonl:3, reference '2'" in answer.out
    assert "missing, 0: no answer in any of the forms" in answer.out
    assert answer.out.splitlines()[-1] == "not to be trusted: 1 of 2 right responses do not count"
    assert call(capsys, "reward", *SMALL, given, "misses=0.5").code == 0


@pytest.mark.slow
def test_samples_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "reward", "model=tiny_random", *SMALL, "max_new_tokens=6", "limit=5", "out=kept")
    assert answer.code == 0, answer.out + answer.err
    assert "samples: 50 of the model, 0 right; those that are not:" in answer.out
    assert answer.out.count("    said    ") == 20 and "and 30 more, in samples.jsonl" in answer.out
    samples = rows("kept/samples.jsonl")
    assert len(samples) == 50 and all(row["why"] and row["answer"] for row in samples)


WRONG = {
    "reward=digit data=digits": "looks at no answer, so nothing says which responses are right",
    "data=digits": "the items of data=digits have no reference answers",
    "responses=nowhere.jsonl": "responses=nowhere.jsonl",
    "limit=0": "limit='0': expected a whole number from 1",
    "misses=2": "misses='2': expected a number from 0 to 1",
    "limit=": "limit=: it has no value",
    "beta=1": "reward takes options of",
    "math": "'math': expected KEY=VALUE",
    "reward=maths": "Did you mean 'math'",
    "reward=code reward.sandbox=none data=file data.path=items.jsonl": "and no item has any",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_input_is_told(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    items()
    answer = call(capsys, "reward", *words.split())
    assert (answer.code, answer.out) == (2, "")
    assert WRONG[words] in answer.err


ODD: dict[str, list[dict[str, Any]]] = {
    "'right' must be true or false, the label that a careful reader gives; got None": [{"id": "a", "response": "5"}],
    "no text in 'response'": [{"id": "a", "right": True}],
    "the data has no item with id 'x9'; give its prompt and answer": [{"id": "x9", "response": "5", "right": True}],
    "which item is this a response to": [{"response": "5", "right": True}],
    "all of its 2 responses are right": [{"id": "a", "response": "5", "right": True}] * 2,
    "no rows; it is empty": [],
}


@pytest.mark.parametrize("message", ODD)
def test_what_a_row_lacks_is_told(message: str) -> None:
    lines("odd.jsonl", *ODD[message])
    with pytest.raises(DataError, match=message):
        read("odd.jsonl", [Example("a", "2+3=?", "5")])


def test_a_row_belongs_to_an_item_of_the_data_or_is_one() -> None:
    data = [Example("a", "2+3=?", "5"), Example("b", [{"role": "user", "content": " 1+1=? "}], "2")]
    label = {"response": "5", "right": False}
    given = [{"id": "a", **label}, {"prompt": "1+1=?", **label}, {"prompt": "write f", "tests": ["x"], **label, "right": True}]
    lines("rows.jsonl", *given)
    one, two, three = read("rows.jsonl", data)
    assert (one.example, two.example) == (data[0], data[1])
    assert three.example == Example("rows.jsonl:3", "write f", None, columns={"tests": ["x"]}) and three.right
