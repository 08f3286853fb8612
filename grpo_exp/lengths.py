"""How long prompts and worked targets are, in tokens of the model, and the `max_new_tokens` that has room for the targets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grpo_exp.batch import Example
from grpo_exp.data.base import Dataset
from grpo_exp.policy import Policy

SAMPLE = 512
"""Training items that are looked at, evenly spread, so that this takes less than a second."""
STEP = 16
"""What is proposed is a multiple of so many tokens."""


def note(data: Dataset, policy: Policy, max_new_tokens: int) -> str:
    """One line on the lengths of some training items, with a proposal where completions that are to be learned have no room."""
    examples = data.train[:: max(1, math.ceil(len(data.train) / SAMPLE))]
    prompts = [len(policy.prompt_ids(e)[0]) for e in examples]
    targets = [len(policy.encode_target(text)) for e in examples for text in _completions(e)]
    of = "" if len(examples) == len(data.train) else f" of {len(examples)} training items"
    parts = [f"tokens{of}: prompts {_spread(prompts)}"]
    if targets:
        parts.append(f"targets {_spread(targets)}, {_room(targets, max_new_tokens)}")
    return ", ".join(parts)


def proposal(targets: Sequence[int]) -> int:
    """A `max_new_tokens` with room for all these targets: a multiple of STEP."""
    return STEP * math.ceil(max(targets) / STEP)


def _completions(example: Example) -> list[str]:
    return [text for text in (example.target, example.chosen, example.rejected) if text is not None]


def _room(targets: Sequence[int], max_new_tokens: int) -> str:
    longer = sum(length > max_new_tokens for length in targets)
    if not longer:
        return f"for which max_new_tokens={max_new_tokens} has room"
    return f"{longer} of {len(targets)} longer than max_new_tokens={max_new_tokens}: {proposal(targets)} has room for all"


def _spread(lengths: Sequence[int]) -> str:
    """`12 (5 to 40)`: median, shortest and longest."""
    ordered = sorted(lengths)
    return f"{ordered[len(ordered) // 2]} ({ordered[0]} to {ordered[-1]})"
