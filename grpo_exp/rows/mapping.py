"""From a row to an item: which fields become prompt, answer, target and category, and how."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from grpo_exp.batch import Example, Message
from grpo_exp.data.base import DataSource
from grpo_exp.errors import ConfigError
from grpo_exp.options import option
from grpo_exp.rows.read import Row, RowFault, one_line
from grpo_exp.rows.template import Template, check_text, text_of

ROLES = ("system", "user", "assistant")


@dataclass
class MappedData(DataSource):
    """Options that say what the fields of a row mean."""

    prompt: str = option("the prompt: a field (text, or chat messages), or a template such as '{Body} {Question}'")
    answer: str | None = option("the reference answer: a field or a template; null: there is none")
    answer_pattern: str | None = option("regular expression whose first group is the answer; null: the whole text")
    target: str | None = option("the worked completion for supervised training: a field or a template; null: there is none")
    category: str | None = option("field that says which stratum an item belongs to; null: one stratum")
    replace: dict[str, list[list[str]]] = option("field -> [pattern, replacement] pairs applied to its text first")
    chat: bool = option("true: prompts are chat messages; false: plain text")
    system: str | None = option("system message put before every prompt; null: none")
    examples: list[list[str]] = option("worked [question, answer] pairs put before every prompt")

    def __post_init__(self) -> None:
        for i, pair in enumerate(self.examples):
            if len(pair) != 2 or not all(isinstance(text, str) and text.strip() for text in pair):
                raise ConfigError(f"data.examples[{i}]={one_line(pair)}: expected a [question, answer] pair of texts")
        if self.system is not None and not self.system.strip():
            raise ConfigError("data.system is empty: write a message, or null for none")
        if self.answer is None and self.answer_pattern is not None:
            raise ConfigError("data.answer_pattern needs data.answer=FIELD, which is null; or set data.answer_pattern=null")
        self._prompt = Template(self.prompt, "data.prompt")
        self._answer = None if self.answer is None else Template(self.answer, "data.answer")
        self._target = None if self.target is None else Template(self.target, "data.target")
        self._pattern = None if self.answer_pattern is None else _compiled("data.answer_pattern", self.answer_pattern)
        if self._pattern is not None and not self._pattern.groups:
            raise ConfigError(f"data.answer_pattern={self.answer_pattern!r}: needs a group in parentheses around the answer")
        self._replace = {name: _compiled_pairs(name, pairs) for name, pairs in self.replace.items()}

    def item(self, row: Row, prefix: str = "") -> Example:
        """The item that a row describes. Its id is `<prefix>row-<n>`.

        Fields that prompt, answer, target and category do not hold whole become `columns`.

        Raises:
            RowFault: a field is missing, empty or of a wrong type, or `answer_pattern` does not match.
        """
        row = self._replaced(row)
        kept_whole = [self._prompt, self._target, self._answer if self._pattern is None else None]
        whole = {self.category, *(template.field for template in kept_whole if template is not None)}
        return Example(
            id=f"{prefix}row-{row.number}",
            prompt=self._asked(row),
            answer=None if self._answer is None else self._extracted(row, self._answer),
            category="" if self.category is None else text_of(row, self.category, "data.category"),
            target=None if self._target is None else self._target.render(row),
            columns={name: value for name, value in row.fields.items() if name not in whole},
        )

    def _replaced(self, row: Row) -> Row:
        """The row after `replace`."""
        texts: dict[str, str] = {}
        for name, pairs in self._replace.items():
            text = text_of(row, name, "data.replace")
            for pattern, replacement in pairs:
                try:
                    text = pattern.sub(replacement, text)
                except (re.error, IndexError) as error:
                    raise ConfigError(f"data.replace.{name}: replacement {replacement!r}: {error}") from error
            texts[name] = text
        return dataclasses.replace(row, fields={**row.fields, **texts})

    def _extracted(self, row: Row, template: Template) -> str:
        text = template.render(row)
        if self._pattern is None:
            return text
        found = self._pattern.search(text)
        answer = (found.group(1) or "").strip() if found else ""
        if not answer:
            raise RowFault(
                "no match of answer_pattern",
                f"{row.place}: data.answer_pattern={one_line(self.answer_pattern)} finds no answer in "
                f"'{one_line(self.answer)}', which ends in: {one_line(text[-60:])}",
            )
        return answer

    def _asked(self, row: Row) -> str | list[Message]:
        """The prompt with system message and worked examples before it: chat messages, or text in paragraphs."""
        given = row.fields.get(self._prompt.field) if self._prompt.field is not None else None
        if isinstance(given, list):
            messages = _messages(row, given)
            if not self.chat:
                raise RowFault("chat messages", f"{row.place}: '{self.prompt}' holds chat messages; set data.chat=true")
        else:
            messages = [{"role": "user", "content": self._prompt.render(row)}]
        if not self.chat:
            return self._plain(messages[-1]["content"])
        shown = [{"role": role, "content": text} for pair in self.examples for role, text in zip(ROLES[1:], pair, strict=True)]
        if self.system is None and not shown:
            return messages
        if messages[0]["role"] == "system":
            if self.system is not None:
                raise RowFault("system message", f"{row.place}: has a system message of its own; set data.system=null")
            return [messages[0], *shown, *messages[1:]]
        head = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*head, *shown, *messages]

    def _plain(self, question: str) -> str:
        """Paragraphs: system, each example as question and answer on lines of their own, then the question.

        With examples the prompt ends in a line break, so that the completion begins where the examples' answers do.
        """
        head = [] if self.system is None else [self.system]
        shown = [f"{asked}\n{answered}" for asked, answered in self.examples]
        return "\n\n".join([*head, *shown, question + "\n" if shown else question])


def _compiled(key: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{key}={pattern!r}: not a regular expression: {error}") from error


def _compiled_pairs(name: str, pairs: list[list[str]]) -> list[tuple[re.Pattern[str], str]]:
    key = f"data.replace.{name}"
    if not all(isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in pairs):
        raise ConfigError(f"{key}={one_line(pairs)}: expected a list of [pattern, replacement] pairs")
    return [(_compiled(key, pattern), replacement) for pattern, replacement in pairs]


def _messages(row: Row, given: list[Any]) -> list[Message]:
    """Checked chat messages: known roles, text, the user last."""
    messages = []
    for i, message in enumerate(given):
        place = f"{row.place}: message {i} of the prompt"
        if not isinstance(message, dict) or message.get("role") not in ROLES or not isinstance(message.get("content"), str):
            expected = f"expected an object with role ({', '.join(ROLES)}) and content"
            raise RowFault("bad chat message", f"{place}: {expected}, found {one_line(message)}")
        check_text(row, "content", message["content"], "data.prompt")
        extra = [key for key, value in message.items() if key not in ("role", "content") and value is not None]
        if extra:
            raise RowFault("bad chat message", f"{place}: only role and content can be used, found also '{one_line(extra[0])}'")
        messages.append({"role": message["role"], "content": message["content"]})
    if not messages or messages[-1]["role"] != "user":
        raise RowFault("bad chat message", f"{row.place}: the last message of the prompt must be the user's")
    return messages
