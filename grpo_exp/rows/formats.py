"""Documented forms of rows, which are read without naming fields: TRL's prompt-only, prompt-completion and preference formats,
standard (texts) and conversational (messages), and verl's.

    prompt_only        {"prompt"}
    prompt_completion  {"prompt", "completion"}
    preference         {"prompt", "chosen", "rejected"}, or with the prompt in both: {"chosen", "rejected"}
    verl               {"data_source", "prompt", "reward_model": {"style", "ground_truth"}, "extra_info"}

A field `answer` beside those is the reference answer; all other fields are columns for rewards, as always. TRL's unpaired
preferences (a `label`) and stepwise supervision (`labels`) are refused: no algorithm here learns from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

FORMATS = ("prompt_only", "prompt_completion", "preference", "verl")
GROUND_TRUTH = "reward_model.ground_truth"
NAMES = {name: f"TRL's {name.replace('_', '-')} format" for name in FORMATS} | {"verl": "verl's format"}


class Form(NamedTuple):
    """What all rows of a file have in common.

    Attributes:
        format: one of FORMATS.
        messages: whether prompts and completions are messages, or texts.
        implicit: whether the prompt of a pair is what chosen and rejected begin with.
        answered: whether there is a field `answer`.
    """

    format: str
    messages: bool
    implicit: bool
    answered: bool

    def __str__(self) -> str:
        kind = "" if self.format == "verl" else ", conversational" if self.messages else ", standard"
        return (
            NAMES[self.format]
            + kind
            + (", with the prompt in both" if self.implicit else "")
            + ", with answers" * self.answered
        )

    def options(self) -> dict[str, str | None]:
        """What it makes of the options that name fields."""
        fields: dict[str, str | None] = {
            "prompt": None if self.implicit else "prompt",
            "answer": "answer" if self.answered else None,
        }
        fields |= {"target": None, "chosen": None, "rejected": None}
        if self.format == "prompt_completion":
            fields["target"] = "completion"
        if self.format == "preference":
            fields |= {"chosen": "chosen", "rejected": "rejected"}
        if self.format == "verl":
            fields["answer"] = GROUND_TRUTH
        return fields


def form_of(fields: Mapping[str, Any], wanted: str = "auto") -> Form | None:
    """The form that a row has; with `wanted` only whether it has that one. None where it is none of these."""
    found = _format(fields) if wanted == "auto" else wanted
    if found is None or (wanted != "auto" and not _fits(fields, wanted)):
        return None
    holders = [name for name in ("prompt", "completion", "chosen", "rejected") if name in fields]
    messages = any(isinstance(fields[name], list) for name in holders)
    implicit = found == "preference" and "prompt" not in fields
    return Form(found, messages, implicit, found != "verl" and "answer" in fields)


def refused(fields: Mapping[str, Any]) -> str | None:
    """The name of a format that would pass for prompt-completion, and says that some of the completions are bad."""
    if {"prompt", "completion"} <= fields.keys() and isinstance(fields.get("label"), bool):
        return "TRL's unpaired preference format"
    if {"prompt", "completions", "labels"} <= fields.keys():
        return "TRL's stepwise supervision format"
    return None


def _format(fields: Mapping[str, Any]) -> str | None:
    """The most telling format that a row fits."""
    return next((name for name in ("verl", "preference", "prompt_completion", "prompt_only") if _fits(fields, name)), None)


def _fits(fields: Mapping[str, Any], name: str) -> bool:
    needed = {
        "prompt_only": {"prompt"},
        "prompt_completion": {"prompt", "completion"},
        "preference": {"chosen", "rejected"},
        "verl": {"prompt", "data_source", "reward_model"},
    }[name]
    return needed <= fields.keys() and (name != "verl" or isinstance(fields["reward_model"], dict))
