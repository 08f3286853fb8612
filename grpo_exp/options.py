"""Declare an option once: its name and type as a dataclass field, its meaning and valid range here, its value in YAML.

`config.py` checks every value against what is declared, the README's table and `--help` are written from it. An option has
no default in Python: the YAML file that belongs to the dataclass gives it.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Sequence
from typing import Any

from grpo_exp.errors import ConfigError, nearest


def option(
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """A dataclass field for one option.

    Args:
        meaning: one line for people, with the unit.
        low, high: smallest and largest value allowed, both included.
        above: the value must be greater than this.
        choices: the values allowed, for a string option.
    """
    return dataclasses.field(metadata={"meaning": meaning, "low": low, "high": high, "above": above, "choices": tuple(choices)})


def load_class(package: str, name: str, base: type, key: str) -> type:
    """The one subclass of `base` that the module `package.name` defines: an algorithm, a reward, a data source, an engine.

    Adding a file to the package is all the registration there is. `key` is the option that named it, for the message.

    Raises:
        ConfigError: no such module; the nearest name is suggested.
    """
    folder = importlib.import_module(package)
    names = sorted(m.name for m in pkgutil.iter_modules(folder.__path__) if m.name != "base")
    classes = _classes(f"{package}.{name}", base) if name in names else []
    if not classes:
        valid = [other for other in names if _classes(f"{package}.{other}", base)]
        raise ConfigError(f"{key}={name!r}: no such choice. Valid: {', '.join(valid)}.{nearest(name, valid)}")
    if len(classes) > 1:
        raise TypeError(f"{package}.{name} must define one subclass of {base.__name__}, found {len(classes)}")
    return classes[0]


def _classes(module: str, base: type) -> list[type]:
    """The subclasses of `base` that a module defines and that are whole; what it shares with other files is abstract."""
    found = vars(importlib.import_module(module)).values()
    return [
        c for c in found if isinstance(c, type) and issubclass(c, base) and c.__module__ == module and not inspect.isabstract(c)
    ]
