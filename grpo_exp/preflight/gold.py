"""What the reward gives to what is known to be right, to nothing at all, and right answers that it may not have read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_exp.answers.reference import holds
from grpo_exp.metrics import RIGHT_ABOVE
from grpo_exp.preflight.base import Finding, Line, percent
from grpo_exp.preflight.samples import Samples
from grpo_exp.rewards.base import Reward, check
from grpo_exp.track.wording import clean, cut

if TYPE_CHECKING:
    from grpo_exp.batch import Example
    from grpo_exp.config import Config

ITEMS, SHOWN, WIDTH = 8, 3, 200


@dataclass(frozen=True)
class Probe:
    """One kind of completion that no model sampled: the items it was tried on, mean reward, share that is right."""

    name: str
    items: int
    reward: float
    right: float


@dataclass(frozen=True)
class Gold:
    """Rewards of gold answers and of nothing, and samples that hold the reference and are wrong.

    Attributes:
        probes: reference answers, worked targets, empty completions.
        wrong: wrong samples.
        missed: share of them that hold the reference as a word, and in which no answer was read at all.
        elsewhere: share that holds it, where another answer was read: in the working, or by chance.
        shown: some of the missed, with what the reward says of them.
        written: the outcome part knows how an answer is to be written, so that a reference must be right.
    """

    probes: list[Probe]
    wrong: int
    missed: float
    elsewhere: float
    shown: list[dict[str, Any]]
    written: bool

    @classmethod
    def of(cls, samples: Samples, config: Config) -> Gold:
        part = config.reward.outcome_part
        items = dict(zip((e.id for e in samples.examples), samples.examples, strict=True))
        wrong = [row for row in samples.rows if row["outcome"] <= RIGHT_ABOVE]
        holding = [row for row in wrong if holds(row["completion"], items[row["id"]].answer)]
        missed = [row for row in holding if part.answer(row["completion"]) is None]
        shown = [
            {name: row[name] for name in ("id", "completion", "reference", "finished")}
            | {"said": part.explain(row["completion"], items[row["id"]])}
            for row in missed[:SHOWN]
        ]
        count = max(1, len(wrong))
        return cls(
            _probes(config, samples.examples[:ITEMS]),
            len(wrong),
            len(missed) / count,
            (len(holding) - len(missed)) / count,
            shown,
            type(part).written is not Reward.written,
        )

    def lines(self) -> list[Line]:
        probes = ", ".join(f"{probe.name} {probe.reward:.3g}" for probe in self.probes)
        told = f"in {percent(self.missed)} of {self.wrong} wrong samples the reference stands and no answer was read"
        shown = [("    e.g.", f"{cut(clean(one['completion']), WIDTH)}  ({clean(one['said'])})") for one in self.shown]
        return [("reward of", probes), *([("  missed", told)] if self.wrong else []), *shown]

    def findings(self, config: Config) -> Iterator[Finding]:
        options = config.preflight
        assert options is not None
        for probe in self.probes:
            if probe.name == "empty completion":
                if probe.right:
                    yield Finding(
                        "warn",
                        f"the empty completion counts as right for {percent(probe.right)} of the items, so that is learned",
                    )
            elif probe.right < 1:
                none = probe.right == 0 and probe.name == "reference answer" and self.written
                yield Finding(
                    "stop" if none else "warn",
                    f"the {probe.name} counts as right for only {percent(probe.right)} of {probe.items} items: the reward does "
                    "not read what the data gives as its answer",
                )
        if self.missed > options.missed:
            yield Finding(
                "warn",
                f"{percent(self.missed)} of the wrong samples hold the reference, and the reward read no answer in them: right "
                "answers may be in a form that it does not look for. preflight.json shows some",
            )


def _probes(config: Config, examples: list[Example]) -> list[Probe]:
    """`check` on some items, by kind of completion; what does not apply to an item is left out."""
    seen: dict[str, list[tuple[float, float]]] = {}
    for example in examples:
        for probe, values in check(config.reward, example):
            outcome = values[config.reward.outcome_name]
            if outcome == outcome:  # NaN where it does not apply
                seen.setdefault(probe, []).append((values["total"], outcome))
    return [
        Probe(
            name, len(found), sum(total for total, _ in found) / len(found), sum(o > RIGHT_ABOVE for _, o in found) / len(found)
        )
        for name, found in seen.items()
    ]
