"""Items that say the same: counted, left out or refused, within the data and between training and held-out items."""

from __future__ import annotations

from typing import Any

import pytest

from grpo_exp.errors import ConfigError, DataError

QA = {"prompt": "q", "answer": "a"}
ROWS = [{"q": f"What is {i} + {i} ?", "a": 2 * i} for i in range(6)]
EXACT = {"q": "What is 3 + 3 ?", "a": 6}
NEAR = {"q": "what  is ３ + 3 ?\n", "a": "6"}  # another case, spaces, a full-width digit
OTHER = {"q": "What is 3 + 3 ?", "a": 7}  # the same question, but not the same item


def ids(items: Any) -> set[str]:
    return {item.id for item in items}


def load(source: Any, write: Any, rows: list[dict[str, Any]], **options: Any) -> Any:
    return source("file", path=write("rows.jsonl", rows), **{**QA, "split": 1, "split_seed": 3, **options}).load()


def test_duplicates_are_counted_and_kept(source: Any, write: Any) -> None:
    held = write("held.jsonl", [{"q": "9 + 9", "a": 18}])
    data = load(source, write, [*ROWS, EXACT, NEAR, OTHER], split=held)
    assert len(data.train) == 9
    assert data.notes == [
        "1 of 9 items repeat an earlier one word for word, 1 more but for case, spaces and Unicode forms (row-7, row-8): kept"
    ]


@pytest.mark.parametrize(("way", "gone"), [("drop", {"row-7"}), ("drop_near", {"row-7", "row-8"})])
def test_duplicates_are_left_out(way: str, gone: set[str], source: Any, write: Any) -> None:
    held = write("held.jsonl", [{"q": "9 + 9", "a": 18}])
    data = load(source, write, [*ROWS, EXACT, NEAR, OTHER], duplicates=way, split=held)
    assert ids(data.train) == {f"row-{n}" for n in range(1, 10)} - gone
    assert f"{'1 left out' if len(gone) == 1 else 'left out'}" in data.notes[0]


def test_duplicates_are_refused(source: Any, write: Any) -> None:
    with pytest.raises(DataError, match=r"data=file: 1 of 7 items repeat .*\(row-7\)\. Use data.duplicates=drop"):
        load(source, write, [*ROWS, EXACT], duplicates="error")
    assert load(source, write, [*ROWS, OTHER], duplicates="error").train, "another answer makes another item"


def test_without_any_nothing_is_said(source: Any, write: Any) -> None:
    assert load(source, write, ROWS).notes == []


def test_what_leaks(source: Any, write: Any) -> None:
    held = write("held.jsonl", [{"q": ROWS[2]["q"], "a": 4}, {"q": ROWS[4]["q"].upper(), "a": 8}])
    data = load(source, write, ROWS, split=held)
    assert ids(data.train) == {f"row-{n}" for n in (1, 2, 4, 5, 6)}
    assert data.notes == [
        "1 training items dropped: their prompt is also held out",
        "1 training items have a prompt that is held out but for case, spaces and Unicode forms (row-5): kept, "
        "data.leaks=drop_near leaves them out",
    ]
    data = load(source, write, ROWS, split=held, leaks="drop_near")
    assert ids(data.train) == {f"row-{n}" for n in (1, 2, 4, 6)}
    assert data.notes[1].endswith(": dropped")
    with pytest.raises(
        DataError, match=r"1 training items are also held out word for word, and of 1 but for case.*drop_near for"
    ):
        load(source, write, ROWS, split=held, leaks="error")


def test_messages_are_compared_by_role_and_text(source: Any, write: Any) -> None:
    def talk(*texts: str) -> list[dict[str, str]]:
        return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]

    rows = [{"q": talk("a", "b", "c"), "a": 1}, {"q": talk("A", "b ", "C"), "a": 1}, {"q": talk("a b", "c", "d"), "a": 1}]
    data = load(source, write, rows, duplicates="drop_near")
    assert ids([*data.train, *data.heldout]) == {"row-1", "row-3"}


@pytest.mark.parametrize(("option", "value"), [("duplicates", "remove"), ("leaks", "keep")])
def test_only_known_ways(option: str, value: str) -> None:
    from grpo_exp.compose import compose
    from grpo_exp.config import build

    with pytest.raises(ConfigError, match=f"data.{option}='{value}': expected"):
        build(compose(["data=file", f"data.{option}={value}", "model=tiny_random"]))
