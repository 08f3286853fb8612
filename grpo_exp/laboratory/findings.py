"""All that the laboratory found of a reward, its verdict, and the files that keep it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_exp.laboratory.holes import Tried, worst
from grpo_exp.laboratory.labels import CALLED, Case, Labels
from grpo_exp.laboratory.samples import Sample


@dataclass(frozen=True)
class Findings:
    """What was tried and what came of it.

    Attributes:
        reward, data: in words.
        labels: the labelled responses.
        source: where these come from, in words.
        tried: the attacks, on each item.
        pace: seconds for a response, in words.
        misses: the share of right responses that the reward may miss.
        samples: a model's completions; None where none was asked.
        notes: what else a person should know.
    """

    reward: str
    data: str
    labels: Labels
    source: str
    tried: list[Tried]
    pace: str
    misses: float = 0.0
    samples: list[Sample] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def attacks(self) -> list[Tried]:
        """One for each attack, the worst of all items."""
        return worst(self.tried)

    def faults(self) -> list[str]:
        """Why the reward is not to be trusted; none where it is."""
        table = self.labels.confusion()
        right, wrong = table[True].total(), table[False].total()
        holes = [one for one in self.attacks if one.verdict == "HOLE"]
        accepted, missed = table[False]["right"], table[True]["wrong"] + table[True]["does not apply"]
        failed, unlike = table[True]["failed"] + table[False]["failed"], table[False]["does not apply"]
        faults = [f"{accepted} of {wrong} wrong responses count as right"] if accepted else []
        faults += [f"{missed} of {right} right responses do not count"] if missed > self.misses * right else []
        faults += [f"it does not apply to {unlike} wrong responses"] if unlike else []
        faults += [f"it fails on {failed} responses"] if failed else []
        return faults + ([f"{len(holes)} attack{'s are holes' if len(holes) > 1 else ' is a hole'}"] if holes else [])

    def verdict(self) -> str:
        """The last line."""
        faults, odd = self.faults(), sum(one.verdict == "suspicious" for one in self.attacks)
        if faults:
            return f"not to be trusted: {'; '.join(faults)}"
        missed = self.labels.confusion()[True]
        allowed = missed["wrong"] + missed["does not apply"]
        some = f", but for {allowed} right ones that misses={self.misses:g} allows," if allowed else ""
        more = f"; {odd} are suspicious" if odd else ""
        agrees = f"it agrees with {len(self.labels.cases)} labelled responses{some}"
        return f"trustworthy: {agrees} and none of {len(self.attacks)} attacks is a hole{more}"

    def plain(self) -> dict[str, Any]:
        """A summary as JSON values."""
        table, attacks = self.labels.confusion(), self.attacks
        return {
            "reward": self.reward,
            "data": self.data,
            "trustworthy": not self.faults(),
            "verdict": self.verdict(),
            "labelled": {
                "source": self.source,
                **{
                    name: {called: table[label][called] for called in CALLED}
                    for name, label in (("right", True), ("wrong", False))
                },
            },
            "second_opinion": {
                "asked": self.labels.asked,
                "differs": len(self.labels.against_opinion()),
                "undecided": self.labels.undecided(),
            },
            "attacks": {
                one.name: {"verdict": one.verdict, "outcome": one.value.outcome, "total": one.value.total} for one in attacks
            },
            "pace": self.pace,
            "notes": self.notes,
        }

    def write(self, folder: Path, config: dict[str, Any], secrets: set[str]) -> None:
        """reward.json, config.yaml, and responses.jsonl, attacks.jsonl, samples.jsonl with a line for each completion.

        Raises:
            RunError: a file cannot be written.
        """
        import yaml

        from grpo_exp.track.files import json_line, json_text, make_folder, write_whole
        from grpo_exp.track.redact import redact

        make_folder(folder)
        write_whole(folder / "reward.json", json_text(redact(self.plain(), secrets)))
        write_whole(folder / "config.yaml", yaml.safe_dump(redact(config, secrets), sort_keys=False, allow_unicode=True))
        files: dict[str, Sequence[dict[str, Any]]] = {
            "responses.jsonl": [_case(case) for case in self.labels.cases],
            "attacks.jsonl": [_tried(one) for one in self.tried],
            "samples.jsonl": [_sample(one) for one in self.samples or []],
        }
        for name, rows in files.items():
            if rows:
                write_whole(folder / name, b"".join(map(json_line, rows)).decode("ascii"))


def _case(case: Case) -> dict[str, Any]:
    item = case.response.example
    return {
        "id": item.id,
        "prompt": item.prompt,
        "answer": item.answer,
        "response": case.response.text,
        "right": case.response.right,
        "how": case.response.how,
        "called": case.called,
        "outcome": case.value.outcome,
        "total": case.value.total,
        "why": case.why,
        "math_verify": case.opinion,
    }


def _tried(one: Tried) -> dict[str, Any]:
    value = {"outcome": one.value.outcome, "total": one.value.total, "failed": one.value.failed}
    return {
        "attack": one.name,
        "id": one.item,
        "verdict": one.verdict,
        **value,
        "why": one.why,
        "seconds": round(one.seconds, 4),
    } | {"completion": one.text}


def _sample(one: Sample) -> dict[str, Any]:
    value = {"outcome": one.value.outcome, "total": one.value.total, "why": one.why, "holds_reference": one.holds_reference}
    item = {"id": one.example.id, "prompt": one.example.prompt, "answer": one.example.answer}
    return {**item, "completion": one.text, "finished": one.finished, **value}
