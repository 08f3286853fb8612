"""A reward function of the user's own, from a Python file: `reward=custom reward.path=my_rewards.py:score`.

    def score(completions, answers, **columns):
        return [1.0 if answer in text else 0.0 for text, answer in zip(completions, answers)]

The function is called once a step with the N samples and returns a list of N numbers, with None where it does not apply. It is
called by name, with those of these that its signature has; `**anything` gets all of them:

    completions      the sampled texts                      finished    whether each ended by itself
    prompts          the prompts as the model saw them      answers     the reference answers, None where there is none
    token_ids        the samples' token ids                 examples    the data items, `grpo_exp.batch.Example`
    completion_ids   the same, by the name TRL gives it     any field of the data set, by its name, one value for each sample

It may be `async def`. One written for TRL or verl runs unchanged: `grpo_exp.styles` says what it is called with, and how that
is told by its signature.

A class takes the place of a function where something is remembered between calls: it is made without arguments, called as the
function would be, and `state_dict()` and `load_state_dict(state)` make its memory part of every checkpoint.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Any

from grpo_exp import styles
from grpo_exp.batch import Completions
from grpo_exp.errors import ConfigError, RewardError, nearest
from grpo_exp.options import option
from grpo_exp.rewards.base import Reward, Values
from grpo_exp.user_code import file_of, line_of, load, parameters

_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass
class CustomReward(Reward):
    """What the user's function returns."""

    path: str | None = option("the function or class, as file.py:name; a relative file is sought from the current folder")
    style: str = option("whose convention it follows; auto: told by its signature", choices=("auto", "grpo_exp", "trl", "verl"))
    kwargs: dict[str, Any] = option("more arguments for it, by name")
    data_source: str = option("with style=verl: the data_source of items that have no field of that name")

    def __post_init__(self) -> None:
        self._function = load(self.path)
        self._parameters = parameters(self._function, self.path)
        self._taken = styles.told(self._parameters) if self.style == "auto" else self.style
        self._takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in self._parameters)
        self._names = {parameter.name for parameter in self._parameters if parameter.kind in _BY_KEYWORD}
        self._check_kwargs()
        remembers = [callable(getattr(self._function, name, None)) for name in ("state_dict", "load_state_dict")]
        if any(remembers) and not all(remembers):
            raise ConfigError(
                f"reward.path={self.path!r} has one of state_dict and load_state_dict; to go on where it was it needs both"
            )
        self._remembers = all(remembers)

    def _check_kwargs(self) -> None:
        for name in self.kwargs:
            if name in styles.FIXED[self._taken]:
                raise ConfigError(f"reward.kwargs.{name}: the function gets '{name}' of the samples; choose another name")
            if name not in self._names and not self._takes_all:
                raise ConfigError(
                    f"reward.kwargs.{name}: the function of reward.path={self.path!r} takes no '{name}'."
                    f"{nearest(name, self._names)} It takes {', '.join(sorted(self._names)) or 'nothing'}"
                )

    def about(self) -> dict[str, Any]:
        """The convention that the function is called by, also where its signature told."""
        return {"style": self._taken}

    def score(self, completions: Completions) -> Values | Awaitable[Values]:
        """The function's values, to be awaited where it is asynchronous.

        Raises:
            ConfigError: it requires an argument that is neither offered nor a field of the data set.
            RewardError: it raised; the message has the line in the user's file.
        """
        if self._taken == "verl" and "solution_strs" not in self._names:
            rows = [self._wanted(row) for row in styles.verl(completions, self.data_source)]
            call = partial(_each, self._function, rows)
        else:
            call = partial(self._function, **self._wanted(self._offered(completions)))
        try:
            returned = call()
        except Exception as error:
            raise self._raised(error) from error
        return self._later(returned) if inspect.isawaitable(returned) else self._values(returned)

    async def _later(self, returned: Awaitable[Any]) -> Values:
        try:
            values = await returned
        except Exception as error:
            raise self._raised(error) from error
        return self._values(values)

    def _raised(self, error: Exception) -> RewardError:
        line = line_of(error, file_of(str(self.path)))
        return RewardError(f"reward.path={self.path!r} raised {type(error).__name__} in line {line}: {error}")

    def _values(self, values: Any) -> Values:
        """One value a sample as a Python number, or whatever else was returned, for the caller to judge."""
        values = values.tolist() if hasattr(values, "tolist") else values  # a whole numpy array or tensor
        return [self._value(value) for value in values] if isinstance(values, (list, tuple)) else values

    def _value(self, value: Any) -> Any:
        if self._taken == "verl" and isinstance(value, dict):
            if "score" not in value:
                raise RewardError(f"reward.path={self.path!r} returned a dict without 'score': {value!r:.80}")
            value = value["score"]
        return _plain(value)

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

    def _offered(self, completions: Completions) -> styles.Arguments:
        """What there is to be had by name, for all samples at once."""
        if self._taken == "verl":
            return styles.verl_batch(completions, self.data_source)
        return styles.trl(completions) if self._taken == "trl" else styles.own(completions)

    def _wanted(self, offered: styles.Arguments) -> styles.Arguments:
        """What the signature asks for; a field of the data set never hides one of the fixed names."""
        offered = offered | self.kwargs
        for parameter in self._parameters:
            required = parameter.kind in _BY_KEYWORD and parameter.default is parameter.empty
            if required and parameter.name not in offered:
                raise ConfigError(
                    f"reward.path={self.path!r}: the function requires '{parameter.name}', which is neither offered nor a "
                    f"field of the data set.{nearest(parameter.name, offered)} Available: {', '.join(offered)}. "
                    "Rename the argument, give it a default, or a value with +reward.kwargs.NAME=VALUE"
                )
        return offered if self._takes_all else {name: value for name, value in offered.items() if name in self._names}


def _each(function: Any, rows: list[styles.Arguments]) -> Any:
    """The values of a function that scores one sample, for all; to be awaited, together, where it is asynchronous."""
    values = [function(**row) for row in rows]
    return _together(values) if any(map(inspect.isawaitable, values)) else values


async def _together(values: list[Awaitable[Any]]) -> list[Any]:
    tasks = [asyncio.ensure_future(value) for value in values]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()  # where one raised, the others are of no use


def _plain(value: Any) -> Any:
    """A scalar of numpy or torch as a Python number; all else as it is, for the caller to judge."""
    if value is None or isinstance(value, (bool, int, float)):
        return None if value is None else float(value)
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    return value
