"""Whether a completion is written in the wanted script: the share of its letters, without a model and without a download."""

from __future__ import annotations

from dataclasses import dataclass

import regex

from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError
from grpo_exp.options import option
from grpo_exp.rewards.base import Reward

_NO_TEXT = regex.compile(r"</?[A-Za-z][\w-]{0,40}>|\\[A-Za-z]+")  # tags and LaTeX commands
_LETTER = regex.compile(r"[\p{L}--[\p{Script=Common}\p{Script=Inherited}]]", regex.V1)  # 𝑥 belongs to no script


@dataclass
class LanguageReward(Reward):
    """The share of letters of the wanted scripts, of all letters that belong to a script: 1 for all, 0 for none.

    Tags and LaTeX commands are no text. A script is no language: English and French are both Latin. This is what a model that
    drifts between Chinese and English needs, as in DeepSeek-R1's language consistency reward (arXiv 2501.12948).
    """

    scripts: list[str] = option(
        "scripts by their Unicode names, such as Latin, Cyrillic, Greek, Arabic, Han, Hiragana, Katakana"
    )
    no_letters: float = option("value of a completion without letters, such as a number", low=0, high=1)

    def __post_init__(self) -> None:
        key = f"reward.parts.{self.kind}"
        if self.role == "outcome":
            raise ConfigError(f"{key}.role=outcome: a script says nothing about right and wrong; use role=shaping")
        if not self.scripts:
            raise ConfigError(f"{key}.scripts=[]: name at least one, such as Latin")
        for name in self.scripts:
            try:
                regex.compile(rf"\p{{Script={name}}}" if name.isalpha() or "_" in name else "(")
            except regex.error as error:
                raise ConfigError(
                    f"{key}.scripts={list(self.scripts)}: {name!r} is no script of Unicode; they are such as Latin, Cyrillic, "
                    "Greek, Arabic, Hebrew, Devanagari, Han, Hiragana, Katakana, Hangul, Thai"
                ) from error
        self._wanted = regex.compile("".join(rf"|\p{{Script={name}}}" for name in self.scripts)[1:])

    def score(self, completions: Completions) -> list[float | None]:
        """A value from 0 to 1 for each sample."""
        return [self._value(*self._counts(text)) for text in completions.texts]

    def _value(self, ours: int, letters: int) -> float:
        return ours / letters if letters else self.no_letters

    def _counts(self, text: str) -> tuple[int, int]:
        """Letters of the wanted scripts, and of any."""
        letters = "".join(_LETTER.findall(_NO_TEXT.sub(" ", text)))
        return len(self._wanted.findall(letters)), len(letters)

    def explain(self, text: str, example: Example) -> str:
        """Such as `0.5: 6 of 12 letters are Latin`."""
        ours, letters = self._counts(text)
        return f"{self._value(ours, letters):g}: {ours} of {letters} letters are {' or '.join(self.scripts)}"
