"""Text out of a row: a field by its name, or a template such as `{Body} {Question}`.

Only plain field names are replaced, never by `str.format`, which would reach attributes of the values.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from grpo_exp.errors import ConfigError, nearest
from grpo_exp.rows.read import Row, RowFault, one_line

_TOKENS = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_ABSENT = object()
_LARGEST_PLAIN = 10**16  # above it a float no longer tells neighbouring whole numbers apart


class Template:
    """What option `key` says about how to make text from a row.

    Without braces the text is a field's name. With them it is a template: `{field}` is replaced, `{{` and `}}` stand for
    literal braces. Whole floats lose their `.0`; booleans are written `true` and `false`.

    Raises:
        ConfigError: a brace without its partner, or `{}` without a name.
    """

    def __init__(self, text: str, key: str) -> None:
        self.key = key
        self.field = text if "{" not in text and "}" not in text else None
        self._parts = [("field", text)] if self.field is not None else _parse(text, key)

    @property
    def fields(self) -> list[str]:
        """The fields it names."""
        return [text for kind, text in self._parts if kind == "field"]

    def render(self, row: Row) -> str:
        """The text for one row.

        Raises:
            RowFault: a field is missing, empty, or holds neither text nor a number.
        """
        return "".join(text_of(row, text, self.key) if kind == "field" else text for kind, text in self._parts)


def _parse(text: str, key: str) -> list[tuple[str, str]]:
    parts, end = [], 0
    for token in _TOKENS.finditer(text):
        parts.append(("text", text[end : token.start()]))
        end = token.end()
        if token.group() in ("{{", "}}"):
            parts.append(("text", token.group()[0]))
        elif token.group(1):
            parts.append(("field", token.group(1)))
        else:
            raise ConfigError(
                f"{key}={one_line(text)!r}: '{token.group()}' at column {token.start() + 1} names no field; "
                "write {field}, or {{ and }} for braces themselves"
            )
    return [*parts, ("text", text[end:])]


def has(fields: dict[str, Any], name: str) -> bool:
    """Whether there is such a field, or such a path."""
    return _at(fields, name) is not _ABSENT


def _at(fields: dict[str, Any], name: str) -> Any:
    value: Any = fields
    for part in [name] if name in fields else name.split("."):
        value = value.get(part, _ABSENT) if isinstance(value, dict) else _ABSENT
    return value


def value_of(row: Row, name: str, key: str) -> Any:
    """The value of a field that option `key` named; `a.b` is field b of the object in field a, where no field is called so.

    Raises:
        RowFault: the row has no such field.
    """
    value = _at(row.fields, name)
    if value is _ABSENT:
        names = [one_line(field, 40) for field in row.fields]
        raise RowFault(
            f"no field '{name}'",
            f"{row.place}: no field '{one_line(name)}' (named by {key}); the row has: {one_line(', '.join(names), 200)}."
            f"{nearest(name, names)}",
        )
    return value


def text_of(row: Row, name: str, key: str) -> str:
    """A field's value as text, not empty and valid Unicode.

    Raises:
        RowFault: missing, empty, or neither text nor a finite number.
    """
    value = value_of(row, name, key)
    text = _plain(value)
    if text is None:
        raise RowFault(
            f"wrong type in '{name}'",
            f"{row.place}: field '{one_line(name)}' (named by {key}) is {_described(value)}, expected text or a finite number",
        )
    check_text(row, name, text, key)
    return text


def check_text(row: Row, name: str, text: str, key: str) -> None:
    """Raise RowFault where text is blank or cannot be encoded."""
    if not text.strip():
        raise RowFault(f"empty '{name}'", f"{row.place}: field '{one_line(name)}' (named by {key}) is empty")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"half a surrogate pair (\\u{ord(text[error.start]):04x})"
        raise RowFault(
            f"invalid text in '{name}'", f"{row.place}: field '{one_line(name)}' holds {half}: {one_line(text)}"
        ) from error


def _plain(value: Any) -> str | None:
    """Text, number or boolean as text; None for anything else."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (float, Decimal)) and math.isfinite(value):
        return str(int(value)) if value == int(value) and abs(int(value)) < _LARGEST_PLAIN else str(value)
    return None


def _described(value: Any) -> str:
    if isinstance(value, (float, Decimal)):
        return str(value)
    return f"a {type(value).__name__} ({one_line(value)})"
