"""From a row to an item: which fields become prompt, answer, target and category, and how."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from grpo_exp.batch import Example, Message
from grpo_exp.errors import ConfigError, DataError
from grpo_exp.options import option
from grpo_exp.rows.checks import CheckedData
from grpo_exp.rows.formats import FORMATS, GROUND_TRUTH, NAMES, Form, form_of, refused
from grpo_exp.rows.messages import ROLES, checked, ends_with_user, reply
from grpo_exp.rows.preference import Pair, pair_of
from grpo_exp.rows.read import Row, RowFault, one_line
from grpo_exp.rows.template import Template, has, text_of


@dataclass
class MappedData(CheckedData):
    """Options that say what the fields of a row mean."""

    format: str = option(
        "fields: the options below name the fields; prompt_only, prompt_completion, preference (TRL's), verl: those of "
        "its documentation; auto: the options hold where the first row has the fields they name, else the format it has",
        choices=("auto", "fields", *FORMATS),
    )
    prompt: str | None = option(
        "the prompt: a field (text, or chat messages), or a template such as '{Body} {Question}'; null: chosen and rejected "
        "both begin with it"
    )
    answer: str | None = option("the reference answer: a field or a template; null: there is none")
    answer_pattern: str | None = option("regular expression whose first group is the answer; null: the whole text")
    target: str | None = option("the worked completion for supervised training: a field or a template; null: there is none")
    chosen: str | None = option("field with the better completion of a pair, text or chat messages; null: there are no pairs")
    rejected: str | None = option("field with the worse completion of a pair; null: there are no pairs")
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
        if (self.chosen is None) != (self.rejected is None):
            raise ConfigError("data.chosen and data.rejected belong together: name the field of each, or set both to null")
        if self.prompt is None and self.chosen is None:
            raise ConfigError("data.prompt=null: name the field of the prompt; only pairs can begin with theirs")
        self._form: Form | None = None
        self._settled = self.format == "fields"
        self._compile()

    def settle(self, first: Row) -> None:
        """Take the form of the first row, where `format` leaves the fields to it; what the options say then is what it has.

        Raises:
            DataError: it does not have the form that `format` names, or one that nothing here learns from.
        """
        if self._settled:
            return
        self._settled = True
        if self.format == "auto" and (self._names_fields() or all(has(first.fields, name) for name in self._named())):
            return
        if (other := refused(first.fields)) and self.format == "auto":
            raise DataError(
                f"{first.place}: {other}, which no algorithm here learns from. data.format=fields reads it by data.prompt="
            )
        self._form = form_of(first.fields, self.format)
        if self._form is None and self.format != "auto":
            there = one_line(", ".join(first.fields), 200)
            raise DataError(f"{first.place}: data.format={self.format}: not {NAMES[self.format]}; the row has: {there}")
        if self._form is not None:
            own = {} if self.answer in (None, "answer") else {"answer": self.answer}
            for name, value in (self._form.options() | own).items():
                setattr(self, name, value)
            if self._form.format == "verl" and self.category is None:
                self.category = "data_source"
            self._compile()

    @property
    def form(self) -> Form | None:
        """The documented form that the rows have; None where the options say what the fields mean."""
        return self._form

    def _named(self) -> list[str]:
        """The fields that the options name."""
        templates = [t for t in (self._prompt, self._answer, self._target) if t is not None]
        return [*(name for t in templates for name in t.fields), *(name for name in (self.chosen, self.rejected) if name)]

    def _names_fields(self) -> bool:
        """Whether an option says more of the fields than the formats do: then it is the options that hold."""
        given = {"prompt": self.prompt, "answer": self.answer, "chosen": self.chosen, "rejected": self.rejected}
        beyond = self.target is not None or self.answer_pattern is not None
        return beyond or any(name not in (key, None) for key, name in given.items())

    def _compile(self) -> None:
        """Make templates and patterns of the options."""
        self._prompt = None if self.prompt is None else Template(self.prompt, "data.prompt")
        self._answer = None if self.answer is None else Template(self.answer, "data.answer")
        self._target = None if self.target is None else Template(self.target, "data.target")
        self._pattern = None if self.answer_pattern is None else _compiled("data.answer_pattern", self.answer_pattern)
        if self._pattern is not None and not self._pattern.groups:
            raise ConfigError(f"data.answer_pattern={self.answer_pattern!r}: needs a group in parentheses around the answer")
        self._replace = {name: _compiled_pairs(name, pairs) for name, pairs in self.replace.items()}

    def item(self, row: Row, prefix: str = "") -> Example:
        """The item that a row describes. Its id is `<prefix>row-<n>`.

        Fields that prompt, answer, target and category do not hold whole become `columns`; those of the last three are `held`.

        Raises:
            RowFault: a field is missing, empty or of a wrong type, or `answer_pattern` does not match.
        """
        if self._form is not None and (form := form_of(row.fields, self.format)) != self._form:
            found = f"is not in {NAMES[self._form.format]}" if form is None else f"is in {form}"
            raise RowFault("another format", f"{row.place}: {found}, and the first row is in {self._form}; they must be alike")
        row = self._replaced(row)
        pair = None if self.chosen is None else pair_of(row, (self.chosen, str(self.rejected)), self.chat, self._prompt is None)
        kept_whole = [self._prompt, self._target, self._answer if self._pattern is None else None]
        whole = {
            self.category,
            self.chosen,
            self.rejected,
            *(template.field for template in kept_whole if template is not None),
        }
        apart = {self.chosen, self.rejected, None if self._prompt is None else self._prompt.field}
        return Example(
            id=f"{prefix}row-{row.number}",
            prompt=self._with_context(row, self._asked(row, pair)),
            answer=None if self._answer is None else self._extracted(row, self._answer),
            category="" if self.category is None else text_of(row, self.category, "data.category"),
            target=None if self._target is None else self._completed(row, self._target),
            chosen=None if pair is None else pair.chosen,
            rejected=None if pair is None else pair.rejected,
            columns={name: value for name, value in row.fields.items() if name not in whole},
            held={name: value for name, value in row.fields.items() if name in whole - apart},
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

    def _completed(self, row: Row, template: Template) -> str:
        """A worked completion: text, or a list with one message of the assistant."""
        given = row.fields.get(template.field) if template.field is not None else None
        if isinstance(given, list):
            return reply(row, given, f"'{one_line(template.field)}'", template.key)
        return template.render(row)

    def _extracted(self, row: Row, template: Template) -> str | None:
        if template.field == GROUND_TRUTH and self._form is not None and not _is_plain(row.fields["reward_model"]):
            return None  # of a kind that only a reward function written for it can read, which gets the field
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

    def _asked(self, row: Row, pair: Pair | None) -> str | list[Message]:
        """The prompt as the row has it: its own field, or what the two completions of a pair begin with."""
        shared = None if pair is None else pair.prompt
        if self._prompt is None:
            if shared is None:
                raise RowFault(
                    "no common prompt",
                    f"{row.place}: data.prompt=null, and chosen and rejected begin with no common prompt. They must be lists "
                    "of messages, or dialogues in turns after \\n\\nHuman: and \\n\\nAssistant:; or name the prompt's field",
                )
            return shared
        given = row.fields.get(self._prompt.field) if self._prompt.field is not None else None
        if isinstance(given, list):
            asked: str | list[Message] = checked(row, given, "the prompt", "data.prompt")
            ends_with_user(row, asked)  # type: ignore[arg-type]
        else:
            asked = self._prompt.render(row)
        if shared is None:
            return asked
        same = shared[-1]["content"] == asked if isinstance(asked, str) and isinstance(shared, list) else shared == asked
        if not same:
            raise RowFault(
                "two prompts", f"{row.place}: chosen and rejected begin with another prompt than data.prompt={self.prompt}"
            )
        return shared

    def _with_context(self, row: Row, asked: str | list[Message]) -> str | list[Message]:
        """The prompt with system message and worked examples before it: chat messages, or text in paragraphs."""
        if not self.chat:
            if isinstance(asked, list):
                raise RowFault("chat messages", f"{row.place}: the prompt holds chat messages; set data.chat=true")
            return self._plain(asked)
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
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


def _is_plain(reward_model: Any) -> bool:
    """Whether the ground truth in verl's field of that name is one text or number, which verifiers can compare with."""
    return isinstance(reward_model, dict) and isinstance(reward_model.get("ground_truth"), (str, int, float))


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
