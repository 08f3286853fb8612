"""Completions scored as training would score them, with what became of each and how long it took."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from grpo_exp.batch import Completions, Example
from grpo_exp.deadline import DeadlineExceeded
from grpo_exp.metrics import RIGHT_ABOVE
from grpo_exp.rewards.base import RewardSum, stand_in
from grpo_exp.track.wording import number

AT_ONCE = 32  # completions of a call, as a step has them
LONGEST = 60.0  # seconds of a call, where reward.timeout allows more

Pair = tuple[Example, str]


class Value(NamedTuple):
    """What a reward gave one completion.

    Attributes:
        outcome: of the part that says right or wrong, after the gates; None where it does not apply.
        total: of all parts.
        failed: whether a part failed on it.
        closed: whether a gate is closed.
    """

    outcome: float | None
    total: float
    failed: bool = False
    closed: bool = False

    @property
    def right(self) -> bool:
        return self.outcome is not None and self.outcome > RIGHT_ABOVE


@dataclass
class Trial:
    """A reward that is tried: it forgets all that it was shown, and goes on where it fails.

    Attributes:
        seconds: by call, the seconds that it took for each completion.
        timeouts: comparisons or programs that were stopped for their time.
    """

    rewards: RewardSum
    seconds: list[float] = dataclasses.field(default_factory=list)
    timeouts: int = 0

    def __post_init__(self) -> None:
        seconds = min(self.rewards.failures.timeout, LONGEST)
        failures = dataclasses.replace(self.rewards.failures, on_error="zero", max_failed=1.0, timeout=seconds)
        self._rewards = RewardSum(self.rewards.parts, failures, self.rewards.gate)

    def values(self, pairs: Sequence[Pair], at_once: int = AT_ONCE) -> list[Value]:
        """One value for each completion.

        Raises:
            RewardError: a part returned a wrong number of values.
        """
        return [value for i in range(0, len(pairs), at_once) for value in self._call(pairs[i : i + at_once])]

    def value(self, example: Example, text: str) -> Value:
        """The value of one completion."""
        return self._call([(example, text)])[0]

    def judged(self, completions: Completions) -> list[Value]:
        """The same of completions that a model sampled."""
        began = time.perf_counter()
        with self._rewards.unmoved():
            result = self._rewards(completions)
        self.seconds.append((time.perf_counter() - began) / max(1, len(completions)))
        self.timeouts += result.timeouts
        own = result.parts[self._rewards.outcome_name].tolist()  # [N], NaN where it does not apply
        failed = [False] * len(own) if result.failed is None else result.failed.tolist()
        closed = [False] * len(own) if result.closed is None else result.closed.tolist()
        rows = zip(own, result.outcome.tolist(), result.total.tolist(), failed, closed, strict=True)
        return [Value(None if math.isnan(o) else outcome, total, *rest) for o, outcome, total, *rest in rows]

    def why(self, example: Example, text: str) -> str:
        """What the outcome part found in a completion and why it gave its value."""
        try:
            return self.rewards.outcome_part.explain(text, example)
        except (Exception, SystemExit, DeadlineExceeded) as error:
            return f"failed: {error}"

    def pace(self) -> str:
        """Seconds for a completion, in words."""
        if not self.seconds:
            return "nothing was timed"
        middle, slowest = statistics.median(self.seconds), max(self.seconds)
        stopped = f"{self.timeouts} time-out{'' if self.timeouts == 1 else 's'}"
        return f"{number(1000 * middle)} ms a response, {number(1000 * slowest)} in the slowest call; {stopped}"

    def _call(self, pairs: Sequence[Pair]) -> list[Value]:
        alone = [stand_in(example, [text]) for example, text in pairs]
        lists: dict[str, Any] = {
            name: list(itertools.chain.from_iterable(getattr(one, name) for one in alone))
            for name in ("examples", "prompts", "texts", "token_ids", "finished")
        }
        return self.judged(Completions(**lists))
