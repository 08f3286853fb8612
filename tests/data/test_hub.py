from __future__ import annotations

import sys
import types

import pytest

from grpo_exp.errors import DataError

QA = {"path": "someone/sums", "prompt": "question", "answer": "answer"}


@pytest.fixture
def hub(monkeypatch, sums):
    """A stand-in for the datasets library; records how it is called."""
    calls = []

    def load_dataset(path, name=None, split=None, revision=None):
        calls.append((path, name, split, revision))
        if split not in ("train", "test"):
            raise ValueError(f'Unknown split "{split}".\nShould be one of [train, test].')
        return sums if split == "train" else [{"question": "9 + 9 = ?", "answer": 18.0}]

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_rows_are_mapped_as_those_of_a_file(source, hub, write, sums):
    data = source("hub", subset="main", revision="abc123", split=3, **QA).load()
    assert hub == [("someone/sums", "main", "train", "abc123")]
    same = source("file", **{**QA, "path": write("r.jsonl", sums)}, split=3).load()
    assert (data.train, data.heldout, data.sha256) == (same.train, same.heldout, same.sha256)
    assert "hub someone/sums/main train at abc123: 7 to train on, 3 held out" in data.source


def test_split_may_name_another_split(source, hub):
    data = source("hub", split="test", **QA).load()
    assert len(data.train) == 10
    assert [(i.id, i.answer) for i in data.heldout] == [("heldout-row-1", "18")]


def test_faults_name_the_row(source, hub, sums):
    del sums[2]["answer"]
    with pytest.raises(DataError, match=r"someone/sums train: row 3: no field 'answer'"):
        source("hub", **QA).load()


def test_failure_to_load_is_one_message(source, hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError) as caught:
        source("hub", hub_split="dev", **QA).load()
    message = str(caught.value)
    assert message.isprintable()
    for part in ("data.path=someone/sums", "'dev'", "Should be one of [train, test]", "HF_HUB_OFFLINE is set", "data=file"):
        assert part in message


def test_without_the_library(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'grpo-exp\[hub\]'"):
        source("hub", **QA).load()
