"""From a row to a preference pair: chosen and rejected as texts or as messages, with the prompt apart or in both."""

from __future__ import annotations

import re
from typing import NamedTuple

from grpo_exp.batch import Message
from grpo_exp.rows.messages import checked, ends_with_user
from grpo_exp.rows.read import Row, RowFault, one_line
from grpo_exp.rows.template import text_of

TURN = re.compile(r"\n\n(Human|Assistant):[ ]?")
"""Turns of a dialogue written as one text, as in HH-RLHF (arXiv 2204.05862)."""
KEYS = ("data.chosen", "data.rejected")


class Pair(NamedTuple):
    """A preference pair; `prompt` is what chosen and rejected both began with, None where they held completions alone."""

    prompt: str | list[Message] | None
    chosen: str
    rejected: str


def pair_of(row: Row, names: tuple[str, str], chat: bool, implicit: bool = False) -> Pair | None:
    """The pair that two fields of a row hold, chosen and rejected; None where the row has neither field.

    Messages are split where the two lists part. Texts are completions, unless both are dialogues: these are split at their last
    "Assistant:", or become messages where prompts are chat messages. With `implicit` texts are split where they part, as TRL
    splits them, but between words.

    Raises:
        RowFault: one field is missing, empty or of another kind than the other; the two are equal, have no common prompt, or go
            on with anything else than one message of the assistant.
    """
    if not any(name in row.fields for name in names):
        return None
    if any(isinstance(row.fields.get(name), list) for name in names):
        pair = _parted(row, *(_listed(row, name, key) for name, key in zip(names, KEYS, strict=True)))
    else:
        texts = [text_of(row, name, key) for name, key in zip(names, KEYS, strict=True)]
        turns = all(TURN.match(text) for text in texts)
        pair = _dialogue(row, texts, chat) if turns else _common(*texts) if implicit else Pair(None, *texts)
    if pair.chosen == pair.rejected:
        raise RowFault("chosen equal to rejected", f"{row.place}: chosen and rejected are equal: {one_line(pair.chosen)}")
    if not pair.chosen.strip() or not pair.rejected.strip():
        raise RowFault("empty completion", f"{row.place}: a completion of the pair is empty after its prompt")
    return pair


def _common(chosen: str, rejected: str) -> Pair:
    """Two texts split after the words they share: `The sky is blue.` and `The sky is green.` after `The sky is`.

    TRL's `extract_prompt` splits between characters, `The sky is bl` from `black`; a text without blanks is split there, too.
    """
    shared = next(
        (i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), min(len(chosen), len(rejected))
    )
    head = chosen[:shared]
    in_word = head[-1:].isalnum() and any(text[shared : shared + 1].isalnum() for text in (chosen, rejected))
    if in_word and len(words := head.rsplit(None, 1)) == 2:
        head = words[0]
    head = head.rstrip()
    return Pair(head or None, chosen[len(head) :], rejected[len(head) :])


def _listed(row: Row, name: str, key: str) -> list[Message]:
    given = row.fields.get(name)
    if not isinstance(given, list):
        raise RowFault(
            "text and messages", f"{row.place}: '{one_line(name)}' (named by {key}) holds no messages; its partner does"
        )
    return checked(row, given, f"'{one_line(name)}'", key)


def _parted(row: Row, chosen: list[Message], rejected: list[Message]) -> Pair:
    """Two conversations split after what they share."""
    last = min(len(chosen), len(rejected)) - 1
    shared = next((i for i in range(last) if chosen[i] != rejected[i]), max(last, 0))
    replies = [chosen[shared:], rejected[shared:]]
    if not shared and max(map(len, replies)) > 1:
        raise _apart(row)
    if any(len(reply) != 1 or reply[0]["role"] != "assistant" for reply in replies):
        raise RowFault(
            "more than one reply",
            f"{row.place}: after the {shared} messages they share, chosen has {len(replies[0])} and rejected "
            f"{len(replies[1])}; expected one message of the assistant each",
        )
    if shared:
        ends_with_user(row, chosen[:shared])
    return Pair(chosen[:shared] or None, replies[0][0]["content"], replies[1][0]["content"])


def _dialogue(row: Row, texts: list[str], chat: bool) -> Pair:
    """Two dialogues in turns, as messages or as text."""
    if chat:
        roles = {"Human": "user", "Assistant": "assistant"}
        parts = [TURN.split(text)[1:] for text in texts]
        both = [
            checked(
                row,
                [{"role": roles[who], "content": said.strip()} for who, said in zip(p[0::2], p[1::2], strict=True)],
                key,
                key,
            )
            for p, key in zip(parts, KEYS, strict=True)
        ]
        return _parted(row, *both)
    ends = [
        max(
            (turn.end() - turn.group().endswith(" ") for turn in TURN.finditer(text) if turn.group(1) == "Assistant"), default=0
        )
        for text in texts
    ]
    prompts = [text[:end] for text, end in zip(texts, ends, strict=True)]
    if prompts[0] != prompts[1] or not prompts[0]:
        raise _apart(row)
    return Pair(prompts[0], *(text[end:] for text, end in zip(texts, ends, strict=True)))


def _apart(row: Row) -> RowFault:
    return RowFault(
        "no common prompt", f"{row.place}: chosen and rejected have no common prompt: they differ before the last reply"
    )
