"""TRL's and verl's documented forms of rows, read without naming a field, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from grpo_exp.compose import compose
from grpo_exp.config import build, measures_pairs
from grpo_exp.errors import DataError
from grpo_exp.styles import verl

SKY = [{"role": "user", "content": "What color is the sky?"}]


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


VERL = {
    "data_source": "openai/gsm8k",
    "prompt": user("48 and half as many?"),
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "72"},
    "extra_info": {"split": "train", "index": 0},
}
DOCUMENTED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "prompt-only": ({"prompt": "The sky is"}, {"prompt": user("The sky is")}, "prompt-only format, standard"),
    "prompt-only, messages": ({"prompt": SKY}, {"prompt": SKY}, "prompt-only format, conversational"),
    "prompt-completion": (
        {"prompt": "The sky is", "completion": " blue."},
        {"prompt": user("The sky is"), "target": " blue."},
        "prompt-completion format, standard",
    ),
    "prompt-completion, messages": (
        {"prompt": SKY, "completion": said("It is blue.")},
        {"prompt": SKY, "target": "It is blue."},
        "prompt-completion format, conversational",
    ),
    "preference": (
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        {"prompt": user("The sky is"), "chosen": " blue.", "rejected": " green."},
        "preference format, standard",
    ),
    "preference, messages": (
        {"prompt": SKY, "chosen": said("It is blue."), "rejected": said("It is green.")},
        {"prompt": SKY, "chosen": "It is blue.", "rejected": "It is green."},
        "preference format, conversational",
    ),
    "preference, implicit": (
        {"chosen": "The sky is blue.", "rejected": "The sky is green."},
        {"prompt": user("The sky is"), "chosen": " blue.", "rejected": " green."},
        "preference format, standard, with the prompt in both",
    ),
    "preference, implicit, messages": (
        {"chosen": [*SKY, *said("It is blue.")], "rejected": [*SKY, *said("It is green.")]},
        {"prompt": SKY, "chosen": "It is blue.", "rejected": "It is green."},
        "preference format, conversational, with the prompt in both",
    ),
    "verl": (VERL, {"prompt": VERL["prompt"], "answer": "72", "category": "openai/gsm8k"}, "verl's format"),
}


def three(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The row and two others of its kind."""
    others = [json.loads(json.dumps(row).replace("sky", word).replace("half", word)) for word in ("sea", "sun")]
    return [row, *others]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_rows_need_no_option(name: str, source: Any, write: Any) -> None:
    row, wanted, told = DOCUMENTED[name]
    data = source("file", path=write("rows.jsonl", three(row)), split=1).load()
    item = next(item for item in [*data.train, *data.heldout] if item.id == "row-1")
    empty = {"answer": None, "target": None, "chosen": None, "rejected": None, "category": ""}
    assert {key: getattr(item, key) for key in ("prompt", *empty)} == {**empty, **wanted}
    assert told in data.notes[0]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_format_may_be_said(name: str, source: Any, write: Any) -> None:
    path = write("rows.jsonl", three(DOCUMENTED[name][0]))
    format = "verl" if name == "verl" else name.partition(",")[0].replace("-", "_")
    assert source("file", path=path, split=1, format=format).load() == source("file", path=path, split=1).load()


def test_fields_that_the_options_name_come_first(source: Any, write: Any) -> None:
    """As before there were formats: rows with a prompt and an answer are those, whatever else they hold."""
    rows = [{"prompt": f"{i}?", "answer": i, "completion": "x", "chosen": "a", "rejected": "b"} for i in range(3)]
    data = source("file", path=write("rows.jsonl", rows), split=1).load()
    assert (data.train[0].target, data.train[0].chosen, data.train[0].columns["completion"]) == (None, None, "x")
    assert data.notes == []
    forced = source("file", path=write("rows.jsonl", rows), split=1, format="prompt_completion").load()
    assert (forced.train[0].target, forced.train[0].answer) == ("x", data.train[0].answer)


@pytest.mark.parametrize("options", [{"answer": "anwser"}, {"prompt": "question"}, {"format": "fields"}])
def test_an_option_that_names_a_field_is_not_passed_over(options: dict[str, Any], source: Any, write: Any) -> None:
    path = write("rows.jsonl", three({"prompt": "The sky is", "completion": " blue."}))
    with pytest.raises(DataError, match=r"rows.jsonl:1: no field"):
        source("file", path=path, split=1, **options).load()


def test_plain_prompts_where_chat_is_false(source: Any, write: Any) -> None:
    path = write("rows.jsonl", three({"prompt": "The sky is", "completion": " blue."}))
    data = source("file", path=path, split=1, chat=False).load()
    assert {item.prompt for item in data.train} <= {"The sky is", "The sea is", "The sun is"}
    assert "chat messages" not in data.notes[0]
    assert "put to the model as chat messages" in source("file", path=path, split=1).load().notes[0]


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt"),
    [
        ("The sky is blue.", "The sky is black.", "The sky is"),  # not in the middle of a word
        ("Sum: 12", "Sum: 13", "Sum:"),
        ("f(x) = 1", "f(x) = 2", "f(x) ="),
        ("天空是蓝色", "天空是绿色", "天空是"),
        ("Go\n\nnow", "Go\n\nlater", "Go"),
    ],
)
def test_texts_part_between_words(chosen: str, rejected: str, prompt: str, source: Any, write: Any) -> None:
    data = source(
        "file", path=write("r.jsonl", [{"chosen": chosen, "rejected": rejected}] * 2), split=1, chat=False, leaks="drop"
    )
    item = data.item(next(iter(data.rows())))
    assert item.prompt == prompt
    assert (item.prompt + item.chosen, item.prompt + item.rejected) == (chosen, rejected)


def test_verl_as_parquet_and_its_reward_functions(source: Any, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from grpo_exp.batch import Completions

    rows = [{**VERL, "prompt": user(f"{i} and {i}?"), "extra_info": {"index": i}} for i in range(4)]
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), out)
    (tmp_path / "train.parquet").write_bytes(out.getvalue())
    data = source("file", path=str(tmp_path / "train.parquet"), split=1).load()
    assert [item.answer for item in data.train] == ["72"] * 3
    given = verl(Completions([data.train[0]], [""], ["72"], [[1]], [True]), "unused")[0]
    assert (given["data_source"], given["ground_truth"]) == ("openai/gsm8k", "72")
    assert given["extra_info"] in [{"index": i} for i in range(4)]


def test_a_ground_truth_that_is_no_text_stays_for_the_reward(source: Any, write: Any) -> None:
    rows = [{**VERL, "prompt": user(f"{i}"), "reward_model": {"ground_truth": {"target": i}}} for i in range(3)]
    rows += [{**VERL, "prompt": user("style"), "reward_model": {"style": "model"}}]
    data = source("file", path=write("r.jsonl", rows), split=1).load()
    assert {item.answer for item in data.train} == {None}
    assert all("reward_model" in item.columns for item in data.train)


def test_a_field_within_a_field(source: Any, write: Any) -> None:
    rows = [{"q": f"{i}?", "meta": {"answer": i, "level": {"name": "easy"}}} for i in range(3)]
    named = {"prompt": "q", "answer": "meta.answer", "category": "meta.level.name"}
    data = source("file", path=write("r.jsonl", rows), split=1, **named).load()
    assert {(item.answer, item.category) for item in data.train} <= {(str(i), "easy") for i in range(3)}
    with pytest.raises(DataError, match=r"no field 'meta.anwser'"):
        source("file", path=write("r.jsonl", rows), split=1, **{**named, "answer": "meta.anwser"}).load()


FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "answers from a later row on": (
        {"prompt": "a"},
        {"prompt": "b", "answer": "1"},
        "prompt-only format, standard, with answers",
    ),
    "another format": ({"prompt": "a"}, {"prompt": "b", "completion": "c"}, "is in TRL's prompt-completion format"),
    "messages after texts": ({"prompt": "a"}, {"prompt": SKY}, "prompt-only format, conversational, and the first"),
    "no completion": ({"prompt": "a", "completion": "b"}, {"prompt": "c"}, "is in TRL's prompt-only format"),
    "none at all": ({"prompt": "a", "completion": "b"}, {"question": "c"}, "is not in TRL's prompt-completion format"),
    "two replies": (
        {"prompt": SKY, "completion": said("a")},
        {"prompt": SKY, "completion": [*said("a"), *said("b")]},
        "2 messages",
    ),
    "the user's reply": (
        {"prompt": SKY, "completion": said("a")},
        {"prompt": SKY, "completion": SKY},
        r"\(user\); expected one",
    ),
    "an empty truth": (VERL, {**VERL, "reward_model": {"ground_truth": " "}}, "'reward_model.ground_truth'.* is empty"),
    "no reward model": (VERL, {k: v for k, v in VERL.items() if k != "reward_model"}, "is in TRL's prompt-only format"),
    "nothing in common": ({"chosen": "a b", "rejected": "a c"}, {"chosen": "x", "rejected": "y"}, "no common prompt"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_rows_that_differ_from_the_first_are_named(name: str, source: Any, write: Any) -> None:
    good, bad, message = FAULTS[name]
    path = write("rows.jsonl", [good, bad, good])
    with pytest.raises(DataError, match=f"rows.jsonl:2: .*{message}"):
        source("file", path=path, split=1).load()


def test_a_row_that_differs_may_be_skipped(source: Any, write: Any) -> None:
    path = write("r.jsonl", [{"prompt": "a"}, {"prompt": "b", "answer": "1"}, {"prompt": "c"}])
    data = source("file", path=path, split=1, on_error="skip").load()
    assert {item.id for item in [*data.train, *data.heldout]} == {"row-1", "row-3"}
    assert data.notes[1] == "1 of 3 rows skipped: another format: 1"


def test_what_no_algorithm_learns_from_is_refused(source: Any, write: Any) -> None:
    unpaired = [{"prompt": "The sky is", "completion": " green.", "label": False}] * 2
    with pytest.raises(DataError, match=r"r.jsonl:1: TRL's unpaired preference format.*data.format=fields"):
        source("file", path=write("r.jsonl", unpaired)).load()
    steps = [{"prompt": "1+1", "completions": ["a", "b"], "labels": [True, False]}] * 2
    with pytest.raises(DataError, match="TRL's stepwise supervision format"):
        source("file", path=write("r.jsonl", steps)).load()


def test_a_format_that_the_first_row_lacks(source: Any, write: Any) -> None:
    path = write("r.jsonl", [{"prompt": "a", "answer": "b"}] * 2)
    with pytest.raises(DataError, match=r"r.jsonl:1: data.format=verl: not verl's format; the row has: prompt, answer"):
        source("file", path=path, format="verl").load()


def test_pairs_are_measured_as_pairs(write: Any) -> None:
    """What the rows are decides what a run measures, before anything is loaded."""
    path = write("pairs.jsonl", three(DOCUMENTED["preference, implicit"][0]))
    words = ["algo=dpo_offline", "data=file", f"data.path={path}", "model=tiny_random", "objective.metric=eval/pair_accuracy"]
    assert measures_pairs(build(compose(words)))
