"""Where a longer answer stands in a completion, such as JSON or a query: in tags, in a fenced block, or as the whole of it.

    tag      <answer>{"a": 1}</answer>              the last complete pair; a fenced block may stand inside
    fence    ```json\\n{"a": 1}\\n```                 the last closed block of one of the wanted languages, or of none
    whole    {"a": 1}                               a completion that begins like an answer and is nothing else

What is only thought (`forms.spoken`) is no answer. Every search takes time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from grpo_exp.answers import forms

_FENCE = re.compile(r"^[ \t]*(```+)[ \t]*([\w+-]*)[ \t]*$", re.MULTILINE)


def find(text: str, languages: Sequence[str], begins: re.Pattern[str]) -> str | None:
    """The text of the answer; None where there is none. `begins` matches the beginning of an answer without tag or fence."""
    text = forms.spoken(text)
    tagged = forms.find(text, ("tag",))
    within = text if tagged is None else tagged
    fenced = fence(within, languages)
    if fenced is not None:
        return fenced
    if tagged is not None:
        return tagged
    text = text.strip()
    return text if begins.match(text) else None


def fence(text: str, languages: Sequence[str]) -> str | None:
    """The content of the last closed fenced block in one of the languages or in none."""
    found, opening = None, None
    for match in _FENCE.finditer(text):
        if opening is None:
            opening = match
        elif match[1] == opening[1] and not match[2]:
            if opening[2].lower() in ("", *languages):
                found = text[opening.end() : match.start()].strip()
            opening = None
    return found
