"""What attacks earn, held against what a wrong answer earns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_exp.laboratory.attacks import Attack, Target, attacks, sweep
from grpo_exp.laboratory.trial import Trial, Value

VERDICTS = ("ok", "suspicious", "HOLE")  # the worst last
EPS = 1e-6


@dataclass(frozen=True)
class Tried:
    """An attack and what came of it.

    Attributes:
        name: of the attack, the same for every item.
        item: the item's id.
        text: the completion.
        value: what it got.
        seconds: that this took.
        verdict: one of VERDICTS.
        why: what is wrong; "" where nothing is.
    """

    name: str
    item: str
    text: str
    value: Value
    seconds: float
    verdict: str
    why: str = ""


def tried(trial: Trial, target: Target) -> list[Tried]:
    """Every attack on an item, each scored alone."""
    wrong = trial.value(target.example, target.writing.one(target.wrong))
    found = [_one(trial, target, attack, wrong) for attack in attacks(target)]
    return [*found, _swept(trial, target, wrong)] if target.number is not None else found


def worst(found: Sequence[Tried]) -> list[Tried]:
    """One for each name: the worst that came of it on any item."""
    by_name: dict[str, Tried] = {}
    for one in found:
        other = by_name.get(one.name)
        if other is None or _rank(one) > _rank(other):
            by_name[one.name] = one
    return list(by_name.values())


def _rank(one: Tried) -> tuple[int, float]:
    return VERDICTS.index(one.verdict), one.value.total


def _one(trial: Trial, target: Target, attack: Attack, wrong: Value) -> Tried:
    value = trial.value(target.example, attack.text)
    verdict, why = _judged(trial, value, wrong, attack.debatable or (attack.hedges and target.writing.part.lenient))
    if value.failed:
        why = f"{trial.why(target.example, attack.text)}; {why}"
    return Tried(attack.name, target.example.id, attack.text, value, trial.seconds[-1], verdict, why)


def _judged(trial: Trial, value: Value, wrong: Value, debatable: bool) -> tuple[str, str]:
    if value.failed:
        ends = trial.rewards.failures.on_error == "error"
        return ("HOLE", "such a completion ends a run") if ends else ("suspicious", "it fails, which counts nothing")
    if (value.outcome or 0.0) > (wrong.outcome or 0.0) + EPS:
        return ("suspicious", "a strict reader would not count it") if debatable else ("HOLE", _more(value, wrong))
    if value.total > wrong.total + EPS:
        return "suspicious", f"in total it earns {value.total:g}, a wrong answer {wrong.total:g}: shaping pays"
    return "ok", ""


def _more(value: Value, wrong: Value) -> str:
    return "counts as right" if value.right else f"a wrong answer earns {wrong.outcome or 0:g}"


def _swept(trial: Trial, target: Target, wrong: Value) -> Tried:
    """Of the numbers from 0 to 99, each stated alone, the right one alone may earn."""
    cases = sweep(target)
    values = trial.values([(target.example, text) for _, text in cases])
    others = [(text, value) for (right, text), value in zip(cases, values, strict=True) if not right]
    earn = [(text, value) for text, value in others if _judged(trial, value, wrong, False)[0] == "HOLE"]
    text, value = max(earn or others, key=lambda pair: pair[1].total)
    verdict, why = ("HOLE", f"{len(earn)} wrong numbers earn, or make it fail") if earn else ("ok", "")
    return Tried("each number from 0 to 99 alone", target.example.id, text, value, trial.seconds[-1], verdict, why)
