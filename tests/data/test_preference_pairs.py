"""Preference pairs from rows: texts, messages and dialogues, prompts apart and shared, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grpo_exp.errors import ConfigError, DataError


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def one(source: Any, write: Any, row: dict[str, Any], **options: Any) -> Any:
    """The item that a row becomes."""
    made = source("preferences", path=write("pairs.jsonl", [row]), **options)
    return made.item(next(iter(made.rows())))


def test_texts_with_a_prompt_of_their_own(source: Any, write: Any) -> None:
    row = {"prompt": "2+2=?", "chosen": " 4", "rejected": " 5", "score": 3}
    item = one(source, write, row)
    assert item.prompt == [user("2+2=?")]
    assert (item.chosen, item.rejected, item.answer, item.columns) == (" 4", " 5", None, {"score": 3})
    assert one(source, write, row, chat=False).prompt == "2+2=?"


def test_messages_with_a_common_beginning(source: Any, write: Any) -> None:
    shared = [{"role": "system", "content": "Be brief."}, user("Hi"), said("Hello"), user("2+2?")]
    row = {"chosen": [*shared, said("4")], "rejected": [*shared, said("5")]}
    item = one(source, write, row, prompt=None)
    assert (item.prompt, item.chosen, item.rejected) == (shared, "4", "5")


def test_replies_alone_as_messages(source: Any, write: Any) -> None:
    item = one(source, write, {"prompt": "2+2?", "chosen": [said("4")], "rejected": [said("5")]})
    assert (item.prompt, item.chosen, item.rejected) == ([user("2+2?")], "4", "5")


def test_a_prompt_that_stands_in_all_three(source: Any, write: Any) -> None:
    row = {"prompt": "2+2?", "chosen": [user("2+2?"), said("4")], "rejected": [user("2+2?"), said("5")]}
    assert one(source, write, row).prompt == [user("2+2?")]
    with pytest.raises(
        DataError, match=r"pairs.jsonl:1: chosen and rejected begin with another prompt than data.prompt=prompt"
    ):
        one(source, write, row | {"prompt": "3+3?"})


def test_dialogues_in_turns(source: Any, write: Any) -> None:
    shared = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: 2+2?\n\nAssistant:"
    row = {"chosen": f"{shared} 4", "rejected": f"{shared} 5\nor 6"}
    text = one(source, write, row, prompt=None, chat=False)
    assert (text.prompt, text.chosen, text.rejected) == (shared, " 4", " 5\nor 6")
    chat = one(source, write, row, prompt=None)
    assert chat.prompt == [user("Hi"), said("Hello"), user("2+2?")]
    assert (chat.chosen, chat.rejected) == ("4", "5\nor 6")


def test_a_system_message_and_examples_come_before_a_shared_prompt(source: Any, write: Any) -> None:
    row = {"chosen": [user("2+2?"), said("4")], "rejected": [user("2+2?"), said("5")]}
    item = one(source, write, row, prompt=None, system="Add.", examples=[["1+1?", "2"]])
    assert item.prompt == [{"role": "system", "content": "Add."}, user("1+1?"), said("2"), user("2+2?")]


S = [user("2+2?")]
FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "equal": ({"prompt": "p", "chosen": "4", "rejected": "4"}, {}, "chosen and rejected are equal: 4"),
    "equal messages": ({"chosen": [*S, said("4")], "rejected": [*S, said("4")]}, {"prompt": None}, "are equal: 4"),
    "empty": ({"prompt": "p", "chosen": "4", "rejected": " "}, {}, r"'rejected' \(named by data.rejected\) is empty"),
    "one missing": ({"prompt": "p", "chosen": "4", "rejectd": "5"}, {}, "no field 'rejected'.*Did you mean 'rejectd'"),
    "texts without a prompt": ({"chosen": "4", "rejected": "5"}, {"prompt": None}, "begin with no common prompt. They must be"),
    "other questions": (
        {"chosen": [user("2+2?"), said("4")], "rejected": [user("3+3?"), said("5")]},
        {"prompt": None},
        "no common prompt: they differ before the last reply",
    ),
    "other dialogues": (
        {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: c\n\nAssistant: b"},
        {"prompt": None, "chat": False},
        "no common prompt",
    ),
    "two more turns": (
        {"chosen": [*S, said("4"), user("sure?"), said("yes")], "rejected": [*S, said("5")]},
        {"prompt": None},
        "after the 1 messages they share, chosen has 3 and rejected 1; expected one message of the assistant each",
    ),
    "user last": (
        {"chosen": [*S, user("4")], "rejected": [*S, user("5")]},
        {"prompt": None},
        "expected one message of the assistant",
    ),
    "no user": (
        {"chosen": [said("a"), said("4")], "rejected": [said("a"), said("5")]},
        {"prompt": None},
        "the last message of the prompt must be the user's",
    ),
    "text and messages": ({"prompt": "p", "chosen": [said("4")], "rejected": "5"}, {}, "'rejected'.*holds no messages"),
    "bad message": ({"prompt": "p", "chosen": [{"role": "bot", "content": "4"}], "rejected": [said("5")]}, {}, "message 0 of"),
    "nothing after the turn": (
        {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant:"},
        {"prompt": None, "chat": False},
        "a completion of the pair is empty",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_rows_are_named_with_file_and_line(name: str, source: Any, write: Any) -> None:
    row, options, message = FAULTS[name]
    good = {"prompt": "a", "chosen": "b", "rejected": "c"}
    if options.get("prompt", "") is None:
        good = {"chosen": [user("a"), said("b")], "rejected": [user("a"), said("c")]}
        if not options.get("chat", True):
            good = {k: f"\n\nHuman: a\n\nAssistant: {k}" for k in ("chosen", "rejected")}
    path = write("pairs.jsonl", [good, row, good])
    with pytest.raises(DataError, match=f"pairs.jsonl:2: .*{message}"):
        source("preferences", path=path, split=1, **options).load()


def test_held_out_rows_may_have_answers_instead(source: Any, write: Any) -> None:
    pairs = write("pairs.jsonl", [{"prompt": f"{i}", "chosen": "a", "rejected": "b", "answer": "a"} for i in range(3)])
    held = write("held.jsonl", [{"prompt": "9", "answer": "9"}])
    data = source("preferences", path=pairs, split=held, answer="answer").load()
    assert [e.chosen for e in data.train] == ["a"] * 3
    assert [(e.chosen, e.rejected, e.answer) for e in data.heldout] == [(None, None, "9")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rejected": None}, "data.chosen and data.rejected belong together"),
        ({"chosen": None, "rejected": None, "prompt": None}, "data.prompt=null: name the field of the prompt"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str, source: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        source("preferences", **options)


def test_pairs_count_in_the_hash_of_the_data(source: Any, write: Any) -> None:
    rows = [{"prompt": f"{i}", "chosen": "a", "rejected": "b"} for i in range(4)]
    first = source("preferences", path=write("a.jsonl", rows), split=1).load()
    other = source("preferences", path=write("b.jsonl", json.loads(json.dumps(rows).replace('"b"', '"c"'))), split=1).load()
    assert first.sha256 != other.sha256
