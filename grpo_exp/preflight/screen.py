"""The report as people read it: a line or two for each part, then the verdict, then each finding with what to try."""

from __future__ import annotations

import textwrap
from pathlib import Path

from grpo_exp.preflight.report import VERDICTS, Report
from grpo_exp.track.redact import without_secrets
from grpo_exp.track.wording import clean

WIDTH, LABEL = 120, 13


def lines(report: Report, folder: Path) -> list[str]:
    """What goes to the screen."""
    shown = [_title(report), ""]
    for section in report.sections.values():
        for label, text in section.lines():
            shown += _folded(label.ljust(LABEL), text)
    shown += [line for note in report.notes for line in _folded("note".ljust(LABEL), clean(note))]
    shown += ["", f"verdict: {VERDICTS[report.level]}"]
    for finding in report.findings:
        shown += _folded(f"  {finding.level}  ", clean(finding.text))
        shown += [f"        try {word}" for word in finding.tries]
    return [without_secrets(line) for line in [*shown, f"written to {folder}"]]


def _title(report: Report) -> str:
    samples = report.samples
    if samples is None:
        return f"{report.about['name']}: it answers no prompts, so only its steps are looked at"
    prompts = f"{len(samples.examples)} training prompts of {report.about['data']['name']}"
    return f"{report.about['name']}: {prompts}, {samples.each} samples each at temperature {samples.temperature:g}"


def _folded(label: str, text: str) -> list[str]:
    """A labelled text over several lines, the later ones under its beginning."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False, break_long_words=False
    ) or [label.rstrip()]
