"""Checkpoints as they lie on the disk: whole or not there, checked when read, pruned without losing what is wanted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_exp.checkpoint import CheckpointOptions, Checkpoints, State, load, write_export
from grpo_exp.errors import CheckpointError


def trained(size: int = 3) -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layer = torch.nn.Linear(size, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.ones(size)).square().sum().backward()
        optimizer.step()
    return layer, optimizer


def state(step: int = 1, size: int = 3) -> State:
    layer, optimizer = trained(size)
    return State(
        dict(layer.named_parameters()), optimizer.state_dict(), {"step": step, "source": {"position": 7, "before": [1, 2]}}
    )


def checkpoints(folder: Path, maximize: bool = True, **changes: Any) -> Checkpoints:
    options = {"every": 1, "keep_last": 2, "keep_best": True, "export": False} | changes
    return Checkpoints(folder / "checkpoints", CheckpointOptions(**options), maximize)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing beyond so many bytes fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_tensors_of_the_source_have_a_file_that_is_checked_where_there_are_any(tmp_path: Path) -> None:
    made = state()
    tensors = {"0.mask": torch.tensor([[True, False]]), "0.tokens": torch.arange(6).reshape(2, 3).T}
    folder = checkpoints(tmp_path).save(1, dataclasses.replace(made, source=tensors), None)
    assert "source.safetensors" in json.loads((folder / "manifest.json").read_text())["files"]
    read = load(folder).source
    assert read.keys() == tensors.keys() and all(torch.equal(read[name], x) for name, x in tensors.items())
    without = checkpoints(tmp_path / "other").save(1, made, None)
    assert not (without / "source.safetensors").exists() and load(without).source == {}
    (folder / "source.safetensors").write_bytes((without / "weights.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=r"source\.safetensors does not match"):
        load(folder)
    (folder / "source.safetensors").unlink()
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        load(folder)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    layer, optimizer = trained()
    folder = checkpoints(tmp_path).save(123, State(dict(layer.named_parameters()), optimizer.state_dict(), {"step": 123}), 0.5)
    assert folder == tmp_path / "checkpoints" / "step-000123"
    read = load(folder)
    assert read.progress == {"step": 123}
    again = torch.nn.Linear(3, 2)
    again.load_state_dict(read.weights)
    resumed = torch.optim.AdamW(again.parameters(), lr=7.0)
    resumed.load_state_dict(read.optimizer)
    for model, steps in ((layer, optimizer), (again, resumed)):  # both go on in the same way, bit for bit
        steps.zero_grad()
        model(torch.ones(3)).square().sum().backward()
        steps.step()
    assert torch.equal(layer.weight, again.weight) and torch.equal(layer.bias, again.bias)


def test_manifest_names_every_file_with_hash_and_size(tmp_path: Path) -> None:
    folder = checkpoints(tmp_path).save(5, state(5), 0.25)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["step"], manifest["objective"]) == (5, 0.25)
    assert {p.name for p in folder.iterdir()} == {*manifest["files"], "manifest.json"}
    assert set(manifest["files"]) == {"weights.safetensors", "optimizer.pt", "progress.json"}
    for name, facts in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert facts == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.pt", "progress.json"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "empty"])
def test_damage_is_found(tmp_path: Path, name: str, damage: str) -> None:
    folder = checkpoints(tmp_path).save(5, state(5), None)
    path = folder / name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"truncated": data[:-3], "changed": data[:-1] + bytes([data[-1] ^ 1]), "empty": b""}[damage])
    with pytest.raises(CheckpointError, match="step-000005"):
        load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"files": {}}', '{"files": {"weights.safetensors": 3}}'])
def test_a_manifest_that_is_damaged_is_an_error(tmp_path: Path, text: str) -> None:
    folder = checkpoints(tmp_path).save(5, state(5), None)
    (folder / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="step-000005"):
        load(folder)


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("evil"),)


def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a manifest that fits, as an attacker would write it."""
    monkeypatch.chdir(tmp_path)
    folder = checkpoints(tmp_path).save(5, state(5), None)
    torch.save({"state": Evil()}, folder / "optimizer.pt")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["optimizer.pt"]["sha256"] = hashlib.sha256((folder / "optimizer.pt").read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError):
        load(folder)
    assert not (tmp_path / "evil").exists()


def test_no_such_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        load(tmp_path / "step-000009")


# ---- which are kept


def kept(made: Checkpoints, objectives: list[float | None]) -> list[int]:
    for step, objective in enumerate(objectives, 1):
        made.save(step, state(step), objective)
    return made.steps()


@pytest.mark.parametrize(
    ("changes", "maximize", "objectives", "expected"),
    [
        ({}, True, [0.1, 0.9, 0.2, 0.3, 0.4], [2, 4, 5]),
        ({}, False, [0.5, 0.1, 0.2, 0.3, 0.4], [2, 4, 5]),
        ({}, True, [0.5, 0.5, 0.5, 0.5], [1, 3, 4]),  # the earliest of equals
        ({}, True, [0.1, 0.2, 0.3, 0.4], [3, 4]),
        ({}, True, [None, 0.0, None, None, None], [2, 4, 5]),  # not every step is evaluated; 0 is a value
        ({}, True, [None, None, None], [2, 3]),
        ({"keep_best": False}, True, [0.9, 0.1, 0.2], [2, 3]),
        ({"keep_last": 1, "keep_best": False}, True, [0.9, 0.1, 0.2], [3]),
        ({"keep_last": 10}, True, [0.9, 0.1, 0.2], [1, 2, 3]),
    ],
)
def test_the_newest_and_the_best_are_kept(
    tmp_path: Path, changes: dict[str, Any], maximize: bool, objectives: list[float | None], expected: list[int]
) -> None:
    made = checkpoints(tmp_path, maximize, **changes)
    assert kept(made, objectives) == expected
    for step in expected:
        assert load(made.folder / f"step-{step:06d}").progress["step"] == step
    assert sorted(p.name for p in made.folder.iterdir()) == [f"step-{step:06d}" for step in expected]


def test_a_folder_without_a_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    made = checkpoints(tmp_path)
    made.save(1, state(1), None)
    (made.folder / "step-000002").mkdir()
    (made.folder / "step-000002" / "weights.safetensors").write_bytes(b"half")
    (made.folder / ".writing-000003").mkdir()
    assert made.steps() == [1]
    made.save(2, state(2), None)  # takes the place of what a killed process left
    made.save(3, state(3), None)
    assert made.steps() == [2, 3] and load(made.folder / "step-000002").progress["step"] == 2


def test_a_run_that_starts_over_keeps_its_own_checkpoints(tmp_path: Path) -> None:
    """An earlier run in the folder was killed after step 50: the new one's first must not be taken for the oldest of three."""
    earlier = checkpoints(tmp_path)
    for step in (40, 50):
        earlier.save(step, state(step), None)
    again = checkpoints(tmp_path)
    again.save(10, state(10), None)
    assert again.steps() == [10, 40, 50]
    for step in (20, 30, 40, 50, 60):
        again.save(step, state(step), None)
    assert again.steps() == [50, 60]


# ---- a full disk


@pytest.mark.parametrize("file", ["weights", "optimizer", "progress"])
def test_a_full_disk_leaves_the_checkpoints_before_untouched(tmp_path: Path, file: str) -> None:
    made = checkpoints(tmp_path)
    folder = made.save(1, state(1), 0.5)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    large = state(2)
    if file == "weights":
        large = State({"w": torch.zeros(100_000)}, large.optimizer, large.progress)
    elif file == "optimizer":
        large = State(large.weights, {"m": torch.zeros(100_000)}, large.progress)
    else:
        large = State(large.weights, large.optimizer, {"text": "x" * 100_000})
    with largest_file(50_000), pytest.raises(CheckpointError, match="make room"):
        made.save(2, large, 0.9)
    assert [p.name for p in made.folder.iterdir()] == ["step-000001"]
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert made.best == (1, 0.5)
    assert made.save(2, large, 0.9).is_dir()  # there is room again


@pytest.mark.parametrize(
    ("free", "changes", "there", "steps", "said"),
    [
        (11, {}, 0, 9, CheckpointError),  # weights of 4 MiB and two moments of each
        (13, {}, 0, 9, "13 MiB are free"),
        (47, {}, 0, 9, "take up to 48;"),  # the last two, the best and the next
        (49, {}, 0, 9, None),
        (25, {}, 3, 9, None),  # the two that are kept are there already
        (13, {"keep_last": 1, "keep_best": False}, 0, 9, "take up to"),
        (25, {"keep_last": 1, "keep_best": False}, 0, 9, None),
        (25, {"keep_last": 1, "keep_best": False, "export": True}, 0, 9, "take up to"),
        (29, {"keep_last": 1, "keep_best": False, "export": True}, 0, 9, None),
        (13, {"every": 0}, 0, 9, None),  # the end's alone
        (25, {"every": 5}, 0, 9, None),
    ],
)
def test_whether_there_is_room_is_known_before_the_start(
    tmp_path: Path,
    free: int,
    changes: dict[str, Any],
    there: int,
    steps: int,
    said: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = checkpoints(tmp_path, **changes)
    for step in range(there):
        made.save(step, state(step), None)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, free * 2**20))  # type: ignore[attr-defined]
    weights = [torch.zeros(2**19), torch.zeros(2**19)]
    if said is CheckpointError:
        with pytest.raises(CheckpointError, match=rf"MiB are free on the disk of {tmp_path}.*hydra\.run\.dir="):
            made.check_room(weights, steps)
    else:
        assert bool(found := made.check_room(weights, steps)) == bool(said) and all(said in text for text in found)
        with pytest.raises(CheckpointError, match=rf"a checkpoint takes {free + 1}\."):
            made.check_room(weights, steps, (free + 1 - 12) * 2**20)  # more that goes into each


def test_an_objective_measured_later_is_noted_and_decides_which_is_the_best(tmp_path: Path) -> None:
    made = checkpoints(tmp_path)
    for step, objective in ((1, 0.5), (2, None)):
        made.save(step, state(step), objective)
    made.rate(2, 0.9)
    assert made.best == (2, 0.9) and load(made.folder / "step-000002").progress["step"] == 2
    again = checkpoints(tmp_path)
    again.recall()
    assert again.best == (2, 0.9)
    assert sorted(p.name for p in (made.folder / "step-000002").iterdir()) == sorted(
        p.name for p in (made.folder / "step-000001").iterdir()
    )


def test_what_a_kill_left_half_written_goes_when_the_run_goes_on(tmp_path: Path) -> None:
    made = checkpoints(tmp_path)
    made.save(1, state(1), None)
    (made.folder / ".writing-000002").mkdir()
    (made.folder / ".writing-000002" / "weights.safetensors").write_bytes(bytes(100))
    checkpoints(tmp_path).recall()
    assert [p.name for p in made.folder.iterdir()] == ["step-000001"]


def test_an_export_is_whole_or_the_old_one(tmp_path: Path) -> None:
    def small(folder: Path) -> None:
        folder.mkdir()
        (folder / "a").write_text("old")

    def large(folder: Path) -> None:
        folder.mkdir()
        (folder / "a").write_text("new")
        torch.save(torch.zeros(100_000), folder / "b")

    export = tmp_path / "export"
    write_export(export, small)
    with largest_file(50_000), pytest.raises(CheckpointError, match="make room"):
        write_export(export, large)
    assert (export / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["export"]
    write_export(export, large)
    assert (export / "a").read_text() == "new"


def test_weights_can_be_read_by_whoever_can_read_the_rest(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        save_file({"w": torch.zeros(1)}, folder / "model.safetensors")
        (folder / "model.safetensors").chmod(0o600)

    write_export(tmp_path / "export", write)
    modes = {f.name: f.stat().st_mode for f in (tmp_path / "export").iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]
