"""Chat messages in a row, checked."""

from __future__ import annotations

from typing import Any

from grpo_exp.batch import Message
from grpo_exp.rows.read import Row, RowFault, one_line
from grpo_exp.rows.template import check_text

ROLES = ("system", "user", "assistant")


def checked(row: Row, given: list[Any], what: str, key: str) -> list[Message]:
    """The messages of a list, each with a known role and text, and nothing else.

    `what` names the list for people, `key` the option that named its field.

    Raises:
        RowFault: one is not like that.
    """
    messages = []
    for i, message in enumerate(given):
        place = f"{row.place}: message {i} of {what}"
        if not isinstance(message, dict) or message.get("role") not in ROLES or not isinstance(message.get("content"), str):
            expected = f"expected an object with role ({', '.join(ROLES)}) and content"
            raise RowFault("bad chat message", f"{place}: {expected}, found {one_line(message)}")
        check_text(row, "content", message["content"], key)
        extra = [name for name, value in message.items() if name not in ("role", "content") and value is not None]
        if extra:
            raise RowFault("bad chat message", f"{place}: only role and content can be used, found also '{one_line(extra[0])}'")
        messages.append({"role": message["role"], "content": message["content"]})
    return messages


def ends_with_user(row: Row, messages: list[Message]) -> None:
    """Raise RowFault unless the user has the last word of a prompt."""
    if not messages or messages[-1]["role"] != "user":
        raise RowFault("bad chat message", f"{row.place}: the last message of the prompt must be the user's")


def reply(row: Row, given: list[Any], what: str, key: str) -> str:
    """The text of a completion that is written as a list of messages: one, the assistant's."""
    messages = checked(row, given, what, key)
    if [message["role"] for message in messages] != ["assistant"]:
        roles = ", ".join(message["role"] for message in messages)
        raise RowFault(
            "bad chat message", f"{row.place}: {what} holds {len(messages)} messages ({roles}); expected one of the assistant"
        )
    return messages[0]["content"]
