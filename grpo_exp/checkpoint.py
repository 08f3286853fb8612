"""Checkpoints: written whole or not at all, with a manifest; the last few and the best are kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpo_exp.errors import CheckpointError
from grpo_exp.options import option

MANIFEST = "manifest.json"
FILES = ("weights.safetensors", "optimizer.pt", "progress.json")
SOURCE = "source.safetensors"
_CANNOT_WRITE = (OSError, SafetensorError, RuntimeError)
"""What a full disk looks like from Python, from safetensors and from torch.save."""


@dataclass
class CheckpointOptions:
    """When checkpoints are written and which are kept."""

    every: int = option("write one every so many steps, besides the end; 0 for the end alone", low=0)
    keep_last: int = option("keep this many newest ones", low=1)
    keep_best: bool = option("keep the one with the best objective too")
    export: bool = option("at the end, write export/ for transformers or peft to load")


@dataclass(frozen=True)
class State:
    """What a checkpoint holds.

    Attributes:
        weights: the weights that learn, by name.
        optimizer: the optimizer's state_dict.
        progress: counters, data position and the like, as JSON.
        source: tensors of the source of batches, by name; no file is written where there are none.
    """

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    progress: dict[str, Any]
    source: dict[str, Tensor] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of one run, in `<run>/checkpoints/step-000123/`."""

    def __init__(self, folder: Path, options: CheckpointOptions, maximize: bool) -> None:
        self.folder, self.options, self.maximize = folder, options, maximize
        self.best: tuple[int, float] | None = None

    def save(self, step: int, state: State, objective: float | None) -> Path:
        """Write one, then delete those that are no longer kept.

        Raises:
            CheckpointError: it cannot be written, on a full disk for example; those before it are untouched.
        """
        target = self.folder / f"step-{step:06d}"
        temporary = self.folder / f".writing-{step:06d}"
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            _write(state.weights, temporary / "weights.safetensors")
            if state.source:
                _write(state.source, temporary / SOURCE)
            torch.save(state.optimizer, temporary / "optimizer.pt")
            (temporary / "progress.json").write_text(json.dumps(state.progress), encoding="utf-8")
            _seal(temporary, step, objective)
            if target.exists():
                shutil.rmtree(target)
            os.replace(temporary, target)
            _sync(self.folder)
        except _CANNOT_WRITE as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointError(
                f"the checkpoint {target} cannot be written: {error}. Earlier ones are untouched; make room and run again"
            ) from error
        self._rate(step, objective)
        self._delete_old(step)
        return target

    def rate(self, step: int, objective: float | None) -> None:
        """Note what the weights of a checkpoint came to, where that was measured after it was written."""
        manifest = self.folder / f"step-{step:06d}" / MANIFEST
        temporary = manifest.with_name(f".{MANIFEST}")
        try:
            known = json.loads(manifest.read_text(encoding="utf-8"))
            temporary.write_text(json.dumps(known | {"objective": objective}, indent=1), encoding="utf-8")
            _sync(temporary)
            os.replace(temporary, manifest)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{manifest} cannot be written: {error}. Make room and run again") from error
        self._rate(step, objective)

    def check_room(self, weights: Iterable[Tensor], steps: int, source: int = 0) -> list[str]:
        """Whether the disk has room for the checkpoints of `steps` steps: the weights that learn, two moments of each, `source`
        bytes of the source of batches, and the export. The next one is written before the oldest goes.

        Returns:
            a warning where there is room for some of them only.

        Raises:
            CheckpointError: there is none for a single one.
        """
        options, there = self.options, next(path for path in self.folder.absolute().parents if path.is_dir())
        export = sum(x.numel() * x.element_size() for x in weights)
        count = min(options.keep_last + options.keep_best + 1, math.ceil(steps / options.every) if options.every else 1)
        each = 3 * export + source
        wanted = each * max(1, count - len(self.steps())) + export * options.export
        free = shutil.disk_usage(there).free
        told = f"{free / 2**20:,.0f} MiB are free on the disk of {there}"
        if free < each:
            raise CheckpointError(
                f"{told}, and a checkpoint takes {each / 2**20:,.0f}. Make room, or choose another with hydra.run.dir="
            )
        if free >= wanted:
            return []
        return [
            f"{told}, and the checkpoints to be kept take up to {wanted / 2**20:,.0f}; make room, or use "
            "checkpoint.keep_last=1 checkpoint.keep_best=false"
        ]

    def recall(self) -> None:
        """Know the best of the checkpoints that are there, as a run that goes on must; what a kill left half written goes."""
        for half in self.folder.glob(".writing-*"):
            shutil.rmtree(half, ignore_errors=True)
        for step in self.steps():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):  # a damaged one is not the best
                manifest = json.loads((self.folder / f"step-{step:06d}" / MANIFEST).read_text(encoding="utf-8"))
                self._rate(step, manifest["objective"] and float(manifest["objective"]))

    def _rate(self, step: int, objective: float | None) -> None:
        """Remember the best; the first of equals."""
        if objective is not None and (
            self.best is None or ((objective > self.best[1]) == self.maximize and objective != self.best[1])
        ):
            self.best = (step, objective)

    def steps(self) -> list[int]:
        """The steps there is a complete checkpoint of, oldest first."""
        return sorted(int(p.name.removeprefix("step-")) for p in self.folder.glob("step-*") if (p / MANIFEST).is_file())

    def _delete_old(self, now: int) -> None:
        """Later steps are left alone: they are of an earlier run in this folder, and this one has not come so far."""
        done = [step for step in self.steps() if step <= now]
        kept = {0, *done[-self.options.keep_last :]}  # 0 is only there for a run that may have to go back to its start
        if self.options.keep_best and self.best:
            kept.add(self.best[0])
        for step in done:
            if step not in kept:
                shutil.rmtree(self.folder / f"step-{step:06d}", ignore_errors=True)


class Unwritten(Checkpoints):
    """Those of a run that another process writes."""

    def save(self, step: int, state: State, objective: float | None) -> Path:
        return self.folder / f"step-{step:06d}"

    def rate(self, step: int, objective: float | None) -> None: ...

    def recall(self) -> None: ...


def load(folder: Path) -> State:
    """Read one, every file checked against the manifest.

    Raises:
        CheckpointError: a file is missing, truncated or changed.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        extra = [SOURCE] if SOURCE in manifest["files"] else []
        for name in (*FILES, *extra):
            if _sha256(folder / name) != manifest["files"][name]["sha256"]:
                raise CheckpointError(f"{folder / name} does not match its manifest: it is damaged. Use an earlier checkpoint")
        progress = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
        if not isinstance(progress["step"], int):
            raise ValueError(f"progress.json has the step {progress['step']!r:.40}")
        return State(
            load_file(folder / "weights.safetensors"),
            torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True),
            progress,
            load_file(folder / SOURCE) if extra else {},
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError, UnpicklingError) as error:
        raise CheckpointError(f"{folder} is not a complete checkpoint: {error}") from error


def _write(tensors: dict[str, Tensor], file: Path) -> None:
    save_file({name: x.detach().cpu().contiguous() for name, x in tensors.items()}, file)


def write_export(folder: Path, write: Callable[[Path], None]) -> None:
    """Call `write` on a temporary folder that takes the name `folder` once it is whole.

    Raises:
        CheckpointError: it cannot be written.
    """
    temporary = folder.with_name(f".writing-{folder.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        write(temporary)
        _readable(temporary)
        for file in temporary.iterdir():
            _sync(file)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
    except _CANNOT_WRITE as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"{folder} cannot be written: {error}. The checkpoints are untouched; make room and run again"
        ) from error


def _seal(folder: Path, step: int, objective: float | None) -> None:
    """Flush every file to disk and write the manifest last: where it stands, the checkpoint is whole."""
    files = {p.name: {"sha256": _sha256(p), "bytes": p.stat().st_size} for p in sorted(folder.iterdir())}
    _readable(folder)
    for name in files:
        _sync(folder / name)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"step": step, "objective": objective, "files": files}, indent=1), encoding="utf-8")
    _sync(manifest)
    _sync(folder)


def _readable(folder: Path) -> None:
    """Give the weights the permissions of the files beside them: safetensors writes for its owner alone."""
    weights = set(folder.glob("*.safetensors"))
    for mode in [file.stat().st_mode for file in folder.iterdir() if file not in weights][:1]:
        for file in weights:
            file.chmod(mode)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
