"""Multiple choice: right where the answer names the right option, by its letter or by its text."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_exp.answers import forms
from grpo_exp.batch import Example
from grpo_exp.errors import DataError
from grpo_exp.options import option
from grpo_exp.verifier import COMMITTED, Verdict, Verifier, shown, wanted

_LABEL = r"[A-Za-z]|[0-9]{1,2}"
_LABELLED = re.compile(
    rf"(?:(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)\s*(?:is\s*)?:?\s*)?[(\[]?\s*({_LABEL})(?:([)\].:\s-]+)(.*))?",
    re.IGNORECASE | re.DOTALL,
)
_WRAPPERS = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_AROUND = " \t\n*_`$\"'“”"


@dataclass
class ChoiceReward(Verifier):
    """`right` where the completion commits to the right option: "B", "(B)", "B. Paris", "Paris".

    The answer is the last <answer>...</answer>, box, "#### ..." or "the answer is ...", or a last line that is nothing but an
    option. Two options at once, or a letter beside the text of another option, are wrong.
    """

    options: str | None = option("field of the data with the texts of the options; null: answers are letters alone")
    field: str | None = option("field that says which is right, by letter, text or number; null: the reference answer")
    first: int | None = option("where it says so by number: the number of the first option; null: it does not", low=0, high=1)

    def check_data(self, examples: Sequence[Example]) -> None:
        """Some items say which option is right, and those that do name one that there is."""
        self.need("field", "which option is right", examples)
        if self.options is not None:
            self.need("options", "the list of options", examples)
        for example in examples:
            if wanted(example, self.field) is not None:
                self._right(example, self._listed(example))

    def verdict(self, text: str, example: Example, finished: bool) -> Verdict:
        """Which option the completion names."""
        if wanted(example, self.field) is None:
            return Verdict(None, "the item does not say which option is right")
        listed = self._listed(example)
        right = self._right(example, listed)
        found = self._found(text, listed, finished)
        if found is None:
            return Verdict("missing", "no answer, and the last line is no option")
        named = _named(found, listed)
        if named is None:
            return Verdict("wrong", f"names none of the options, or several; right is {right}", found)
        return Verdict("right" if named == right else "wrong", f"names {named}, right is {right}", found)

    def answer(self, text: str) -> str | None:
        """The letter, in capitals, or the text; which text belongs to which letter only the item knows."""
        found = self._found(text, {}, True)
        return None if found is None else _named(found, {}) or _plain(found) or None

    def _found(self, text: str, listed: dict[str, str], finished: bool) -> str | None:
        """The answer that a completion commits to."""
        text = forms.spoken(text)
        if found := forms.find(text, COMMITTED, finished):
            return found
        last = forms.last_line(text) if finished and "<answer>" not in text else ""
        return last if len(last) <= 1000 and _named(last, listed) is not None else None

    def _listed(self, example: Example) -> dict[str, str]:
        """Label -> text of the options of an item; {} where it has only letters."""
        given = None if self.options is None else wanted(example, self.options)
        if given is None:
            return {}
        if isinstance(given, dict) and isinstance(given.get("text"), list) and isinstance(given.get("label"), list):
            pairs = list(zip(map(str, given["label"]), given["text"], strict=False))  # as ARC and CommonsenseQA have them
        elif isinstance(given, dict):
            pairs = [(str(label), text) for label, text in given.items()]
        elif isinstance(given, list) and len(given) <= len(string.ascii_uppercase):
            pairs = list(zip(string.ascii_uppercase, given, strict=False))
        else:
            raise self._fault(example, f"{shown(str(given))} is no list of at most 26 options, nor letters with their texts")
        listed = {label.strip().upper(): str(text) for label, text in pairs}
        if len(listed) < 2 or not all(re.fullmatch(_LABEL, label) for label in listed):
            raise self._fault(example, f"{shown(str(given))}: expected at least two options, with letters or numbers")
        return listed

    def _right(self, example: Example, listed: dict[str, str]) -> str:
        """The label of the right option."""
        given = str(wanted(example, self.field)).strip()
        if self.first is not None:
            labels, at = list(listed or string.ascii_uppercase), int(given) - self.first if given.isdecimal() else -1
            if not 0 <= at < len(labels):
                raise self._fault(
                    example, f"{given!r} is no number of an option, counted from {self.key('first')}={self.first}"
                )
            return labels[at]
        named = _named(given, listed)
        if named is None or (not listed and named.isdecimal()):
            hint = f"; where it counts the options, set {self.key('first')} to 0 or 1" if given.isdecimal() else ""
            there = ", ".join(listed) or "A, B, ..."
            raise self._fault(
                example, f"the right one, {shown(given)}, is neither a letter ({there}) nor an option's text{hint}"
            )
        return named

    def _fault(self, example: Example, what: str) -> DataError:
        return DataError(f"reward part '{self.kind}', item {example.id}: {what}")


def _named(text: str, listed: dict[str, str]) -> str | None:
    """The label of the one option that a short text names; without options, any letter."""
    text = _WRAPPERS.sub(r"\1", text).strip(_AROUND).rstrip(".").strip(_AROUND)
    by_text = [label for label, own in listed.items() if _plain(own) == _plain(text)]
    if len(by_text) == 1:
        return by_text[0]
    match = _LABELLED.fullmatch(text)
    if match is None:
        return None
    label, mark, rest = match[1].upper(), (match[2] or "").strip(), match[3]
    if listed and label not in listed:
        return None
    if rest and (_plain(rest) != _plain(listed[label]) if listed else not mark):
        return None
    return label


def _plain(text: Any) -> str:
    """A text in which capitals, spaces, a last stop and marks of emphasis do not count."""
    return " ".join(unicodedata.normalize("NFKC", str(text)).casefold().split()).strip(_AROUND + ".")
