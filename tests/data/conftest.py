"""Data sources built from their YAML, as a run builds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from grpo_exp.data.base import DataSource
from grpo_exp.options import load_class

ROOT = Path(__file__).parents[2]


@cache
def composed(profile: str) -> DictConfig:
    """What the root and the profile's file say of `data`."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return OmegaConf.merge(OmegaConf.load(ROOT / "conf" / "config.yaml").data, compose(f"data/{profile}").data)


@pytest.fixture
def source() -> Callable[..., Any]:
    """`source("file", path=..., split=2)`: the data profile with options changed."""

    def build(profile: str, **options: Any) -> Any:
        values = composed(profile)
        cls = load_class("grpo_exp.data", values.kind, DataSource, "data.kind")
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(cls), values, options))

    return build


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """`write(name, rows)`: a .jsonl or .json file of rows, or of bytes or text as given; returns its path."""

    def to_file(name: str, content: Any) -> str:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
        else:
            path.write_text(json.dumps(content), encoding="utf-8")
        return str(path)

    return to_file


@pytest.fixture
def sums() -> list[dict[str, Any]]:
    """Ten rows with an id, a question and an answer."""
    return [{"id": f"s{i}", "question": f"{i} + 1 = ?", "answer": i + 1} for i in range(10)]


@pytest.fixture
def shared() -> Path:
    """The folder of real data beside the project; the test is skipped where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}")
    return folder
