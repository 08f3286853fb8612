"""A reward function of the user's own, from a Python file: `reward=custom reward.path=my_rewards.py:score`.

    def score(completions, answers, **columns):
        return [1.0 if answer in text else 0.0 for text, answer in zip(completions, answers)]

The function is called once a step with the N samples and returns a list of N numbers, with None where it does not apply. It is
called by name, with those of these that its signature has; `**anything` gets all of them:

    completions      the sampled texts                      finished    whether each ended by itself
    prompts          the prompts as the model saw them      answers     the reference answers, None where there is none
    token_ids        the samples' token ids                 examples    the data items, `grpo_exp.batch.Example`
    completion_ids   the same, by the name TRL gives it     any field of the data set, by its name, one value for each sample

A class takes the place of a function where something is remembered between calls: it is made without arguments, called as the
function would be, and `state_dict()` and `load_state_dict(state)` make its memory part of every checkpoint.

The file runs with the rights of the training run: it is trusted code.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_exp.batch import Completions
from grpo_exp.errors import ConfigError, RewardError, nearest
from grpo_exp.options import option
from grpo_exp.rewards.base import Reward

_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass
class CustomReward(Reward):
    """What the user's function returns."""

    path: str | None = option("the function or class, as file.py:name; a relative file is sought from the current folder")

    def __post_init__(self) -> None:
        self._function = load(self.path)
        self._parameters = _parameters(self._function, self.path)
        remembers = [callable(getattr(self._function, name, None)) for name in ("state_dict", "load_state_dict")]
        if any(remembers) and not all(remembers):
            raise ConfigError(
                f"reward.path={self.path!r} has one of state_dict and load_state_dict; to go on where it was it needs both"
            )
        self._remembers = all(remembers)

    def score(self, completions: Completions) -> list[float | None]:
        """The function's values.

        Raises:
            ConfigError: it requires an argument that is neither offered nor a field of the data set.
            RewardError: it raised; the message has the line in the user's file.
        """
        arguments = self._arguments(completions)
        try:
            values = self._function(**arguments)
        except Exception as error:
            line = _line(error, _file(str(self.path)))
            raise RewardError(f"reward.path={self.path!r} raised {type(error).__name__} in line {line}: {error}") from error
        values = values.tolist() if hasattr(values, "tolist") else values  # a whole numpy array or tensor
        return [_plain(value) for value in values] if isinstance(values, (list, tuple)) else values

    def state(self) -> dict[str, Any]:
        """What the user's `state_dict()` returned.

        Raises:
            RewardError: it is not what JSON can hold, so that it would come back as something else.
        """
        if not self._remembers:
            return {}
        state = self._function.state_dict()  # type: ignore[attr-defined]
        try:
            same = isinstance(state, dict) and json.loads(json.dumps(state, allow_nan=False)) == state
        except (TypeError, ValueError):
            same = False
        if not same:
            raise RewardError(
                f"reward.path={self.path!r}: state_dict() returned {state!r:.80}; return a dict of numbers, text, lists and "
                "dicts with text for keys, without tuples or NaN, which JSON gives back as it was"
            )
        return dict(state)

    def load(self, state: dict[str, Any]) -> None:
        if self._remembers:
            self._function.load_state_dict(state)  # type: ignore[attr-defined]

    def _arguments(self, completions: Completions) -> dict[str, Any]:
        """What the signature asks for, by name; a field of the data set never hides one of the fixed names."""
        columns = {name for example in completions.examples for name in example.columns}
        offered: dict[str, Any] = {name: [e.columns.get(name) for e in completions.examples] for name in sorted(columns)}
        offered |= {
            "prompts": list(completions.prompts),  # lists of its own: what the function does to them is its own matter
            "completions": list(completions.texts),
            "token_ids": [list(ids) for ids in completions.token_ids],
            "completion_ids": [list(ids) for ids in completions.token_ids],
            "finished": list(completions.finished),
            "answers": [e.answer for e in completions.examples],
            "examples": list(completions.examples),
        }
        for parameter in self._parameters:
            required = parameter.kind in _BY_KEYWORD and parameter.default is parameter.empty
            if required and parameter.name not in offered:
                raise ConfigError(
                    f"reward.path={self.path!r}: the function requires '{parameter.name}', which is neither offered nor a "
                    f"field of the data set.{nearest(parameter.name, offered)} Available: {', '.join(offered)}. "
                    "Rename the argument or give it a default"
                )
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in self._parameters):
            return offered
        wanted = {parameter.name for parameter in self._parameters if parameter.kind in _BY_KEYWORD}
        return {name: value for name, value in offered.items() if name in wanted}


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
    file = _file(path)
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
            f"reward.path={path!r}: {name}() raised {type(error).__name__} in line {_line(error, file)}: {error}"
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
            f"reward.path={path!r}: running {file} raised {type(error).__name__} in line {_line(error, file)}: {error}"
        ) from error
    return module


def _file(path: str) -> Path:
    return Path(path.rpartition(":")[0]).expanduser().resolve()


def _line(error: BaseException, file: Path) -> int | None:
    """The line of the user's file that an error comes from, the innermost of several; None where there is none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    if lines:
        return lines[-1]
    return error.lineno if isinstance(error, SyntaxError) else None


def _parameters(function: Callable[..., Any], path: str | None) -> list[inspect.Parameter]:
    """The function's parameters; only what can be given by name is allowed to be required.

    Raises:
        ConfigError: a positional-only parameter, an async function, or a callable without a readable signature.
    """
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"reward.path={path!r}: async functions are not supported; return the list directly")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError as error:
        raise ConfigError(
            f"reward.path={path!r}: its signature cannot be read ({error}); wrap it in a plain function"
        ) from error
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"reward.path={path!r}: '{parameter.name}' is positional-only, but arguments are given by name")
    return parameters


def _plain(value: Any) -> Any:
    """A scalar of numpy or torch as a Python number; all else as it is, for the caller to judge."""
    if value is None or isinstance(value, (bool, int, float)):
        return None if value is None else float(value)
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    return value
