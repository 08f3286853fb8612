"""One small picture for each detector: the curve in which it shows, in a run where something is wrong and in a healthy one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
WRONG, FOUND, INK, QUIET, GRID = "#D55E00", "#0072B2", "#222222", "#9A9A9A", "#E6E6E6"


def draw_all(runs: Sequence[Any], detectors: Sequence[str], folder: Path) -> None:
    """A picture for each detector that found something in a run with a fault; the others are named.

    Args:
        runs: as replayed, faults and healthy ones.
        detectors: their names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in detectors:
        shows = [(run, row) for run in runs if run.case.finds for row in run.found if row["detector"] == name]
        # the fault that was made for it rather than one that it found besides, and one with some curve before it
        shows.sort(key=lambda pair: (name not in pair[0].case.finds, pair[1]["step"] < 4))
        drawn = next((pair for pair in shows if len(curve(pair[0].folder, pair[1]["metric"])) > 2), None)
        if drawn is None:
            print(f"no picture of {name}: no run shows it")
            continue
        run, row = drawn
        healthy = next((curve(one.folder, row["metric"]) for one in beside(run, runs) if curve(one.folder, row["metric"])), [])
        draw(folder / f"{name}.png", row, curve(run.folder, row["metric"]), healthy, run.case.what)


def beside(run: Any, runs: Sequence[Any]) -> list[Any]:
    """Healthy runs, those of the same algorithm first."""
    healthy = [one for one in runs if not one.case.finds]
    return sorted(healthy, key=lambda one: (one.card["algo"] != run.card["algo"], one.case.name != "seed_0"))


def curve(folder: Path, metric: str) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]


def draw(file: Path, row: Row, wrong: list[tuple[int, float]], healthy: list[tuple[int, float]], what: str) -> None:
    """Draw one, 600 points wide at twice the density."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 2.6), dpi=200, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if healthy:
        axes.plot(*zip(*healthy, strict=True), color=QUIET, linewidth=1.0, label="a healthy run")
    axes.plot(*zip(*wrong, strict=True), color=WRONG, linewidth=1.8, label=what)
    last = max(step for step, _ in (*wrong, *healthy))
    for step, label, side in ((row["since"], "began", -1), (row["step"], "found", 1)):
        mark(axes, step, label, side, last)
    values = [value for _, value in (*wrong, *healthy) if value > 0]
    if values and len(values) >= len(wrong) and max(values) > 50 * sorted(values)[len(values) // 2]:
        axes.set_yscale("log")  # or all but the largest values would lie on the axis
    axes.set_xlim(0, last)
    axes.set_title(row["metric"], loc="left", fontsize=11, color=INK)
    axes.set_xlabel("training step", fontsize=9, color=INK)
    axes.tick_params(labelsize=9, colors=INK)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for place in ("top", "right"):
        axes.spines[place].set_visible(False)
    figure.legend(loc="outside upper right", ncols=2, fontsize=9, frameon=False)
    figure.savefig(file)


def mark(axes: Any, step: int, label: str, side: int, last: int) -> None:
    """A vertical line with a word beside it, inside the axes."""
    colour = FOUND if label == "found" else INK
    axes.axvline(step, color=colour, linewidth=1.2, linestyle="-" if label == "found" else ":")
    right = side > 0 if 0.12 * last < step < 0.88 * last else step <= 0.12 * last
    axes.annotate(
        f"{label} {step}",
        (step, 0.97 if label == "found" else 0.84),
        xycoords=("data", "axes fraction"),
        xytext=(4 if right else -4, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="top",
        fontsize=9,
        color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )
