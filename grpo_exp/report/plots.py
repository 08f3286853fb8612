"""Pictures of a report for documents and slides: curves.png, heat.png, frontier.png, from what the page shows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo_exp.errors import RunError
from grpo_exp.track.picture import COLOURS, INK, PANELS, QUIET, decorate, literal
from grpo_exp.track.wording import is_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Data = dict[str, Any]
Groups = Sequence[tuple[str, str, list[Data]]]
"""(label, colour, runs) of each."""
SCALE = ("#2F6FDF", "#8A56D8", "#D0479B", "#EC6A4A", "#E8A020")  # from low to high, as on the page
HEAT = ("#EDF3FB", "#0B57B0")
BINS = 5  # groups that a number with many values is put into
MANY = 8  # values of a number, or settings, up to which each is a group
ENDS = {"pruned": "x", "failed": "x", "stopped": "s", "running": "o"}


def draw(data: Data, folder: Path) -> list[Path]:
    """Draw what there is data for into `folder`; older pictures of other runs there are removed.

    Args:
        data: what `content.content` made.

    Returns:
        The files.

    Raises:
        RunError: a file cannot be written.
    """
    made: dict[str, Callable[[Data], Figure | None]] = {"curves.png": curves, "heat.png": heat, "frontier.png": frontier}
    written = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as a letter of a name that the font lacks
        for name, make in made.items():
            figure = make(data)
            if figure is None:
                (folder / name).unlink(missing_ok=True)
                continue
            try:
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(folder / name, dpi=130, facecolor="white")
            except OSError as error:
                raise RunError(f"{folder / name}: cannot be written ({error.strerror or error})") from error
            written.append(folder / name)
    return written


def curves(data: Data) -> Figure | None:
    """Up to six metrics against the step: for each group the mean of its finished runs, with least to most."""
    panels = [(panel, name) for panel in PANELS for name, _ in panel.metrics[:1] if name in data["metrics"]][:6]
    if not panels:
        return None
    groups = grouped(data)
    wide = min(3, len(panels))
    high = -(-len(panels) // wide)
    figure, axes = _figure(wide, high)
    for ax, (panel, name) in zip(axes, panels, strict=False):
        decorate(ax, panel.title, [name], panel.share)
        for _, colour, runs in groups:
            _band(ax, [run for run in runs if run["status"] == "finished"], name, colour)
            for run in [run for run in runs if run["status"] != "finished"][:MANY]:
                _cut_curve(ax, run, name, colour)
        ax.set_xlabel("step", color=QUIET, fontsize=9)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    _legend(figure, groups)
    return figure


def heat(data: Data) -> Figure | None:
    """The objective over two keys, beta and G where they were varied, with the number in each cell."""
    keys = [varied["key"] for varied in data["varied"] if len(varied["values"]) > 1]
    keys.sort(key=lambda key: key not in ("beta", "G"))
    runs = [run for run in data["runs"] if run["status"] == "finished" and run["objective"] is not None]
    if len(keys) < 2 or not runs:
        return None
    across, up = (keys[1], keys[0]) if keys[0] == "G" else (keys[0], keys[1])
    (columns, column), (rows, row) = _axis(data, across), _axis(data, up)
    cells: dict[tuple[int, int], list[float]] = {}
    for run in runs:
        cells.setdefault((row(run), column(run)), []).append(run["objective"])
    table = np.full((len(rows), len(columns)), np.nan)
    for place, values in cells.items():
        table[place] = fmean(values)
    metric = data["objective"]["metric"]
    figure, (ax, *_) = _figure(1, 1, (max(4.5, 1.25 * len(columns) + 1.5), max(3.0, 0.7 * len(rows) + 1.6)))
    _heat_map(ax, table, is_share(metric))
    ax.set_xticks(range(len(columns)), [literal(text) for text in columns], rotation=30 if len(columns) > MANY else 0)
    ax.set_yticks(range(len(rows)), [literal(text) for text in rows])
    ax.set_xlabel(literal(across), color=QUIET)
    ax.set_ylabel(literal(up), color=QUIET)
    ax.set_title(literal(f"{metric}, mean over runs"), loc="left", fontsize=10.5, fontweight="bold", color=INK)
    return figure


def frontier(data: Data) -> Figure | None:
    """The objective of each finished run against its KL, tokens and seconds; a line joins those that none beats for less."""
    prices = {
        "kl/mean": _priced(data, lambda run: run["final"].get("kl/mean")),
        "tokens": _priced(data, lambda run: run["tokens"]),
        "seconds": _priced(data, lambda run: run["seconds"]),
    }
    prices = {name: points for name, points in prices.items() if len(points) > 1}
    if not prices:
        return None
    groups = grouped(data)
    figure, axes = _figure(len(prices), 1)
    for ax, (name, points) in zip(axes, prices.items(), strict=True):
        _frontier(ax, name, points, groups, data["objective"])
    _legend(figure, groups)
    return figure


def _priced(data: Data, cost: Callable[[Data], float | None]) -> dict[int, tuple[float, float]]:
    """Number of a finished run -> (cost, objective), where both are known."""
    found = {}
    for run in data["runs"]:
        price = cost(run)
        if run["status"] == "finished" and run["objective"] is not None and price is not None:
            found[run["index"]] = (price, run["objective"])
    return found


def _frontier(ax: Axes, name: str, points: dict[int, tuple[float, float]], groups: Groups, objective: Data) -> None:
    from matplotlib.ticker import MaxNLocator

    metric = objective["metric"]
    decorate(ax, f"Against {name}", [literal(metric)], is_share(metric))
    edge = pareto(list(points.values()), objective["maximize"])
    ax.step([x for x, _ in edge], [y for _, y in edge], where="post", color=QUIET, lw=1, ls=":")
    for _, colour, runs in groups:
        of_group = [points[run["index"]] for run in runs if run["index"] in points]
        x, y = [x for x, _ in of_group], [y for _, y in of_group]
        ax.scatter(x, y, color=colour, s=32, edgecolors="white", lw=0.6, zorder=3)
    ax.set_xlabel(name, color=QUIET, fontsize=9)
    ax.set_xlim(left=0)
    ax.xaxis.set_major_locator(MaxNLocator(5))


def pareto(points: Sequence[tuple[float, float]], maximize: bool) -> list[tuple[float, float]]:
    """The (cost, quality) that no other point beats in quality at the same or a lower cost, by rising cost."""
    sign = 1 if maximize else -1
    edge: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -sign * point[1])):
        if not edge or sign * y > sign * edge[-1][1]:
            edge.append((x, y))
    return edge


def grouped(data: Data) -> list[tuple[str, str, list[Data]]]:
    """(label, colour, runs) of each group: a setting, or where there are many, a value of the first key that was varied."""
    varied = data["varied"]
    found: dict[tuple[int, str], list[Data]] = {}
    if varied and data["configurations"] > MANY:
        key = varied[0]["key"]
        names, place = _axis(data, key)
        for run in data["runs"]:
            found.setdefault((place(run), f"{key} {names[place(run)]}"), []).append(run)
    else:
        labels: dict[str, int] = {}
        for run in data["runs"]:
            label = " ".join(f"{v['key']}={_short(run['params'].get(v['key']))}" for v in varied) or (
                "all runs" if data["configurations"] == 1 else run["label"]
            )
            found.setdefault((labels.setdefault(label, len(labels)), label), []).append(run)
    order = sorted(found)
    colours = _scale(len(order)) if len(order) > len(COLOURS) or data["configurations"] > MANY else COLOURS
    return [(label, colours[i], found[place, label]) for i, (place, label) in enumerate(order)]


def _axis(data: Data, key: str) -> tuple[list[str], Callable[[Data], int]]:
    """Names of the places of a key, and a run's place: each value, or a fifth of the values where a number has many."""
    varied = next(v for v in data["varied"] if v["key"] == key)
    values = varied["values"]
    if varied["kind"] == "number" and len(values) > MANY:
        places = {value: i * BINS // len(values) for i, value in enumerate(values)}
        bins = [[value for value in values if places[value] == number] for number in range(BINS)]
        names = [f"{part[0]:.2g}–{part[-1]:.2g}" for part in bins]
    else:
        places = {value: number for number, value in enumerate(values)}
        names = [_short(value)[:24] for value in values]
    if any(run["params"].get(key) not in places for run in data["runs"]):
        names.append("–")
    return names, lambda run: places.get(run["params"].get(key), len(names) - 1)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "–" if value is None else str(value)


def _scale(count: int) -> list[str]:
    """`count` colours along SCALE."""
    stops = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in SCALE], dtype=float)  # [stops, 3]
    places = np.linspace(0, len(SCALE) - 1, max(count, 2))
    mixed = np.stack([np.interp(places, np.arange(len(SCALE)), channel) for channel in stops.T], axis=1)  # [count, 3]
    return ["#" + "".join(f"{round(v):02X}" for v in row) for row in mixed]


def _points(run: Data, name: str) -> tuple[list[float], list[float]]:
    part = run["train"] if name in run["train"]["m"] else run["eval"]
    pairs = zip(part["step"], part["m"].get(name, ()), strict=False)
    known = [(x, y) for x, y in pairs if x is not None and y is not None]
    return [x for x, _ in known], [y for _, y in known]


def _band(ax: Axes, runs: Sequence[Data], name: str, colour: str) -> None:
    """Mean and range of runs over the steps that all of them have reached."""
    lines = [line for run in runs if len((line := _points(run, name))[0])]
    if not lines:
        return
    low, high = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    steps = np.array(sorted({x for xs, _ in lines for x in xs if low <= x <= high}))
    if not len(steps):
        return
    values = np.stack([np.interp(steps, xs, ys) for xs, ys in lines])  # [runs, steps]
    half = len(steps) // 50 if name in runs[0]["train"]["m"] else 0
    if half:
        kernel = np.ones(2 * half + 1)
        weight = np.convolve(np.ones(len(steps)), kernel, "same")
        values = np.stack([np.convolve(row, kernel, "same") / weight for row in values])
    if len(lines) > 1:
        ax.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.15, lw=0)
    ax.plot(steps, values.mean(0), color=colour, lw=1.8, marker="o" if len(steps) < 25 else "", ms=3)


def _cut_curve(ax: Axes, run: Data, name: str, colour: str) -> None:
    """The curve of a run that did not finish, with a sign at its end."""
    steps, values = _points(run, name)
    if steps:
        inside = "none" if run["status"] == "running" else colour
        ax.plot(steps, values, color=colour, lw=0.8, alpha=0.5)
        ax.plot(steps[-1:], values[-1:], color=colour, marker=ENDS.get(run["status"], "x"), ms=6, ls="", mew=1.6, mfc=inside)


def _heat_map(ax: Axes, table: np.ndarray, share: bool) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    ax.imshow(table, cmap=LinearSegmentedColormap.from_list("heat", HEAT), aspect="auto", origin="lower")
    middle = (np.nanmin(table) + np.nanmax(table)) / 2
    for (i, j), value in np.ndenumerate(table):
        if np.isfinite(value):
            text = f"{100 * value:.1f} %" if share else f"{value:.3g}"
            ax.text(j, i, text, ha="center", va="center", color="white" if value > middle else INK, fontsize=10)
    ax.set_xticks(np.arange(table.shape[1] + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(table.shape[0] + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", lw=3)
    ax.tick_params(which="both", length=0, colors=QUIET, labelsize=9)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _figure(wide: int, high: int, size: tuple[float, float] | None = None) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size or (4.2 * wide, 3.0 * high + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(high, wide, squeeze=False).flat)


def _legend(figure: Figure, groups: Groups) -> None:
    from matplotlib.lines import Line2D

    if len(groups) > 1:
        handles = [Line2D([], [], color=colour, lw=2.5, label=literal(label[:60])) for label, colour, _ in groups[:24]]
        figure.legend(handles=handles, loc="outside upper left", ncols=min(5, len(handles)), frameon=False, fontsize=9)
