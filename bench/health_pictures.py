"""One small picture for each detector: the curve in which it shows, in a run where something is wrong and in a healthy one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Curve = list[tuple[int, float]]
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


def curve(folder: Path, metric: str) -> Curve:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]


def draw(file: Path, row: Row, wrong: Curve, healthy: Curve, what: str) -> None:
    """Draw one, 600 points wide at twice the density."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 2.6), dpi=200, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    wrong, healthy, log = scaled(wrong, healthy)
    if healthy:
        axes.plot(*zip(*healthy, strict=True), color=QUIET, linewidth=1.0, label="a healthy run")
    axes.plot(*zip(*wrong, strict=True), color=WRONG, linewidth=1.8, label=what)
    if log:
        axes.set_yscale("log")
    last = max(step for step, _ in (*wrong, *healthy))
    axes.set_xlim(0, last)
    mark(axes, row["since"], row["step"], last)
    axes.set_ylabel(row["metric"], fontsize=9, color=INK)
    axes.set_xlabel("training step", fontsize=9, color=INK)
    axes.tick_params(labelsize=9, colors=INK)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for place in ("top", "right"):
        axes.spines[place].set_visible(False)
    figure.legend(loc="outside upper right", ncols=2, fontsize=9, frameon=False)
    figure.savefig(file)


def scaled(wrong: Curve, healthy: Curve) -> tuple[Curve, Curve, bool]:
    """The curves, and whether they are drawn on a logarithmic scale, which has no place for 0: where all but the largest values
    would lie on the axis otherwise."""
    above = sorted(value for _, value in (*wrong, *healthy) if value > 0)
    if any(value < 0 for _, value in (*wrong, *healthy)) or not above or above[-1] < 50 * above[len(above) // 2]:
        return wrong, healthy, False
    return [point for point in wrong if point[1] > 0], [point for point in healthy if point[1] > 0], True


def mark(axes: Any, began: int, found: int, last: int) -> None:
    """A line where it began and one where it was found, with a word above each, or above both where they are near."""
    axes.axvline(began, color=INK, linewidth=1.2, linestyle=":")
    axes.axvline(found, color=FOUND, linewidth=1.2)
    near = found - began < last / 7
    above(axes, found, f"began {began}, found {found}" if near else f"found {found}", FOUND, last)
    if not near:
        above(axes, began, f"began {began}", INK, last)


def above(axes: Any, step: int, text: str, colour: str, last: int) -> None:
    axes.annotate(
        text,
        (step, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="left" if step < last / 8 else "right" if step > last * 7 / 8 else "center",
        fontsize=9,
        color=colour,
    )
