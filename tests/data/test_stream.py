"""Items that are read from their file when they are asked for: the same ones, in little memory."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from command import ROOT, finish, start

from grpo_exp.data.base import Items
from grpo_exp.errors import ConfigError, DataError
from grpo_exp.prompt_order import PromptOrder

QA = {"prompt": "q", "answer": "a", "category": "level"}


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"q": f"What is {i} + {i}?", "a": 2 * i, "level": ("easy", "hard")[i % 3 == 0], "more": [i, "é"]} for i in range(count)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"split": 0.2},
        {"split": 7, "split_seed": 5, "train_from": 0.25, "train_to": 0.75},
        {"split": 0.2, "limit": 30},
        {"split": 0.2, "duplicates": "drop_near", "leaks": "drop_near"},
        {"split": "second"},
        {"split": 0.2, "chat": False, "system": "Add.", "examples": [["1+1", "2"]], "replace": {"q": [["What", "How much"]]}},
    ],
)
@pytest.mark.parametrize("own_ids", [True, False])
def test_streamed_items_are_those_in_memory(options: dict[str, Any], own_ids: bool, source: Any, write: Any) -> None:
    made = [{"id": f"n{i}", **row} if own_ids else row for i, row in enumerate(rows(50))]
    lines = [json.dumps(row, ensure_ascii=i % 2 == 0) for i, row in enumerate([*made, made[4] | {"id": "again"}])]
    path = write("rows.jsonl", "\ufeff" + "\r\n\n".join(lines))
    second = write("second.jsonl", [{"id": "n1", "q": "1", "a": 1, "level": "x"}, {**made[3], "q": made[3]["q"].upper()}])
    options = {**QA, **options, "path": path, "split": second if options["split"] == "second" else options["split"]}
    here = source("file", stream="never", **options).load()
    there = source("file", stream="always", **options).load()
    assert isinstance(here.train, list) and isinstance(there.train, Items) and isinstance(there.heldout, Items)
    assert (list(there.train), list(there.heldout)) == (here.train, here.heldout)
    assert (there.sha256, there.source, there.notes) == (here.sha256, here.source, here.notes)
    assert (list(there.train.ids), list(there.train.categories)) == (
        [item.id for item in here.train],
        [item.category for item in here.train],
    )
    assert there.train[::7] == here.train[::7] and there.train[-1] == here.train[-1]
    assert PromptOrder(there.train, 3, 8).take(120) == PromptOrder(here.train, 3, 8).take(120)
    with pytest.raises(IndexError):
        there.train[len(there.train)]


def test_faults_are_told_as_in_memory(source: Any, write: Any) -> None:
    lines = [*map(json.dumps, rows(5)), "{", '{"q": "x"}', "[1]"]
    path = write("rows.jsonl", "\n".join(lines))
    said = []
    for stream in ("never", "always"):
        with pytest.raises(DataError) as caught:
            source("file", path=path, split=1, stream=stream, **QA).load()
        said.append(str(caught.value))
        said.append(source("file", path=path, split=1, stream=stream, on_error="skip", **QA).load().notes)
    assert said[:2] == said[2:] and "rows.jsonl:6" in said[0]


def test_a_file_that_changes_is_noticed(source: Any, write: Any) -> None:
    path = Path(write("rows.jsonl", rows(9)))
    data = source("file", path=str(path), split=2, stream="always", **QA).load()
    assert data.train[0]
    path.write_text(path.read_text().replace("What", "When"))
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match=r"rows.jsonl: changed while its rows were in use"):
        data.train[0]


def test_a_file_that_is_replaced_does_no_harm(source: Any, write: Any, tmp_path: Path) -> None:
    path = Path(write("rows.jsonl", rows(9)))
    data = source("file", path=str(path), split=2, stream="always", **QA).load()
    before = data.train[0]
    (tmp_path / "new").write_text("nothing")
    (tmp_path / "new").replace(path)
    assert data.train[0] == before


def test_what_has_no_lines_is_refused(source: Any, write: Any) -> None:
    path = write("rows.json", rows(5))
    with pytest.raises(ConfigError, match=r"data.stream=always: only the lines of a .jsonl file.*rows.json.*data.stream=auto"):
        source("file", path=path, split=1, stream="always", **QA).load()
    assert isinstance(source("file", path=path, split=1, **QA).load().train, list)


def test_large_files_are_streamed_by_themselves(source: Any, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("rows.jsonl", rows(20))
    assert isinstance(source("file", path=path, split=2, **QA).load().train, list)
    monkeypatch.setattr("grpo_exp.data.file.LARGE", Path(path).stat().st_size)
    assert isinstance(source("file", path=path, split=2, **QA).load().train, Items)


MILLION = """
import json, re, sys
from grpo_exp.compose import compose
from grpo_exp.config import build
from grpo_exp.prompt_order import order_of
from grpo_exp import run

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) / 1024

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) / 1024

made = build(compose(["data=file", f"data.path={sys.argv[1]}", "data.stream=always", "data.category=level",
                      "data.split=1000", "model=tiny_random"])).data
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
before = resident()
data = made.load()
order = order_of(data, 0, 16)
taken = order.take(64)
items = [data.train[i] for i in taken]
order.take(len(data.train))  # over the end of an epoch
print(json.dumps({
    "train": len(data.train), "heldout": len(data.heldout), "notes": data.notes,
    "growth": resident() - before, "peak": peak() - before,
    "items": [[e.id, e.prompt[0]["content"], e.answer, e.category] for e in items],
}))
"""


@pytest.mark.slow
def test_a_million_rows_take_little_memory(tmp_path: Path) -> None:
    """300 MiB at most beyond what the libraries take, the file being larger and its items several times that in memory."""
    count = 1_000_000
    path = tmp_path / "million.jsonl"
    with path.open("w") as file:
        for i in range(count):
            question = f"A shop has {i} boxes with {i % 97} pears in each. How many pears are there? " + "Think about it. " * 16
            row = {"prompt": question, "answer": i * (i % 97), "level": f"level {i % 5}", "source": "made for this test"}
            file.write(json.dumps(row) + "\n")
    assert path.stat().st_size > 350 * 2**20
    answer = finish(start(ROOT, str(path), code=MILLION), 600)
    assert answer.code == 0, answer.err
    found = json.loads(answer.out.splitlines()[-1])
    print(found["growth"], found["peak"], file=sys.stderr)
    assert (found["train"], found["heldout"], found["notes"]) == (count - 1000, 1000, [])
    assert found["peak"] < 300
    for name, prompt, answered, level in found["items"]:
        i = int(name.removeprefix("row-")) - 1
        assert prompt.startswith(f"A shop has {i} boxes with {i % 97} pears")
        assert (answered, level) == (str(i * (i % 97)), f"level {i % 5}")
