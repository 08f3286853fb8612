"""Values against an options dataclass: names, types, ranges and choices, each error in one message that says what to write."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo_exp.errors import ConfigError, nearest

T = TypeVar("T")
_SCALARS = (str, int, float, bool)
_hints: Callable[[Any], dict[str, Any]] = cache(typing.get_type_hints)
_empty: Callable[[Any], DictConfig] = cache(OmegaConf.structured)  # merge() copies it


def make(cls: type[T], values: Any, key: str) -> T:
    """Call an options dataclass with values, after checking names, types, ranges and choices.

    Raises:
        ConfigError: the first that is wrong.
    """
    prepared = _prepared(cls, values, key)
    try:
        typed = OmegaConf.merge(_empty(cls), prepared)
        converted = OmegaConf.to_container(typed)
        assert isinstance(converted, dict)
        _check_ranges(cls, converted, key)
        return OmegaConf.to_object(typed)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        where = str(getattr(error, "full_key", "") or "")
        field, value = _lookup(cls, values, where)
        raise ConfigError(f"{join(key, where)}={shown(value)}: expected {_wanted(field)}{_hint(field, value)}") from error


def _prepared(cls: type[Any], values: Any, key: str) -> dict[str, Any]:
    """The values for OmegaConf, without those that it would bend: 2.5 for a whole number, 3 for true, a list for a text."""
    if not isinstance(values, dict):
        raise ConfigError(f"{key}={shown(values)}: expected a group of options: {', '.join(names(cls))}")
    refuse_unknown(values, names(cls), key)
    missing = [name for name in names(cls) if name not in values]
    if missing:
        raise ConfigError(f"{join(key, missing[0])} has no value; its YAML file must give one")
    return {f.name: _one(f, _hints(cls)[f.name], values[f.name], join(key, f.name)) for f in dataclasses.fields(cls)}


def _one(field: dataclasses.Field[Any], kind: Any, value: Any, where: str) -> Any:
    """One value, prepared."""
    if dataclasses.is_dataclass(kind):
        return _prepared(kind, value, where)  # type: ignore[arg-type]
    if value == "???":
        raise ConfigError(f"{where} must be given: {field.metadata.get('meaning', '')}")
    kinds = {kind, *(typing.get_args(kind) if typing.get_origin(kind) not in (list, dict) else ())}
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if int in kinds and isinstance(value, float) and value.is_integer():
        value = int(value)
    wrong = (
        (int in kinds and isinstance(value, float))
        or (number and {int, float} & kinds and not -(2**63) <= value < 2**63 and abs(value) != math.inf)
        or (number and bool in kinds)
        or (typing.get_origin(kind) is dict and not isinstance(value, dict))
        or (typing.get_origin(kind) is list and not _is_list(value, typing.get_args(kind)))
    )
    if wrong:
        raise ConfigError(f"{where}={shown(value)}: expected {_wanted(field)}")
    return value


def _is_list(value: Any, of: tuple[Any, ...]) -> bool:
    """Whether this is a list of lists where such a one is wanted, otherwise of single values, which OmegaConf would bend."""
    nested = typing.get_origin(of[0]) is list
    return isinstance(value, list) and all(isinstance(v, list) if nested else isinstance(v, _SCALARS) for v in value)


def _check_ranges(cls: type[Any], values: dict[Any, Any], key: str) -> None:
    for field in dataclasses.fields(cls):
        value, where, meta = values[field.name], join(key, field.name), field.metadata
        nested = _hints(cls)[field.name]
        if dataclasses.is_dataclass(nested) and isinstance(value, dict):
            _check_ranges(nested, value, where)  # type: ignore[arg-type]
        if isinstance(value, str) and meta.get("choices") and value not in meta["choices"]:
            choices = meta["choices"]
            raise ConfigError(
                f"{where}={value!r}: expected {', '.join(choices)}{_hint(field, value)}.{nearest(value, choices)}"
            )
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            low, high, above = (meta.get(k) for k in ("low", "high", "above"))
            if (
                not math.isfinite(value)
                or (low is not None and value < low)
                or (high is not None and value > high)
                or (above is not None and value <= above)
            ):
                raise ConfigError(f"{where}={value:.12g}: expected {_wanted(field)}")


def _hint(field: dataclasses.Field[Any] | None, value: Any) -> str:
    """For `off` in a YAML file without quotes."""
    if field is not None and value in ("False", "True", False, True) and "off" in (field.metadata.get("choices") or ()):
        return f'; YAML reads an unquoted off as false, so write "{"off" if value in ("False", False) else "on"}" in quotes'
    return ""


def takes(field: dataclasses.Field[Any]) -> str:
    """What may be written for a field: `a number at least 0`, `group, batch, none`, `text or null`."""
    kinds = {
        "float": "a number",
        "int": "a whole number",
        "bool": "true or false",
        "str": "text",
        "list[str]": "a list of texts",
        "list[float]": "a list of numbers",
        "list[list[str]]": "a list of lists of texts",
    }
    kind, _, optional = str(field.type).partition(" | ")
    meta = field.metadata
    low, above, high = (meta.get(name) for name in ("low", "above", "high"))
    if low is not None and high is not None:
        bounds = f"from {low:.12g} to {high:.12g}"
    else:
        limits = (("at least", low), ("greater than", above), ("at most", high))
        bounds = " and ".join(f"{words} {limit:.12g}" for words, limit in limits if limit is not None)
    text = ", ".join(meta.get("choices") or ()) or kinds.get(kind, "a value")
    return " ".join(part for part in (text, bounds, "or null" if optional else "") if part)


def _wanted(field: dataclasses.Field[Any] | None) -> str:
    if field is None:
        return "another kind of value"
    return f"{takes(field)} ({field.metadata.get('meaning', '')})"


def _lookup(cls: type[Any], values: Any, path: str) -> tuple[dataclasses.Field[Any] | None, Any]:
    """The field and the given value at a dotted path below an options class."""
    field: dataclasses.Field[Any] | None = None
    for name in path.replace("[", ".").replace("]", "").split("."):
        if dataclasses.is_dataclass(cls) and name in (named := {f.name: f for f in dataclasses.fields(cls)}):
            field, cls = named[name], _hints(cls)[name]
        if isinstance(values, dict):
            values = values.get(name)
    return field, values


def refuse_unknown(values: dict[str, Any], valid: list[str], key: str) -> None:
    for name in values:
        if name not in valid:
            raise ConfigError(f"{join(key, str(name))}: no such option. Valid: {', '.join(valid)}.{nearest(str(name), valid)}")


def names(cls: type[Any]) -> list[str]:
    return [f.name for f in dataclasses.fields(cls)]


def join(key: str, name: str) -> str:
    return f"{key}.{name}" if key and name else key or name


def shown(value: Any) -> str:
    """A value as one would write it, shortened."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    if isinstance(value, str):
        text = repr(value)
    elif value is None or isinstance(value, bool):
        text = "null" if value is None else str(value).lower()
    else:
        text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
