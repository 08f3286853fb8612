"""Reward parts as their YAML files make them, and completions to score."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from grpo_exp.batch import Completions, Example
from grpo_exp.options import load_class
from grpo_exp.rewards.base import Reward
from grpo_exp.schema import make

PARTS = Path(__file__).parents[2] / "conf" / "reward" / "part"
STEPS = {"right": 1.0, "wrong": 0.0, "missing": -1.0}
NEAR = {**STEPS, "near": 0.3}


def part(kind: str, **changes: Any) -> Any:
    """The part of that name, with some options changed."""
    text = (PARTS / f"{kind}.yaml").read_text(encoding="utf-8")
    root = OmegaConf.create({"max_new_tokens": 64, "reward": {"path": None}, "part": OmegaConf.create(text)})
    values: Any = OmegaConf.to_container(root, resolve=True)
    cls = load_class("grpo_exp.rewards", kind, Reward, "kind")
    return make(cls, values["part"] | changes, f"reward.parts.{kind}")


def item(answer: str | None = None, **columns: Any) -> Example:
    return Example("7", "q", answer, columns=columns)


def completions(texts: Sequence[str], example: Example | None = None, **changes: Any) -> Completions:
    """Finished samples of one item, a token for each character."""
    n = len(texts)
    given = {"token_ids": [list(map(ord, text)) for text in texts], "finished": [True] * n, "outcome": None} | changes
    return Completions([example or item()] * n, ["q"] * n, list(texts), **given)


def value(reward: Reward, text: str, example: Example, finished: bool = True) -> Any:
    """What one completion is worth."""
    [one] = reward.score(completions([text], example, finished=[finished]))
    return one


HOSTILE = [
    "",
    " \n\t ",
    "\x00",
    "<answer>\x00</answer>",
    "half \ud800 and \udfff",
    "<answer>\ud800</answer>",
    "<answer>" * 5000,
    "<answer>" + "(" * 20_000 + "</answer>",
    "```json\n" * 5000,
    "[" * 50_000,
    '{"a":' * 20_000,
    "<answer>" + '{"a":' * 20_000 + "1" + "}" * 20_000 + "</answer>",
    "<answer>" + "9" * 50_000 + "</answer>",
    "<answer>1e999999999</answer>",
    "<tool_call>" * 5000,
    "<tool_call>" + "[" * 20_000 + "</tool_call>",
    "</think>" * 5000,
    "<think>" * 5000,
    "the answer is " * 5000,
    "\\boxed{" * 10_000,
    "a" * 100_000,
    "\u202e\u0000\u2028\x1b[31m",
    "<answer>" + "\\" * 30_000 + "</answer>",
    '<answer>"' + "\\" * 30_000 + "</answer>",
    "select " * 20_000,
]
"""Completions that are to be worth no more than a wrong one, quickly."""
