"""How reward functions are called: as this project does it, as TRL does, as verl does.

A function written for another library runs unchanged: it gets the names and forms of that library's documentation. What those
leave open is told here.

`trl`: `def f(prompts, completions, **kwargs)`, called once with all samples. With chat prompts `prompts` are lists of messages
and `completions` lists of one message, with plain prompts both are text. Further `completion_ids`, every field of the data, and
`trainer_state`, which knows `global_step` alone: the steps of training that are over. Where the data has no field `answer`,
`solution` or `ground_truth`, that name is the reference answer. `log_extra` and `log_metric` may be called; what they are told
is not recorded. The names of this project's own convention are there too.

`verl`: `compute_score(data_source, solution_str, ground_truth, extra_info)`, called for one sample at a time; with the names
`data_sources`, `solution_strs`, `ground_truths`, `extra_infos`, of verl's batch manager, once with all. The ground truth is the
data's field `reward_model.ground_truth` or `ground_truth` as it is, otherwise the reference answer; data source and extra info
are the fields of these names, otherwise the name of the data, and {}.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from grpo_exp.batch import Completions

Arguments = dict[str, Any]
OWN = ("answers", "token_ids", "finished", "examples")
"""Names that only this project's convention has."""
TRL = ("trainer_state", "log_extra", "log_metric")
"""Names that only TRL's has."""
REFERENCE = ("answer", "solution", "ground_truth")
"""Names that TRL's documentation and users give the data's field of reference answers."""
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
FIXED = {
    "grpo_exp": {"prompts", "completions", "completion_ids", *OWN},
    "trl": {"prompts", "completions", "completion_ids", *OWN, *TRL},
    "verl": {*VERL, *(f"{name}s" for name in VERL)},
}
"""By convention the names that no field of the data and no further argument takes."""


@dataclass(frozen=True)
class TrainerState:
    """What a function may read of TRL's `trainer_state`: the steps of training that are over."""

    global_step: int


def told(parameters: Iterable[inspect.Parameter]) -> str:
    """The convention that a signature follows.

    verl's is known by `solution_str`, TRL's by the names it alone has, or by `**kwargs` beside prompts or completions, without
    which hardly a function serves TRL. Whatever names one of OWN, and all else, follows this project's.
    """
    found = {parameter.name: parameter for parameter in parameters}
    if {"solution_str", "solution_strs"} & found.keys():
        return "verl"
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in found.values())
    if not found.keys() & set(OWN) and (found.keys() & set(TRL) or (takes_all and found.keys() & {"prompts", "completions"})):
        return "trl"
    return "grpo_exp"


def columns(completions: Completions) -> Arguments:
    """Every field of the data by its name, one value for each sample, None where an item lacks it."""
    rows = [example.held | example.columns for example in completions.examples]
    return {name: [row.get(name) for row in rows] for name in sorted(set().union(*rows))}


def own(completions: Completions) -> Arguments:
    """What this project offers. The lists are new ones: what a function does to them is its own matter."""
    return columns(completions) | {
        "prompts": list(completions.prompts),
        "completions": list(completions.texts),
        "token_ids": [list(ids) for ids in completions.token_ids],
        "completion_ids": [list(ids) for ids in completions.token_ids],
        "finished": list(completions.finished),
        "answers": [example.answer for example in completions.examples],
        "examples": list(completions.examples),
    }


def trl(completions: Completions) -> Arguments:
    """What TRL offers, by the same names and in the same forms."""
    prompts = [example.prompt for example in completions.examples]
    answers = [example.answer for example in completions.examples]
    texts: list[Any] = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, completions.texts, strict=True)
    ]
    return {
        **{name: list(answers) for name in REFERENCE},
        **own(completions),
        "prompts": copy.deepcopy(prompts),
        "completions": texts,
        "trainer_state": TrainerState(completions.steps),
        "log_extra": _unheard,
        "log_metric": _unheard,
    }


def verl(completions: Completions, data_source: str) -> list[Arguments]:
    """What verl offers for each sample; `data_source` where the data has no field of that name."""
    pairs = zip(completions.texts, completions.examples, strict=True)
    return [
        {
            "data_source": row.get("data_source", data_source),
            "solution_str": text,
            "ground_truth": _ground_truth(row, example.answer),
            "extra_info": copy.deepcopy(row.get("extra_info")) or {},
        }
        for text, example in pairs
        for row in [example.held | example.columns]
    ]


def verl_batch(completions: Completions, data_source: str) -> Arguments:
    """What verl's batch manager offers: the same for all samples at once, each name in the plural."""
    rows = verl(completions, data_source)
    return {f"{name}s": [row[name] for row in rows] for name in VERL}


def _ground_truth(row: dict[str, Any], answer: str | None) -> Any:
    model = row.get("reward_model")
    if isinstance(model, dict) and "ground_truth" in model:
        return model["ground_truth"]
    return row.get("ground_truth", answer)


def _unheard(*_: Any, **__: Any) -> None:
    """What TRL would put into its table of completions or its metrics."""
