"""The final answer of a reference, and whether it stands in a text at all: what a reward may have failed to read."""

from __future__ import annotations

import re

from grpo_exp.answers import forms


def reference_answer(text: str) -> str:
    """The final answer of a reference, which may be a whole worked solution as GSM8K and MATH have it."""
    return forms.find(text, ("tag", "boxed", "hash")) or text.strip()


def holds(text: str, reference: str | None) -> bool:
    """Whether the final answer of a reference stands in the text as a word of its own; never where there is none."""
    answer = "" if reference is None else reference_answer(reference)
    return bool(answer) and re.search(rf"(?<![\w.]){re.escape(answer)}(?!\w|\.\d)", text) is not None
