"""What the laboratory found, as lines for the screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from grpo_exp.laboratory.findings import Findings
from grpo_exp.laboratory.holes import Tried
from grpo_exp.laboratory.labels import CALLED, Case, Labels
from grpo_exp.laboratory.samples import Sample
from grpo_exp.track.wording import clean, columns, cut

SHOWN = 10  # disagreements
SAMPLES = 20
WIDTH = 160
KINDS = 12  # of disagreements that are counted
FEW = 6  # different values of the outcome that are listed


def lines(found: Findings, kept: bool) -> list[str]:
    """All of it; `kept` says that files hold what is left out here."""
    told = [f"reward   {clean(found.reward)}", f"data     {clean(found.data)}"]
    told += _labels(found, kept)
    told += _attacks(found.attacks)
    if found.samples is not None:
        told += _samples(found.samples, kept)
    told += [f"note: {clean(note)}" for note in found.notes]
    return [*told, "", found.verdict()]


# ---- labelled responses


def _labels(found: Findings, kept: bool) -> list[str]:
    labels = found.labels
    items = len({case.response.example.id for case in labels.cases})
    told = ["", f"labelled responses: {len(labels.cases)} to {items} items, {clean(found.source)}", *_confusion(labels)]
    told += [f"time     {found.pace}", *_opinion(labels)]
    wrong = labels.disagreements()
    if not wrong:
        return told
    told += ["", "where the reward and the label disagree"]
    for case in _varied(wrong)[:SHOWN]:
        told += _case(case)
    counts = Counter(map(_kind, wrong))
    told.append(f"  of what kind: {_counts(counts, KINDS)}")
    return told + _rest(len(wrong), SHOWN, kept, "responses.jsonl")


def _confusion(labels: Labels) -> list[str]:
    """The table of labels against what the reward calls them, and the values given."""
    table = labels.confusion()
    there = [called for called in CALLED if called in ("right", "wrong") or any(row[called] for row in table.values())]
    cells = [["", *(called if called in ("does not apply", "failed") else f"called {called}" for called in there)]]
    cells += [
        [f"  {'right' if label else 'wrong'}, {row.total()}", *(str(row[c]) for c in there)] for label, row in table.items()
    ]
    told, values = columns(cells), labels.values()
    if all(len(row) <= FEW for row in values.values()):
        shown = [f"{'right' if label else 'wrong'} {_counts(row)}" for label, row in values.items() if row]
        told.append(f"values   {'; '.join(shown)}")
    return told


def _kind(case: Case) -> str:
    return f"{'right' if case.response.right else 'wrong'}, {case.response.how}"


def _varied(cases: Sequence[Case]) -> list[Case]:
    """The first of each kind, then the second of each, wrong ones that are called right before all others."""
    seen: Counter[str] = Counter()
    turns = []
    for case in cases:
        turns.append(seen[_kind(case)])
        seen[_kind(case)] += 1
    order = sorted(range(len(cases)), key=lambda i: (cases[i].response.right, turns[i]))
    return [cases[i] for i in order]


def _case(case: Case) -> list[str]:
    label = "right" if case.response.right else "wrong"
    reference = "" if case.response.example.answer is None else f", reference {case.response.example.answer!r:.60}"
    return [
        f"  {label}, called {case.called}: {clean(case.response.how)}{clean(reference)}",
        f"    response  {cut(clean(case.response.text), WIDTH, tail=True) or '(empty)'}",
        f"    reward    {cut(clean(case.why), WIDTH)}",
    ]


def _opinion(labels: Labels) -> list[str]:
    """What math-verify says, in two lines; none where it was not asked."""
    if not labels.asked:
        return []
    against, undecided = labels.against_opinion(), labels.undecided()
    said = labels.asked - undecided
    late = f"; it said nothing of {undecided}" if undecided else ""
    same = f"{said - len(against)} of the {said} responses that it was asked about"
    told = [f"math-verify, as a second opinion: the same as the reward on {same}{late}"]
    if against:
        right = sum(case.response.right == case.value.right for case in against)
        counts = Counter(f"{case.response.how}" for case in against)
        told.append(
            f"  where they differ the label is with the reward {right} times of {len(against)}; mostly: {_counts(counts, 6)}"
        )
    return told


# ---- attacks


def _attacks(attacks: Sequence[Tried]) -> list[str]:
    told = ["", f"attacks: {len(attacks)}, outcome and total of each, the worst of all items"]
    cells = [
        [f"  {one.verdict}", _value(one), clean(one.name), cut(clean(one.why), WIDTH)]
        for one in sorted(attacks, key=lambda one: one.verdict != "HOLE")
    ]
    told += columns(cells) if cells else []
    slowest = max(attacks, key=lambda one: one.seconds, default=None)
    return [*told, f"  the slowest took {slowest.seconds:.2f} s: {clean(slowest.name)}"] if slowest else told


def _value(one: Tried) -> str:
    outcome = "failed" if one.value.failed else "none" if one.value.outcome is None else f"{one.value.outcome:g}"
    return f"{outcome} {one.value.total:g}"


# ---- samples


def _samples(samples: Sequence[Sample], kept: bool) -> list[str]:
    """Those that are not right; first those in which the reference answer stands somewhere."""
    wrong = sorted((one for one in samples if not one.value.right), key=lambda one: not one.holds_reference)
    told = ["", f"samples: {len(samples)} of the model, {len(samples) - len(wrong)} right; those that are not:"]
    for one in wrong[:SAMPLES]:
        mark = "  <- the reference answer stands in it" if one.holds_reference else ""
        told += [
            f"  reference {cut(clean(one.example.answer), 60)}{mark}{'' if one.finished else '  (cut off at the limit)'}",
            f"    said    {cut(clean(one.text), WIDTH, tail=True) or '(empty)'}",
            f"    reward  {cut(clean(one.why), WIDTH)}",
        ]
    return told + _rest(len(wrong), SAMPLES, kept, "samples.jsonl")


# ---- words


def _counts(counts: Counter[str], most: int | None = None) -> str:
    return ", ".join(f"{clean(name)} ({count})" for name, count in _by_count(counts)[:most])


def _by_count(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _rest(count: int, shown: int, kept: bool, file: str) -> list[str]:
    if count <= shown:
        return []
    return [f"  and {count - shown} more, " + (f"in {file}" if kept else "which out=FOLDER writes down")]
