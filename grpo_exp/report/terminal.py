"""A comparison on the screen: with rich on a terminal, plain lines elsewhere. Text from files passes through `clean`."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from grpo_exp.report.compare import Comparison, counts
from grpo_exp.report.groups import written
from grpo_exp.report.runs import Run
from grpo_exp.report.sentences import shown, span
from grpo_exp.report.standing import Standing
from grpo_exp.track.wording import clean, columns, cut, duration, is_share, number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SHOWN = 20
"""Settings in the table, and runs in the list of failures; --csv and --json have all."""
NAMED = 3
"""Runs named beside what was found in them."""
FOUND = "found by health checks (health.jsonl in a run's folder says why, and what to try):"
PLAIN_WIDTH = 100
_GIVEN_UP = ("length", "tokens", "time", "KL")  # columns left out first where the terminal is narrow


def show(comparison: Comparison, stream: TextIO, width: int | None = None) -> None:
    """Print it; `width` in characters, None: the terminal's, at least 60."""
    if stream.isatty() and (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf"):
        from rich.console import Console

        _rich(comparison, Console(file=stream, width=width, highlight=False, markup=False, emoji=False))
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    for line in plain(comparison, width or PLAIN_WIDTH):
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def plain(comparison: Comparison, width: int = PLAIN_WIDTH) -> Iterator[str]:
    """The lines of a file or a pipe: no escape codes, no boxes; tables and commands are never folded."""
    for line in heading(comparison):
        yield from textwrap.wrap(line, width, break_on_hyphens=False, break_long_words=False)
    if comparison.ranked:
        yield ""
        header, rows = table(comparison)
        yield from columns([header, *rows])
        yield from _more(len(comparison.ranked))
    yield ""
    for text in comparison.sentences:
        yield from textwrap.wrap("- " + clean(text), width, subsequent_indent="  ", break_on_hyphens=False)
    if comparison.command:
        yield from ("", "run the best again:", f"  {clean(comparison.command)}")
    if failed := failures(comparison):
        yield from (
            "",
            "not finished:",
            *columns([["  " + name, reason] for name, reason in failed])[:SHOWN],
            *_more(len(failed)),
        )
    if found := findings(comparison):
        yield from ("", FOUND, *columns([["  " + title, where] for title, where in found]))


def heading(comparison: Comparison) -> list[str]:
    """What there is, what was varied, what it is judged by."""
    runs, by = comparison.runs, comparison.by
    sweeps = list(dict.fromkeys(run.sweep for run in runs if run.sweep))
    where = ", ".join(map(clean, sweeps)) if sweeps else clean(runs[0].label) if len(runs) == 1 else "runs"
    number_of = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    settings = f" of {len(comparison.ranked)} settings" if len(comparison.ranked) > 1 else ""
    lines = [f"{where}: {number_of}{settings}, {counts(runs)}"]
    if by:
        lines.append("varied: " + "; ".join(f"{clean(key)} {_values(runs, key)}" for key in by))
    items = next((s.values.shape[1] for s in comparison.ranked if s.by_item), None)
    asked = f", {items} held-out items" if items else ""
    asked += f", {comparison.samples} samples each" if items and comparison.samples and comparison.samples > 1 else ""
    better = "higher" if comparison.maximize else "lower"
    lines.append(f"judged by {clean(comparison.metric)}, {better} is better{asked}; intervals are of 95 %")
    return lines


def table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The ranking as cells: the header, and a row for each of the first SHOWN settings."""
    metric = comparison.metric
    unit = " %" if is_share(metric) else ""
    name = clean(metric).removeprefix("eval/") + unit
    keys = [*map(clean, short_keys(comparison.by))] or ["run"]
    header = ["#", *keys, comparison.unit, name, "to best", "KL", "length", "tokens", "time", "status"]
    rows = []
    for place, s in enumerate(comparison.ranked[:SHOWN], 1):
        values = [cut(clean(written(value)), 24) for value in s.group.values.values()] or [cut(clean(s.group.label), 40)]
        kl, length = number(s.kl), "–" if s.length is None else f"{s.length:.1f}"
        tokens = "–" if s.tokens is None else compact(s.tokens)
        time = "–" if s.seconds is None else duration(s.seconds)
        rank = str(place) if s.final else ""
        cells = [rank, *values, str(s.seeds), span(metric, s.interval, False), to_best(comparison, s), kl, length, tokens, time]
        rows.append([*cells, _status(s)])
    return header, rows


def to_best(comparison: Comparison, s: Standing) -> str:
    """`best`, `-12.3` where the difference is real, `≈ -2.1` where the two cannot be told apart."""
    if s is comparison.best and s.final:
        return "best" if len(comparison.final) > 1 else ""
    if s.versus is None:
        return ""
    text = shown(comparison.metric, -s.versus.difference.value, False)
    return text if s.versus.real else f"≈ {'0.0' if text == '-0.0' else text}"


def failures(comparison: Comparison) -> list[tuple[str, str]]:
    """(run, reason) of each that failed, was pruned or stopped; equal reasons stand once."""
    ended = [run for run in comparison.runs if run.status in ("failed", "broken") or (run.reason and run.status != "finished")]
    by_reason: dict[str, list[Run]] = {}
    for run in ended:
        reason = cut(clean(run.reason or "no reason is recorded; see error.txt in its folder"), 300)
        by_reason.setdefault(f"{run.status}: {reason}", []).append(run)
    return [(clean(_together(runs)), reason) for reason, runs in by_reason.items()]


def findings(comparison: Comparison) -> list[tuple[str, str]]:
    """(title, runs with the step it began at) of what health checks found, what most runs show first."""
    by_title: dict[str, list[str]] = {}
    for run in comparison.runs:
        for row in run.findings:
            by_title.setdefault(clean(row["title"]), []).append(f"{clean(run.label)} from step {row['since']:g}")
    ordered = sorted(by_title.items(), key=lambda pair: -len(pair[1]))
    return [(t, ", ".join(w[:NAMED]) + (f" and {len(w) - NAMED} more" if len(w) > NAMED else "")) for t, w in ordered]


def _status(s: Standing) -> str:
    """`finished`, or `2 of 3 finished`."""
    done = sum(run.status == "finished" for run in s.group.runs)
    return s.status if done in (0, len(s.group.runs)) else f"{done} of {len(s.group.runs)} finished"


def short_keys(keys: Sequence[str]) -> list[str]:
    """The last word of each dotted key where that is enough to tell them apart."""
    last = Counter(key.rpartition(".")[2] for key in keys)
    return [key.rpartition(".")[2] if last[key.rpartition(".")[2]] == 1 else key for key in keys]


def compact(count: float) -> str:
    """`950`, `98k`, `1.2M`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:.0f}"


# ---- with rich


def _rich(comparison: Comparison, console: Console) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    first, *rest = heading(comparison)
    console.print(Text(first, style="bold"))
    for line in rest:
        console.print(Text(line, style="dim"))
    if comparison.ranked:
        console.print(_fitting(comparison, console.width))
        for line in _more(len(comparison.ranked)):
            console.print(Text(line, style="dim"))
    said = Table.grid(padding=(0, 1))
    for i, text in enumerate(comparison.sentences):
        said.add_row(Text("•", style="cyan"), Text(clean(text), style="bold green" if i == 0 and comparison.final else ""))
    console.print(Padding(said, (0, 0, 0, 1)))
    if comparison.command:
        console.print(Text("\n run the best again", style="bold"))
        console.print(Text(f" {clean(comparison.command)}", style="cyan"), soft_wrap=True)
    if failed := failures(comparison):
        console.print(Text("\n not finished", style="bold yellow"))
        for name, reason in failed[:SHOWN]:
            console.print(Padding(Text.assemble((name, "yellow"), "  ", reason), (0, 0, 0, 1)))
        for line in _more(len(failed)):
            console.print(Text(line, style="dim"))
    if found := findings(comparison):
        console.print(Text(f"\n {FOUND}", style="bold yellow"))
        for title, where in found:
            console.print(Padding(Text.assemble((title, "yellow"), "  ", where), (0, 0, 0, 1)))


def _fitting(comparison: Comparison, width: int) -> Table:
    """The ranking as a table no wider than the terminal: the least important columns go first."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    header, rows = table(comparison)
    kept = list(range(len(header)))
    if all(cells[-1] == "finished" for cells in rows):
        kept.pop()  # said in the heading
    widths = [max(map(len, cells)) + 2 for cells in zip(header, *rows, strict=True)]
    results = len(header) - 5  # the first of the columns that may go
    for name in _GIVEN_UP:
        if sum(widths[i] for i in kept) + 1 > width:
            kept.remove(header.index(name, results))
    out = Table(box=SIMPLE_HEAD, header_style="bold cyan", padding=(0, 0, 0, 1))
    names = len(comparison.by) or 1
    for i in kept:
        if 0 < i <= names or i == len(header) - 1:
            out.add_column(header[i], no_wrap=True, overflow="ellipsis")
        else:
            out.add_column(header[i], justify="right", no_wrap=True)
    for cells, s in zip(rows, comparison.ranked, strict=False):
        style = (
            "bold green" if s is comparison.best and s.final else "dim" if not s.final or (s.versus and s.versus.real) else ""
        )
        out.add_row(*(Text(cells[i]) for i in kept), style=style)
    return out


def _more(count: int) -> list[str]:
    return [f"… and {count - SHOWN} more; --csv FILE and --json FILE have all"] if count > SHOWN else []


def _values(runs: Sequence[Run], key: str) -> str:
    """`0.01, 0.04, 0.1`, or `12 values from 0.001 to 0.1`."""
    found = list(dict.fromkeys(written(run.config[key]) for run in runs if key in run.config))
    numbers = [v for run in runs if isinstance(v := run.config.get(key), (int, float)) and not isinstance(v, bool)]
    if len(numbers) and len(found) > 8:
        return f"{len(found)} values from {written(min(numbers))} to {written(max(numbers))}"
    if len(numbers) == sum(key in run.config for run in runs):
        found = list(dict.fromkeys(map(written, sorted(numbers))))
    return cut(clean(", ".join(found)), 120)


def _together(runs: Sequence[Run]) -> str:
    return runs[0].label if len(runs) == 1 else f"{runs[0].label} and {len(runs) - 1} more"
