"""Right where a regular expression matches: one for all items, or each item's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from grpo_exp.batch import Example
from grpo_exp.errors import ConfigError
from grpo_exp.options import option
from grpo_exp.patterns import Pattern
from grpo_exp.verifier import WHERE, Verdict, Verifier, read, wanted


@dataclass
class RegexReward(Verifier):
    """`right` where the expression matches, `missing` where there is nothing to match it with, `wrong` otherwise.

    An expression that takes longer than a second on a completion, such as `(a+)+$`, fails on that sample, which
    `reward.on_error` decides on. A text of more than 20,000 characters does not match.
    """

    pattern: str | None = option("the regular expression; null: each item has its own")
    field: str | None = option("with pattern=null: the field of the data that holds it; null: the reference answer")
    where: str = option("what it is matched with: the answer that a completion commits to, or all of it", choices=WHERE)
    whole: bool = option("true: it must match all of that; false: some part of it")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pattern is not None and self.field is not None:
            raise ConfigError(f"{self.key('field')}={self.field!r} has no effect with a pattern; set one of the two to null")
        self._compiled = lru_cache(maxsize=4096)(lambda text: Pattern(text, self.key("pattern")))
        if self.pattern is not None:
            self._compiled(self.pattern)

    def check_data(self, examples: Sequence[Example]) -> None:
        """With pattern=null, every item's expression is one."""
        if self.pattern is None:
            self.need("field", "the regular expression", examples)
            for example in examples:
                if (own := wanted(example, self.field)) is not None:
                    self._compiled(str(own))

    def verdict(self, text: str, example: Example, finished: bool) -> Verdict:
        """Whether the expression matches."""
        wants = self.pattern if self.pattern is not None else wanted(example, self.field)
        if wants is None:
            return Verdict(None, "the item has no regular expression")
        found = read(text, self.where, finished)
        if found is None:
            return Verdict("missing", f"no {self.where}")
        expression = self._compiled(str(wants))
        matched = expression.whole(found) if self.whole else expression.search(found)
        if matched is None:
            return Verdict("wrong", f"no match of {expression.text!r:.200}", found)
        return Verdict("right", f"matches {expression.text!r:.200}", matched)
