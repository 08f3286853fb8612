"""What is composed against the dataclass that declares it."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from omegaconf import OmegaConf


def plain_values(node: Any) -> dict[str, Any]:
    """A group of options as they stand in the YAML files, nothing resolved."""
    values = OmegaConf.to_container(node, resolve=False)
    assert isinstance(values, dict)
    return {str(k): v for k, v in values.items()}


def same(cls: type[Any], values: dict[Any, Any], where: str) -> None:
    """The fields of a dataclass are the keys of a mapping, with a meaning and without a default."""
    fields = dataclasses.fields(cls)
    assert {f.name for f in fields} == set(values), f"{where}: {cls.__name__} and the YAML file differ"
    hints = typing.get_type_hints(cls)
    for f in fields:
        assert f.metadata.get("meaning"), f"{cls.__name__}.{f.name}: declare it with option(...)"
        assert f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING, f"{cls.__name__}.{f.name}"
        if dataclasses.is_dataclass(hints[f.name]):
            same(hints[f.name], values[f.name], f"{where}.{f.name}")
