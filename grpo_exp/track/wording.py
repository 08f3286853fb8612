"""What a run says to people, as plain text: progress, samples, evaluations, the table at the end.

Pure functions on the dicts that trackers receive; every key may be missing. Text that a model or a data file wrote passes
through `clean`, so that it cannot move the cursor, change colours or fake lines of ours.
"""

from __future__ import annotations

import itertools
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from grpo_exp.track.base import Row
from grpo_exp.track.redact import without_secrets

_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, invisible format (writing direction too), surrogates, line separators
FARTHEST = sys.float_info.max
_BARS = "▁▂▃▄▅▆▇█"
_NOT_PARTS = {"step", "kind", "tokens", "seconds", "total", "reward", "length", "group", "advantage", "weight"}

# What the progress line shows, most important first. A loss is not among them: it starts near 0 and says nothing about
# progress, save where the loss is all there is (supervised training).
PROGRESS = {
    "reward/mean": "reward",
    "dpo/accuracy": "accuracy",
    "dpo/margin": "margin",
    "kl/mean": "KL",
    "length/mean": "len",
    "reward/std": "std",
}


def clean(text: object) -> str:
    """Text on one line without control characters: a line break becomes ⏎, other control characters their escape."""
    spaced = str(text).replace("\r\n", "\n").replace("\n", " ⏎ ").replace("\t", " ")
    return "".join(c if unicodedata.category(c) not in _UNSAFE else _escape(c) for c in spaced).strip()


def lines(text: str) -> str:
    """Text that keeps its lines and their indentation, each clean."""
    return "\n".join(line[: len(line) - len(line.lstrip(" "))] + clean(line) for line in text.split("\n"))


def said(text: object) -> str:
    """A message for the screen: one line, clean, without secrets."""
    return clean(without_secrets(str(text)))


def cut(text: str, width: int, tail: bool = False) -> str:
    """The first, or with `tail` the last, `width` characters, with an ellipsis where some are left out."""
    if len(text) <= width:
        return text
    return "…" + text[len(text) - width + 1 :] if tail else text[: width - 1] + "…"


def number(value: Any) -> str:
    """A number at three or four significant digits; whole numbers with separators; – for what is no number."""
    if not is_number(value):
        return "–" if value is None or isinstance(value, float) else clean(value)
    if isinstance(value, int) or (abs(value) >= 1000):
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.1 else f"{value:.2g}"


def short(value: Any) -> str:
    """An option's value as one would type it: 0.05, 3e-05, 1."""
    return f"{value:g}" if is_number(value) else clean(value)


def duration(seconds: float) -> str:
    """`0:07`, `12:34`, `3:05:00`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def is_share(name: str) -> bool:
    """Whether a metric is a share of 1 that people read in percent."""
    return any(part in name for part in ("pass@", "maj@", "format", "accuracy", "_frac", "frac/"))


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The course of a metric in `width` characters, each the mean of its stretch."""
    values = [v for v in values if is_number(v)]
    if not values:
        return ""
    n = min(width, len(values))
    edges = [round(i * len(values) / n) for i in range(n + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((m - low) * scale)] for m in means)


def progress_parts(row: Row, steps: int | None) -> list[str]:
    """The parts of the progress line: step, then metrics, most important first."""
    parts = [f"step {row.get('step', 0)}" + (f"/{steps}" if steps else "")]
    parts += [f"{label} {_metric(name, row[name])}" for name, label in PROGRESS.items() if is_number(row.get(name))]
    if len(parts) == 1 and is_number(row.get("loss/total")):
        parts.append(f"loss {number(row['loss/total'])}")
    if is_number(row.get("throughput/tokens_per_s")):
        parts.append(f"{_compact(row['throughput/tokens_per_s'])} tok/s")
    return parts


def eval_line(row: Row) -> str:
    """`eval step 50: pass@1 63.3 % (54.2–71.7), maj@8 70.0 %, length 41.0`."""
    parts = []
    for name, value in row.items():
        if not name.startswith("eval/") or name.count("/") > 1 or name.endswith(("_low", "_high")) or not is_number(value):
            continue
        low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
        parts.append(f"{name.removeprefix('eval/')} {_with_interval(name, value, low, high, unit=True)}")
    return f"eval step {row.get('step', 0)}: {', '.join(parts) or 'nothing measured'}"


def sample_lines(row: Row, width: int) -> list[tuple[str, str]]:
    """One sample as (label, text): the prompt's end, the completion, the reward and what it is made of."""
    parts = {k: v for k, v in _reward_parts(row).items() if v is not None}
    made_of = " + ".join(f"{clean(k)} {number(v)}" for k, v in parts.items())
    total = row.get("total", row.get("reward"))
    reward = f"{number(total)}" + (f"  ({made_of})" if made_of else "")
    details = [f"length {row['length']}"] if "length" in row else []
    details += ["cut off at the limit"] if row.get("finished") is False else []
    return [
        ("prompt", cut(clean(row.get("prompt", "")), width, tail=True)),
        ("completion", cut(clean(row.get("completion", "")), width) or "(empty)"),
        ("reward", ", ".join([reward, *details])),
    ]


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    """`count` rows from the best reward to the worst, evenly between."""
    ordered = sorted(rows, key=lambda row: -float(row["total"]) if is_number(row.get("total")) else 0.0)
    if count < 2 or len(ordered) <= count:
        return ordered[:count]
    return [ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)]


def result_table(card: Mapping[str, Any]) -> list[str]:
    """Before and after, aligned, with intervals; [] where nothing was measured. Shares are in percent."""
    before, after, difference = (part(card, key) for key in ("before", "after", "difference"))
    names = list(dict.fromkeys([*after, *before]))
    if not names:
        return []
    cells = [["", "before", "after", "difference"] if before else ["", "", "after", ""]]
    for name in names:
        label = clean(name).removeprefix("eval/") + (" %" if is_share(name) else "")
        if name.count("/") > 1:
            label = "  " + clean(name.split("/", 2)[2])  # a category of the metric above it
        cells.append(
            [
                label,
                *(_cell(name, column.get(name)) for column in (before, after)),
                _cell(name, difference.get(name), True),
            ]
        )
    return columns(cells)


def status_line(card: Mapping[str, Any]) -> str:
    """`finished in 3:21: eval/pass@1 0.633, 98,304 tokens sampled`."""
    text = str(card.get("status", "ended"))
    if is_number(card.get("wall_seconds")):
        text += f" in {duration(float(card['wall_seconds']))}"
    parts = []
    if is_number(card.get("objective")):
        parts.append(f"{part(card, 'goal').get('metric', 'objective')} {number(card['objective'])}")
    if card.get("tokens"):
        parts.append(f"{number(card['tokens'])} tokens sampled")
    return clean(f"{text}: {', '.join(parts)}" if parts else text)


def columns(cells: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, columns aligned to the left and two spaces apart."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]


def part(card: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A part of the run card that is a dict itself, {} where it is missing."""
    found = card.get(key)
    return found if isinstance(found, Mapping) else {}


def _reward_parts(row: Row) -> dict[str, Any]:
    """The parts of a sample's reward, whichever way the row names them: parts={…}, reward/part/<name> or <name>."""
    if isinstance(row.get("parts"), dict):
        return dict(row["parts"])
    prefixed = {k.rsplit("/", 1)[1]: v for k, v in row.items() if k.startswith("reward/part/")}
    flat = {k: v for k, v in row.items() if k not in _NOT_PARTS and "/" not in k and is_number(v)}
    return prefixed or flat


def _metric(name: str, value: float) -> str:
    if is_share(name):
        return f"{100 * value:.1f} %"
    return f"{value:.0f}" if name.startswith("length/") and value >= 10 else number(value)


def _with_interval(name: str, value: float, low: Any, high: Any, unit: bool = False) -> str:
    factor, form = (100.0, "{:.1f}") if is_share(name) else (1.0, "{:.3g}")
    text = (form.format(factor * value) if is_share(name) else number(value)) + (" %" if unit and is_share(name) else "")
    if not (is_number(low) and is_number(high)):
        return text
    return f"{text} ({form.format(factor * low)}–{form.format(factor * high)})"


def _cell(name: str, triple: Any, signed: bool = False) -> str:
    value, low, high = (*triple, None, None, None)[:3] if isinstance(triple, (list, tuple)) else (triple, None, None)
    if not is_number(value):
        return "–"
    if not signed:
        return _with_interval(name, value, low, high)
    factor, form = (100.0, "{:+.1f}") if is_share(name) else (1.0, "{:+.3g}")
    text = form.format(factor * value)
    return f"{text} ({form.format(factor * low)}, {form.format(factor * high)})" if is_number(low) and is_number(high) else text


def _compact(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether this is a finite number, as a float too: a file may hold whole numbers of any length."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -FARTHEST <= value <= FARTHEST


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def sent_back(card: Mapping[str, Any]) -> str:
    """Where a run is sent that its health checks ended, and what changes; empty where they did not send it back."""
    waiting = [one for one in card.get("rollbacks") or [] if not one["done"]]
    if not waiting:
        return ""
    changes = ", ".join(f"{key} {short(old)} -> {short(new)}" for key, (old, new) in waiting[-1]["changes"].items())
    return f"back to step {short(waiting[-1]['to'])}, with {changes}; what came after it is kept in a folder earlier-N"


def finding_lines(row: Mapping[str, Any]) -> list[str]:
    """What a health check found, a line of health.jsonl: what and since when, why, what to try, and samples that show it."""
    lines = [
        f"health: {clean(row['title'])} since step {short(row['since'])}: {clean(row['text'])}",
        f"why: {clean(row['why'])}",
    ]
    if row.get("tries"):
        lines.append(f"try: {' or '.join(clean(word) for word in row['tries'])}")
    for sample in row.get("samples") or []:
        said = f"  ({clean(sample['said'])})" if sample.get("said") else ""
        lines.append(f"e.g. {cut(clean(sample.get('completion', '')), 160)}{said}")
    return lines
