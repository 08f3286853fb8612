"""curves.png: the course of a run, or of several over one another, from their metrics.jsonl."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_exp.errors import DataError
from grpo_exp.track.base import Row, Tracker, Warn
from grpo_exp.track.files import read_jsonl
from grpo_exp.track.wording import clean, is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6A4C93", "#555555")
INK, QUIET, ALARM, _GRID = "#222222", "#777777", "#C0392B", "#E6E6E6"
_STYLES = ("-", "--", ":")
_FEW = 40  # points up to which a line shows each of them


@dataclass(frozen=True)
class Panel:
    """One plot: its title in plain words, and metrics as (name, label of the line).

    Attributes:
        overlaid: how many of the metrics are drawn where several runs lie over one another.
    """

    title: str
    metrics: tuple[tuple[str, str], ...]
    share: bool = False
    evaluation: bool = False
    overlaid: int = 2

    def shown(self, runs: Sequence[Sequence[Row]]) -> tuple[tuple[str, str], ...]:
        """The metrics that are drawn: those that some run has."""
        kept = self.metrics[: self.overlaid] if len(runs) > 1 else self.metrics
        return tuple((name, label) for name, label in kept if any(series(rows, name)[1] for rows in runs))


# In this order; the first six that have data are drawn.
PANELS = (
    Panel("Reward", (("reward/mean", "mean of all samples"),)),
    Panel("Distance from the reference (KL)", (("kl/mean", "nats per token"),)),
    Panel(
        "Completion length in tokens",
        (("length/mean", "mean"), ("length/right", "right"), ("length/wrong", "wrong")),
        overlaid=1,
    ),
    Panel("Spread of the reward (std)", (("reward/std", "over all samples"), ("reward/group_std", "within a group"))),
    Panel("Entropy of the policy", (("entropy/mean", "nats per token"),)),
    Panel(
        "Right answers on held-out items",
        (("eval/pass@1", "pass@1"), ("eval/maj@k", "maj@k")),
        share=True,
        evaluation=True,
        overlaid=1,
    ),
    Panel("Answers in the asked format", (("format/rate", "share"),), share=True),
    Panel("Chosen ranked over rejected", (("dpo/accuracy", "accuracy"),), share=True),
    Panel("Margin of chosen over rejected", (("dpo/margin", "margin"),)),
    Panel("Held-out completion length", (("eval/length", "mean"),), evaluation=True),
    Panel("Gradient norm before clipping", (("grad/norm", "norm"),)),
)
# Drawn only where there is no reward: in reinforcement learning the loss starts near 0 and says nothing about progress.
LOSS = Panel("Loss", (("loss/total", "mean"),))


class PictureTracker(Tracker):
    """Draws curves.png when a run ends, whichever way. A picture that cannot be drawn is a warning."""

    def __init__(self, folder: Path, warn: Warn) -> None:
        self.folder = folder
        self.warn = warn

    def finish(self, card: Row) -> None:
        try:
            draw([self.folder], self.folder / "curves.png", labels=[str(card.get("name") or self.folder.name)])
        except Exception as error:  # a picture is never worth a run
            self.warn(f"curves.png was not drawn ({type(error).__name__}: {error})")


def draw(folders: Sequence[Path], out: Path, labels: Sequence[str] | None = None) -> Path | None:
    """Draw the runs in `folders` over one another into `out` (PNG, SVG or PDF by its ending); a single one with its findings.

    Returns:
        `out`, or None where no run has two values of anything yet.

    Raises:
        DataError: a metrics.jsonl is missing or broken, or labels do not match the folders.
    """
    names = list(labels) if labels is not None else [folder.name for folder in folders]
    if len(names) != len(folders):
        raise DataError(f"draw: {len(names)} labels for {len(folders)} folders; give one each")
    runs = [list(read_jsonl(folder / "metrics.jsonl")) for folder in folders]
    findings = list(read_jsonl(found)) if len(folders) == 1 and (found := folders[0] / "health.jsonl").exists() else []
    panels = _choose(runs)
    if not panels:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as a letter of a run's name that the font lacks
        figure = _figure(runs, names, panels, findings)
        figure.savefig(out, dpi=130, facecolor="white")
    return out


def series(rows: Sequence[Row], name: str) -> tuple[list[float], list[float]]:
    """Steps and values of a metric, where it is a finite number."""
    pairs = [(row["step"], row[name]) for row in rows if is_number(row.get("step")) and is_number(row.get(name))]
    return [float(step) for step, _ in pairs], [float(value) for _, value in pairs]


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Mean of the last `window` values at each place."""
    return [sum(part) / len(part) for i in range(len(values)) if (part := values[max(0, i - window + 1) : i + 1])]


def _choose(runs: Sequence[Sequence[Row]]) -> list[Panel]:
    present = {name for rows in runs for row in rows for name, value in row.items() if is_number(value)}
    candidates = PANELS if "reward/mean" in present else (LOSS, *PANELS)
    panels = [panel for panel in candidates if any(name in present for name, _ in panel.metrics)]
    return panels[:6]


def _figure(runs: Sequence[Sequence[Row]], names: Sequence[str], panels: Sequence[Panel], findings: Sequence[Row]) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    wide = 3 if len(panels) > 4 or len(panels) == 3 else min(2, len(panels))
    high = math.ceil(len(panels) / wide)
    figure = Figure(
        figsize=(4.2 * wide, 3.0 * high + 0.5), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, wspace=0.03, hspace=0.05)
    )
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(high, wide, squeeze=False)
    axes: list[Axes] = list(grid.flat)
    last = max([1.0, *(float(row["step"]) for rows in runs for row in rows if is_number(row.get("step")))])
    for ax, panel in zip(axes, panels, strict=False):
        metrics = panel.shown(runs)
        decorate(ax, panel.title, [name for name, _ in metrics], panel.share)
        ax.set_xlim(-0.02 * last, 1.02 * last)
        for colour, rows in enumerate(runs):
            _curves(ax, panel, metrics, rows, COLOURS[colour % len(COLOURS)], several=len(runs) > 1)
        mark(ax, [row for row in findings if row["metric"] in dict(panel.metrics)])
        _key(ax, metrics, several=len(runs) > 1)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    for ax in axes[max(0, len(panels) - wide) : len(panels)]:
        ax.set_xlabel("step", color=QUIET, fontsize=9)
    if len(runs) == 1:
        figure.suptitle(literal(names[0]), x=0.012, ha="left", fontsize=13, fontweight="bold", color=INK)
    else:
        from matplotlib.lines import Line2D

        handles = [Line2D([], [], color=COLOURS[i % len(COLOURS)], lw=2.5, label=literal(n)) for i, n in enumerate(names)]
        figure.legend(handles=handles, loc="outside upper left", ncols=min(4, len(names)), frameon=False, fontsize=10)
    return figure


def mark(ax: Axes, findings: Sequence[Row]) -> None:
    """Where health checks found that something began, and what."""
    for i, row in enumerate(findings):
        ax.axvline(row["since"], color=ALARM, lw=1.2, ls=(0, (3, 2)))
        ax.annotate(
            literal(str(row["title"])),
            (row["since"], 0.97 - 0.09 * i),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=8,
            color=ALARM,
            va="top",
        )


def decorate(ax: Axes, title: str, names: Sequence[str], share: bool) -> None:
    """Title, the metrics' names under it, a quiet grid; percent on the upright axis where the metric is a share."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    ax.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=18)
    ax.text(0, 1.025, ", ".join(names), transform=ax.transAxes, fontsize=7.5, color=QUIET, family="monospace", va="bottom")
    ax.grid(axis="y", color=_GRID, lw=0.8)
    ax.set_axisbelow(True)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color("#BBBBBB")
    ax.tick_params(colors=QUIET, labelsize=8.5, length=0)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(5))
    if share:
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _curves(
    ax: Axes, panel: Panel, metrics: Sequence[tuple[str, str]], rows: Sequence[Row], colour: str, several: bool
) -> None:
    """One run's lines. One run: a colour a metric. Several: a colour a run, a line style a metric."""
    for i, (name, label) in enumerate(metrics):
        steps, values = series(rows, name)
        if not values:
            continue
        line_colour, style = (colour, _STYLES[i % 3]) if several else (COLOURS[i % len(COLOURS)], "-")
        if panel.evaluation:
            _interval(ax, rows, name, line_colour)
            ax.plot(steps, values, color=line_colour, ls=style, lw=1.6, marker="o", ms=4.5, label=label)
            continue
        window = max(1, len(values) // 20)
        marker = "o" if len(values) <= _FEW and not several else ""
        if window > 1:
            ax.plot(steps, values, color=line_colour, lw=0.8, alpha=0.12 if several else 0.28)
            values = smooth(values, window)
            marker = ""
        ax.plot(steps, values, color=line_colour, ls=style, lw=1.8, label=label, marker=marker, ms=3)


def _interval(ax: Axes, rows: Sequence[Row], name: str, colour: str) -> None:
    known = [row for row in rows if all(is_number(row.get(key)) for key in ("step", name, f"{name}_low", f"{name}_high"))]
    if known:
        steps = [row["step"] for row in known]
        low, high = ([row[f"{name}_{side}"] for row in known] for side in ("low", "high"))
        ax.fill_between(steps, low, high, color=colour, alpha=0.13, lw=0)
        ax.vlines(steps, low, high, color=colour, lw=1, alpha=0.5)


def _key(ax: Axes, metrics: Sequence[tuple[str, str]], several: bool) -> None:
    """What the colours, or with several runs the line styles, mean, where a panel has more than one metric."""
    from matplotlib.lines import Line2D

    if len(metrics) < 2:
        return
    handles = [
        Line2D([], [], color=QUIET if several else COLOURS[i], ls=_STYLES[i % 3] if several else "-", lw=1.8, label=label)
        for i, (_, label) in enumerate(metrics)
    ]
    ax.legend(handles=handles, fontsize=8, frameon=True, framealpha=0.75, edgecolor="none", labelcolor=INK, handlelength=1.6)


def literal(text: str) -> str:
    """Text that matplotlib does not take for a formula, and on one line; a lone surrogate would stop its drawing."""
    return clean(" ".join(text.split())).replace("$", r"\$")
