"""Training items kept by a model's own pass rate: what evaluate writes, read back for whatever order the items are in."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, call

from grpo_exp.compose import compose
from grpo_exp.config import build
from grpo_exp.errors import ConfigError, DataError
from grpo_exp.run import load_data

ITEMS = [f"{i} + {i} = ?" for i in range(20)]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("rows.jsonl", [{"prompt": text, "answer": 2 * i} for i, text in enumerate(ITEMS)])


def write(name: str, rows: list[dict[str, Any]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def load(*words: str) -> Any:
    return load_data(build(compose(["data=file", "data.path=rows.jsonl", "data.split=4", "model=tiny_random", *words])))


def measured(rate: Any) -> None:
    """An eval.jsonl in which the i-th question was answered with a rate of `rate(i)`, by four samples."""
    from grpo_exp.rows.marks import item_key

    data = load()
    rows = [
        {"step": 0, "item": item_key(item), "outcome": float(sample < 4 * rate(int(item.answer) // 2))}
        for item in [*data.train, *data.heldout]
        for sample in range(4)
    ]
    write("eval.jsonl", rows)


KEPT = ["data.pass_rates=eval.jsonl", "data.keep_between=[0.1,0.9]"]


def test_items_are_known_by_what_they_say() -> None:
    """Other rows beside them, another order, other ids, another split: the rate belongs to the item."""
    measured(lambda i: (0, 0.25, 0.75, 1)[i % 4])
    fitting = {2 * i for i in range(20) if i % 4 in (1, 2)}
    data = load(*KEPT)
    assert {int(item.answer) for item in data.train} == fitting & {int(item.answer) for item in load().train}
    assert len(data.heldout) == 4
    rows = [{"id": f"x{i}", "prompt": text, "answer": str(2 * i), "level": "a"} for i, text in enumerate(ITEMS)]
    random.Random(0).shuffle(rows)
    write("rows.jsonl", rows)
    again = load(*KEPT, "data.split_seed=5", "data.category=level")
    assert {int(item.answer) for item in again.train} == fitting & {
        int(item.answer) for item in load("data.split_seed=5").train
    }


def test_the_bounds_are_included_and_the_counts_told() -> None:
    measured(lambda i: (0, 0.25, 0.75, 1)[i % 4])
    write("rows.jsonl", [{"prompt": text, "answer": 2 * i} for i, text in enumerate([*ITEMS, "new", "newer"])])
    data = load("data.pass_rates=eval.jsonl", "data.keep_between=[0.25,0.75]", "data.split=1")
    assert len(data.train) in (9, 10)
    note = data.notes[-1]
    assert note.startswith(
        f"{len(data.train)} of 21 training items kept: pass rate from 0.25 to 0.75 in eval.jsonl; left out: "
    )
    assert sum(map(int, [word for word in note.rpartition("left out: ")[2].split() if word.isdigit()])) == 21 - len(data.train)


def test_the_last_evaluation_counts() -> None:
    measured(lambda i: 1)
    rows = [json.loads(line) for line in Path("eval.jsonl").read_text().splitlines()]
    write("eval.jsonl", [*rows, *({**row, "step": 50, "outcome": float(n % 2)} for n, row in enumerate(rows))])
    assert len(load(*KEPT).train) == 16


def test_streamed_items_are_kept_alike() -> None:
    measured(lambda i: (0, 0.25, 0.75, 1)[i % 4])
    assert list(load(*KEPT, "data.stream=always").train) == load(*KEPT).train


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.keep_between=[0.1,0.9]"], "data.pass_rates=None: they belong together"),
        (["data.pass_rates=eval.jsonl"], "they belong together. python -m grpo_exp evaluate MODEL split=train"),
        (["data.pass_rates=eval.jsonl", "data.keep_between=[0.9,0.1]"], "the smaller first"),
        (["data.pass_rates=eval.jsonl", "data.keep_between=[0.1]"], "expected two shares"),
        (["data.pass_rates=eval.jsonl", "data.keep_between=[0,2]"], "expected two shares"),
        (["data.pass_rates=eval.jsonl", "data.keep_between=0.5"], "data.keep_between=0.5: expected a list of numbers or null"),
    ],
)
def test_wrong_options(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(compose(["data=file", "model=tiny_random", *words]))
    assert message in str(caught.value)


def test_files_that_say_nothing_of_the_items() -> None:
    with pytest.raises(DataError, match=r"data.pass_rates=eval.jsonl: no such file"):
        load(*KEPT)
    write("eval.jsonl", [{"step": 0, "id": "row-1", "outcome": 1.0}])
    with pytest.raises(DataError, match=r"eval.jsonl:1: item=None: expected 16 hexadecimal digits"):
        load(*KEPT)
    write("eval.jsonl", [{"item": "0" * 16, "outcome": "yes"}])
    with pytest.raises(DataError, match=r"eval.jsonl:1: outcome=yes: expected a number"):
        load(*KEPT)
    write("eval.jsonl", [{"item": "0" * 16, "outcome": 1.0}])
    with pytest.raises(DataError, match=r"none of the 16 training items of data=file is among the 1 that it measured"):
        load(*KEPT)
    measured(lambda i: 1)
    with pytest.raises(DataError, match=r"no training item is left of 16: 16 above, 0 below, 0 not measured"):
        load(*KEPT)
    Path("eval.jsonl").write_text("")
    with pytest.raises(DataError, match="it is empty"):
        load(*KEPT)


def test_evaluate_writes_what_training_reads(capsys: pytest.CaptureFixture[str]) -> None:
    """The embedded model asked its training items, and a run on those that it gets right sometimes."""
    data = ["data.train=12", "data.heldout=4"]
    answer = call(capsys, "evaluate", "tiny", *data, "split=train", "eval.samples=4", "hydra.run.dir=rates")
    assert answer.code == 0, answer.err
    assert "12 training items of arithmetic" in answer.out
    assert "data.pass_rates=rates/eval.jsonl data.keep_between=[0.1,0.9]" in answer.out
    rows = [json.loads(line) for line in Path("rates/eval.jsonl").read_text().splitlines()]
    assert {row["id"] for row in rows} == {f"train-{i}" for i in range(12)}
    assert json.loads(Path("rates/evaluation.json").read_text())["split"] == "train"
    sometimes = {row["id"] for row in rows if 0.1 <= sum(r["outcome"] for r in rows if r["id"] == row["id"]) / 4 <= 0.9}
    assert sometimes
    small = [word for word in SMALL if not word.startswith("data.")]
    words = [*small, *data, "data.pass_rates=rates/eval.jsonl", "data.keep_between=[0.1,0.9]", "hydra.run.dir=run"]
    assert call(capsys, *words).code == 0
    card = json.loads(Path("run/run.json").read_text())
    assert card["data"]["train"] == len(sometimes)
    assert any(f"{len(sometimes)} of 12 training items kept" in note for note in card["data"]["notes"])
    assert {json.loads(line)["id"] for line in Path("run/samples.jsonl").read_text().splitlines()} <= sometimes


def test_evaluate_knows_two_splits(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "evaluate", "tiny", "split=trian")
    assert answer.code == 2 and "split=trian: expected heldout or train. Did you mean 'train'?" in answer.err
