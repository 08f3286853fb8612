"""What completions look like: in the asked format or not, an answer that can be read or not, alike or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_exp.metrics import RIGHT_ABOVE
from grpo_exp.preflight.base import Finding, Line, percent
from grpo_exp.preflight.samples import Samples
from grpo_exp.rewards.base import Reward

if TYPE_CHECKING:
    from grpo_exp.config import Config


@dataclass(frozen=True)
class Form:
    """Shares of samples.

    Attributes:
        format: in the format that the part named `format` asks for; None without such a part.
        read: in which the outcome part reads an answer; None for one that has no notion of answers.
        distinct: distinct completions among those of a prompt.
        repetition: 4-grams that occurred earlier in the same completion.
        samples: of each prompt.
    """

    format: float | None
    read: float | None
    distinct: float
    repetition: float
    samples: int

    @classmethod
    def of(cls, samples: Samples, config: Config) -> Form:
        part, n = config.reward.outcome_part, len(samples.rows)
        reads = type(part).answer is not Reward.answer
        asks = "format" in config.reward.parts
        return cls(
            sum((row["reward/part/format"] or 0) > RIGHT_ABOVE for row in samples.rows) / n if asks else None,
            sum(part.answer(row["completion"]) is not None for row in samples.rows) / n if reads else None,
            samples.unlike / n,
            samples.repetition / n,
            samples.each,
        )

    def lines(self) -> list[Line]:
        format = [f"{percent(self.format)} in the asked format"] if self.format is not None else []
        read = [f"an answer is read in {percent(self.read)}"] if self.read is not None else []
        unlike = f"{self.distinct * self.samples:.1f} of {self.samples} samples of a prompt are distinct"
        form = [("format", ", ".join([*format, *read]))] if format or read else []
        return [*form, ("diversity", f"{unlike}; {percent(self.repetition)} of the 4-grams repeat earlier ones")]

    def findings(self, config: Config) -> Iterator[Finding]:
        options = config.preflight
        assert options is not None
        if not config.algo.online:
            return
        if self.format is not None and self.format < options.format:
            yield Finding(
                "warn",
                f"only {percent(self.format)} of the samples are in the asked format: say it in the prompt, by an "
                "example there, or in a supervised stage before",
            )
        if self.read is not None and self.read < options.format:
            yield Finding(
                "warn",
                f"an answer is read in only {percent(self.read)} of the samples: the prompt does not ask for one in a form "
                "that the reward looks for, or the policy does not write it",
                [] if "format" in config.reward.parts else ["+reward/part@reward.parts.format=format"],
            )
        if self.samples > 1 and self.distinct <= max(options.distinct, 1 / self.samples):
            yield Finding(
                "warn",
                f"only {self.distinct * self.samples:.1f} of {self.samples} samples of a prompt are distinct at "
                f"temperature={config.root.temperature:g}, so there is little to compare",
                ["temperature=1"] if config.root.temperature < 1 else [],
            )
