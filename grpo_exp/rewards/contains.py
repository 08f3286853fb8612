"""Right where wanted texts occur: for keywords, names, short answers that may be worded freely."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from grpo_exp.batch import Example
from grpo_exp.errors import ConfigError
from grpo_exp.options import option
from grpo_exp.verifier import WHERE, Verdict, Verifier, read, wanted


@dataclass
class ContainsReward(Verifier):
    """`right` where all wanted texts occur, or with `enough=any` one of them; `near` where some of all do.

    Who names everything contains everything: with where=completion a list of candidates is right. Hence where=answer, and
    `longest`. Left out: synonyms, and inflected words.
    """

    lenient: ClassVar[bool] = True

    near: float = option("with enough=all: value of a completion with some of the texts, but not all")
    texts: list[str] = option("the wanted texts, for all items; []: each item has its own")
    field: str | None = option(
        "with texts=[]: the field of the data with a text or a list of texts; null: the reference answer"
    )
    enough: str = option("how many of them must occur", choices=("all", "any"))
    where: str = option("where they are sought: in the answer that a completion commits to, or in all of it", choices=WHERE)
    words: bool = option("true: as words of their own, so that 3 is not in 13; false: also within words")
    case: bool = option("true: capitals count; false: they do not")
    longest: int | None = option("longest answer in characters, since a long one names many things; null: any", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.texts and self.field is not None:
            raise ConfigError(f"{self.key('field')}={self.field!r} has no effect with texts; set field=null or texts=[]")
        if not all(text.strip() for text in self.texts):
            raise ConfigError(f"{self.key('texts')}={list(self.texts)}: an empty text is in every completion")

    def check_data(self, examples: Sequence[Example]) -> None:
        """With texts=[], some item has texts of its own."""
        if not self.texts:
            self.need("field", "the wanted text", examples)

    def verdict(self, text: str, example: Example, finished: bool) -> Verdict:
        """Which of the texts occur."""
        wants = self._wanted(example)
        if not wants:
            return Verdict(None, "the item has no text that is wanted")
        found = read(text, self.where, finished)
        if found is None:
            return Verdict("missing", f"no {self.where}")
        if self.longest is not None and len(found) > self.longest:
            return Verdict("wrong", f"longer than {self.longest} characters", found)
        place = self._folded(found)
        there = [want for want in wants if self._within(self._folded(want), place)]
        if len(there) == len(wants) or (there and self.enough == "any"):
            return Verdict("right", f"has {', '.join(map(repr, there))}"[:200], found)
        lacking = ", ".join(repr(want) for want in wants if want not in there)[:200]
        return Verdict("near" if there and self.enough == "all" else "wrong", f"lacks {lacking}", found)

    def _wanted(self, example: Example) -> list[str]:
        if self.texts:
            return list(self.texts)
        own = wanted(example, self.field)
        return [str(text) for text in (own if isinstance(own, list) else [own]) if text is not None and str(text).strip()]

    def _folded(self, text: str) -> str:
        """Compatible characters made one, spaces single, capitals as the option says."""
        text = " ".join(unicodedata.normalize("NFKC", text).split())
        return text if self.case else text.casefold()

    def _within(self, want: str, place: str) -> bool:
        at = place.find(want)
        while at >= 0 and self.words and not _alone(place, at, at + len(want)):
            at = place.find(want, at + 1)
        return at >= 0


def _alone(text: str, start: int, end: int) -> bool:
    """Whether no letter or digit goes on into what stands from start to end; nor a number: 3 is not in 3.5 or -3."""
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    if text[start].isalnum() and before[-1:].isalnum():
        return False
    if text[end - 1].isalnum() and after[:1].isalnum():
        return False
    if text[start].isdigit() and (before[-1:] in ("-", "−") or (before[-1:] in (".", ",") and before[:1].isdigit())):
        return False
    return not (text[end - 1].isdigit() and after[:1] in (".", ",") and after[1:].isdigit())
