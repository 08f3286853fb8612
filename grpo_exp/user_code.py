"""A function or class of the user's own, from a Python file that is named as `file.py:name`.

The file runs with the rights of the training run: it is trusted code.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_exp.errors import ConfigError, nearest
from grpo_exp.paths import expanded


def load(path: str | None) -> Callable[..., Any]:
    """The function that `file.py:name` names, or an object of the class.

    Its folder is put at the end of `sys.path`, so that it may import its neighbours.

    Raises:
        ConfigError: no path or colon, no such file or function, or the file raises when it is run.
    """
    if path is None:
        raise ConfigError("reward.path=null: the custom reward needs your function, as reward.path=my_rewards.py:score")
    file_name, colon, name = path.rpartition(":")
    if not colon or not file_name or not name:
        raise ConfigError(f"reward.path={path!r}: expected file.py:function, such as my_rewards.py:score")
    file = file_of(path)
    if not file.is_file():
        folder = file.parent
        near = nearest(file.name, [f.name for f in folder.glob("*.py")]) if folder.is_dir() else ""
        raise ConfigError(f"reward.path={path!r}: there is no file {file}.{near} A relative path starts at {Path.cwd()}")
    module = _run(file, path)
    function = getattr(module, name, None)
    if not callable(function):
        callables = [n for n, v in vars(module).items() if inspect.isfunction(v) and not n.startswith("_")]
        what = "has no" if function is None else f"has a {type(function).__name__}, not a function,"
        raise ConfigError(
            f"reward.path={path!r}: {file} {what} '{name}'.{nearest(name, callables)} "
            f"Its functions: {', '.join(callables) or 'none'}"
        )
    if not inspect.isclass(function):
        return function  # type: ignore[no-any-return]
    try:
        made = function()
    except Exception as error:
        raise ConfigError(
            f"reward.path={path!r}: {name}() raised {type(error).__name__} in line {line_of(error, file)}: {error}"
        ) from error
    if not callable(made):
        raise ConfigError(f"reward.path={path!r}: objects of the class {name} cannot be called; give it a __call__")
    return made


def _run(file: Path, path: str) -> Any:
    """The module made by running the file."""
    name = f"grpo_exp_custom_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"reward.path={path!r}: {file} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    sys.modules[name] = module  # dataclasses and pickle look a class's module up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # SystemExit: a script that parses arguments when imported
        del sys.modules[name]
        raise ConfigError(
            f"reward.path={path!r}: running {file} raised {type(error).__name__} in line {line_of(error, file)}: {error}"
        ) from error
    return module


def file_of(path: str) -> Path:
    """The file that `file.py:name` names."""
    return expanded(path.rpartition(":")[0]).resolve()


def line_of(error: BaseException, file: Path) -> int | None:
    """The line of the user's file that an error comes from, the innermost of several; None where there is none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    if lines:
        return lines[-1]
    return error.lineno if isinstance(error, SyntaxError) else None


def parameters(function: Callable[..., Any], path: str | None) -> list[inspect.Parameter]:
    """The function's parameters; only what can be given by name is allowed to be required.

    Raises:
        ConfigError: a positional-only parameter, or a callable without a readable signature.
    """
    try:
        found = list(inspect.signature(function).parameters.values())
    except ValueError as error:
        raise ConfigError(
            f"reward.path={path!r}: its signature cannot be read ({error}); wrap it in a plain function"
        ) from error
    for parameter in found:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"reward.path={path!r}: '{parameter.name}' is positional-only, but arguments are given by name")
    return found
