"""A handful of prompts, in several languages, that ask a chat model for one digit: for rewards that need no answer.

The question of this data is not a task: it shows whether a reward (of the user's own, as a rule) moves a chat model at all,
within minutes and without a data set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from grpo_exp.batch import Example
from grpo_exp.data.base import Dataset, DataSource, items_sha256
from grpo_exp.errors import ConfigError
from grpo_exp.options import option


@dataclass
class DigitPrompts(DataSource):
    """Chat prompts that stand in the configuration, by language; the language is the stratum. There is no reference answer."""

    train: dict[str, list[str]] = option("language -> prompts to train on")
    heldout: dict[str, list[str]] = option("language -> prompts for evaluation, none of them trained on")

    def __post_init__(self) -> None:
        for key in ("train", "heldout"):
            texts = [text for texts in getattr(self, key).values() for text in texts]
            if not texts or not all(text.strip() for text in texts):
                raise ConfigError(f"data.{key}: expected at least one prompt, none of them empty")
        both = {t for texts in self.train.values() for t in texts} & {t for texts in self.heldout.values() for t in texts}
        if both:
            raise ConfigError(f"data.heldout: {min(both)!r} is also in data.train; a held-out prompt must be another one")

    def load(self) -> Dataset:
        """The prompts as chat messages."""
        train, heldout = list(_items("train", self.train)), list(_items("heldout", self.heldout))
        source = f"prompts for one digit: {len(train)} to train on, {len(heldout)} held out, in {', '.join(self.train)}"
        return Dataset(train, heldout, items_sha256(train, heldout), source)


def _items(pool: str, prompts: dict[str, list[str]]) -> Iterator[Example]:
    for language, texts in prompts.items():
        for i, text in enumerate(texts, 1):
            yield Example(id=f"{pool}-{language}-{i}", prompt=[{"role": "user", "content": text}], category=language)
