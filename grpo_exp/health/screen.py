"""What the detectors say of runs, for people and for machines."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence

from grpo_exp.health.base import ACTIONS
from grpo_exp.health.log import Examined
from grpo_exp.track.base import Row
from grpo_exp.track.files import plain
from grpo_exp.track.redact import redact, without_secrets
from grpo_exp.track.wording import clean, sample_lines

WIDTH, LABEL = 120, 13


def lines(examined: Sequence[Examined]) -> list[str]:
    """The screen. Of several runs, those in which nothing is found have a line each."""
    shown: list[str] = []
    for one in examined:
        if len(examined) > 1 and not one.findings:
            nothing = f"nothing found by {_count(len(one.looked), 'detector')}" if one.looked else "nothing was looked at"
            shown.append(clean("; ".join([f"{_title(one)}: {nothing}", *one.log.notes])))
        else:
            shown += [*([""] if shown else []), *_run(one)]
    return [without_secrets(line) for line in shown]


def _run(one: Examined) -> list[str]:
    log = one.log
    taken = ", ".join(f"{ours} = {theirs}" for ours, theirs in log.taken.items() if ours != theirs)
    parts = [("taken", taken), ("looked", ", ".join(one.looked) or "no detector had what it needs")]
    missing = ", ".join(f"{name} ({' '.join(needs) or 'too little'})" for name, needs in one.blind.items())
    parts += [("could not", missing), ("off", ", ".join(one.off)), *(("note", note) for note in log.notes)]
    shown = [clean(_title(one)), ""]
    shown += [line for label, text in parts if text for line in _folded(label.ljust(LABEL), clean(text))]
    if not one.findings:
        return [*shown, "", "verdict: nothing found" if one.looked else "verdict: nothing was looked at"]
    shown += ["", f"verdict: {_count(len(one.findings), 'finding')}"]
    return [*shown, *(line for row in one.findings for line in finding(row))]


def finding(row: Row) -> list[str]:
    """A line of health.jsonl as people read it: what, since when, what was seen, why, what to try, samples that show it."""
    when = f"since step {row['since']}" + (f", found at step {row['step']}" if row["step"] != row["since"] else "")
    shown = _folded(f"  {row['action']}  ", f"{clean(row['title'])}, {when}")
    shown += _folded("        ", clean(row["text"])) + _folded("        why: ", clean(row["why"]))
    shown += [f"        try {clean(word)}" for word in row["tries"]]
    for sample in row["samples"]:
        told = [*sample_lines(sample, WIDTH - 24), *((key, clean(text)) for key, text in sample.items() if key in _TOLD)]
        shown += [f"          {label.ljust(12)}{text}" for label, text in told]
    return shown


_TOLD = ("reference", "said")  # of a sample, besides what the console shows of one


def gravest(examined: Sequence[Examined]) -> str:
    """The action of the gravest finding, `off` where there is none."""
    return max((row["action"] for one in examined for row in one.findings), key=ACTIONS.index, default="off")


def as_json(examined: Sequence[Examined]) -> str:
    """Everything that is known of the runs; a finding is a line of health.jsonl."""
    content = [
        {
            "run": one.log.label,
            "kind": one.log.kind,
            "state": one.log.state,
            "step": one.log.done,
            "steps": one.log.steps,
            "taken": dict(one.log.taken),
            "looked": one.looked,
            "could_not": one.blind,
            "off": one.off,
            "notes": one.log.notes,
            "findings": one.findings,
        }
        for one in examined
    ]
    return json.dumps(redact(plain({"runs": content})), indent=2, allow_nan=False) + "\n"


def _title(one: Examined) -> str:
    log = one.log
    done = f"{log.done:,} of {log.steps:,} steps" if log.steps and log.steps != log.done else f"{_count(log.done, 'step')}"
    return ", ".join(part for part in (f"{log.label}: {log.kind}", log.state, done) if part)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _folded(label: str, text: str) -> list[str]:
    """A labelled text over several lines, the later ones under its beginning."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False, break_long_words=False
    ) or [label.rstrip()]
