"""The files of a run's folder, as a reader with a JSON parser and a text editor sees them."""

from __future__ import annotations

import json
import math
import os
import resource
from pathlib import Path

import pytest
import torch
import yaml

from grpo_exp.errors import DataError, RunError
from grpo_exp.track.files import FileTracker, append, make_folder, plain, read_jsonl, write_whole


def started(folder: Path, **card: object) -> FileTracker:
    tracker = FileTracker(folder)
    tracker.start({"name": "a", "status": "running", **card}, {"beta": 0.04, "algo": {"name": "grpo"}})
    return tracker


def test_rows_have_the_contract_keys_first_and_in_order(tmp_path: Path) -> None:
    tracker = started(tmp_path)
    tracker.metrics({"reward/mean": 0.5, "seconds": 1.5, "kl/mean": 0.0, "kind": "train", "tokens": 10, "step": 1})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert list(json.loads(line)) == ["step", "kind", "tokens", "seconds", "reward/mean", "kl/mean"]


def test_each_row_is_one_physical_line_whatever_the_text(tmp_path: Path) -> None:
    nasty = 'a\nb\r\u2028\u2029\x85\x0b\x1b[31m\x00\t"}{\ud800é😀'
    tracker = started(tmp_path)
    tracker.samples([{"step": 1, "completion": nasty}, {"step": 1, "completion": "b"}])
    raw = (tmp_path / "samples.jsonl").read_bytes()
    assert raw.isascii() and len(raw.decode().splitlines()) == 2
    first, _ = read_jsonl(tmp_path / "samples.jsonl")
    assert first["completion"] == nasty.replace("\ud800", "\ufffd")


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    tracker = started(tmp_path)
    tracker.metrics(
        {"step": 1, "a": math.nan, "b": math.inf, "c": torch.tensor(float("nan")), "d": torch.tensor(2.5), "e": True}
    )
    (row,) = read_jsonl(tmp_path / "metrics.jsonl")
    assert row == {"step": 1, "a": None, "b": None, "c": None, "d": 2.5, "e": True}
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()


def test_rows_are_on_disk_before_the_run_ends(tmp_path: Path) -> None:
    tracker = started(tmp_path)
    for step in range(3):
        tracker.metrics({"step": step})
        assert len(list(read_jsonl(tmp_path / "metrics.jsonl"))) == step + 1
    assert (tmp_path / "eval.jsonl").read_bytes() == b""  # there from the start, also where nothing was evaluated


def test_card_and_config(tmp_path: Path) -> None:
    tracker = started(tmp_path, objective=math.nan)
    assert json.loads((tmp_path / "run.json").read_text()) == {"name": "a", "status": "running", "objective": None}
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config == {"beta": 0.04, "algo": {"name": "grpo"}} and list(config) == ["beta", "algo"]
    tracker.note("two rows skipped")
    tracker.finish({"name": "a", "status": "finished"})
    ended = json.loads((tmp_path / "run.json").read_text())
    assert ended["status"] == "finished" and ended["notes"] == [{"level": "note", "text": "two rows skipped"}]
    assert not list(tmp_path.glob(".*"))


def test_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3, "rew')
    assert [row["step"] for row in read_jsonl(path)] == [1, 2]
    path.write_bytes(b'{"step": 1}\n{"step": 2}')  # whole, only its newline is missing
    assert [row["step"] for row in read_jsonl(path)] == [1, 2]


def test_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: not JSON"):
        list(read_jsonl(path))
    path.write_bytes(b"[1]\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl:1: expected a JSON object, found list"):
        list(read_jsonl(path))
    with pytest.raises(DataError, match="cannot be read"):
        list(read_jsonl(tmp_path / "missing.jsonl"))


def test_resuming_drops_what_came_after_the_checkpoint_and_the_torn_line(tmp_path: Path) -> None:
    tracker = started(tmp_path)
    for step in range(1, 6):
        tracker.metrics({"step": step, "reward/mean": 0.1 * step})
        tracker.samples([{"step": step}])
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 6, "rew')
    again = started(tmp_path, resumed_from=3)
    for step in range(4, 6):
        again.metrics({"step": step, "reward/mean": 0.1 * step})
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole
    assert [row["step"] for row in read_jsonl(tmp_path / "samples.jsonl")] == [1, 2, 3]


def test_an_evaluation_that_the_checkpoint_does_not_know_is_dropped_too(tmp_path: Path) -> None:
    """It came after the checkpoint of the same step, and the run that goes on does it again."""
    tracker = started(tmp_path)
    for step in (1, 2):
        tracker.metrics({"step": step, "kind": "train"})
        tracker.metrics({"step": step, "kind": "eval"})
        tracker.evaluations([{"step": step}])
        tracker.samples([{"step": step}])
    started(tmp_path, resumed_from=2, resumed_evaluation=1)
    rows = [(row["step"], row["kind"]) for row in read_jsonl(tmp_path / "metrics.jsonl")]
    assert rows == [(1, "train"), (1, "eval"), (2, "train")]
    assert [row["step"] for row in read_jsonl(tmp_path / "eval.jsonl")] == [1]
    assert [row["step"] for row in read_jsonl(tmp_path / "samples.jsonl")] == [1, 2]


def test_starting_anew_in_a_used_folder_moves_the_earlier_run_aside(tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        started(tmp_path, name=name).metrics({"step": 1, "run": name})
    assert [row["run"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == ["third"]
    assert [row["run"] for row in read_jsonl(tmp_path / "earlier-1" / "metrics.jsonl")] == ["first"]
    assert json.loads((tmp_path / "earlier-2" / "run.json").read_text())["name"] == "second"


def test_full_disk_names_the_file_and_the_way_out(tmp_path: Path) -> None:
    tracker = started(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"metrics\.jsonl: cannot be written \(No space left.*Make room"):
        tracker.metrics({"step": 1})


def test_line_that_does_not_fit_is_cut_off_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, [{"step": 1}])
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, hard))  # a write past this comes back short, then fails
    try:
        with pytest.raises(RunError, match="cannot be written"):
            append(path, [{"step": 2, "reward/mean": 0.5}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert path.read_bytes() == before


def test_failed_replacement_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    write_whole(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"run\.json.*No space left on device"):
        write_whole(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_folder_that_cannot_be_written_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"hydra\.run\.dir"):
        make_folder(tmp_path / "file" / "run")


def test_plain_turns_anything_into_json_types() -> None:
    value = {"path": Path("a/b"), 3: (1, {2.5}), "tensor": torch.tensor([1, 2]), "none": None}
    assert plain(value) == {"path": "a/b", "3": [1, [2.5]], "tensor": [1, 2], "none": None}
