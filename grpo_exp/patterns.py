"""A user's regular expression on a policy's text, with a bound in time: `(a+)+` takes as long as the universe otherwise.

The library `regex` looks at the clock while it matches, in any thread and on any system. Python's own `re` can only be stopped
by a signal, in the main thread alone. What an expression that took too long would have said is not known, so that is an error
of the sample, which `reward.on_error` decides on, and not a "no".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import regex

from grpo_exp.errors import ConfigError, RewardError

LONGEST = 20_000  # characters; in a longer text nothing is sought
SECONDS = 1.0  # for one text


@dataclass(frozen=True)
class Pattern:
    """An expression and the option that it stands in. The syntax is that of `re`, of which `regex` understands some more."""

    text: str
    key: str

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "_compiled", regex.compile(self.text))
        except (regex.error, RecursionError, OverflowError) as error:
            raise ConfigError(f"{self.key}={self.text!r} is not a regular expression: {error}") from error

    def search(self, text: str) -> str | None:
        """The first match anywhere in the text; None where there is none.

        Raises:
            RewardError: it took longer than SECONDS.
        """
        return self._match("search", text)

    def whole(self, text: str) -> str | None:
        """The text where it matches as a whole. Raises as `search`."""
        return self._match("fullmatch", text)

    def _match(self, how: str, text: str) -> str | None:
        if len(text) > LONGEST:
            return None
        compiled: Any = self._compiled  # type: ignore[attr-defined]
        try:
            found = getattr(compiled, how)(text, timeout=SECONDS)
        except (TimeoutError, MemoryError) as error:
            raise RewardError(
                f"{self.key}={self.text!r} took longer than {SECONDS:g} s on a text of {len(text)} characters; avoid a repeat "
                "inside a repeat, as in (a+)+"
            ) from error
        return None if found is None else str(found[0])
