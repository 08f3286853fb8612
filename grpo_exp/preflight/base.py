"""What a part of the report is, and what a finding is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from grpo_exp.stats import Interval

if TYPE_CHECKING:
    from grpo_exp.config import Config

LEVELS = ("stop", "warn", "note")
"""stop: it cannot work so; warn: it will work badly, or may; note: worth knowing."""
Line = tuple[str, str]
"""A label and what is said under it."""


@dataclass(frozen=True)
class Finding:
    """Something worth a person's attention.

    Attributes:
        level: one of LEVELS.
        text: what was seen, and what it means.
        tries: overrides to try, each for itself, as words of a command line.
    """

    level: str
    text: str
    tries: list[str] = field(default_factory=list)


class Section(Protocol):
    """A part of the report: a dataclass whose fields are what was measured, as preflight.json holds it."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def lines(self) -> list[Line]:
        """It on the screen."""
        ...

    def findings(self, config: Config) -> Iterator[Finding]:
        """What in it is worth a finding."""
        ...


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def with_interval(interval: Interval) -> str:
    """`41.0 % (33.2–49.1)`."""
    return f"{percent(interval.value)} ({100 * interval.low:.1f}–{100 * interval.high:.1f})"
