"""What another program calls the metrics: its names onto ours, from assets/health, and from a file or words of the user's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import yaml

from grpo_exp.errors import InputError, nearest
from grpo_exp.track.files import read_object

FOLDER = Path(__file__).parents[1] / "assets" / "health"
BUILT_IN = ("trl", "verl", "openrlhf")
STEP = "step"
STEPS = ("step", "global_step", "train/global_step", "training/global_step", "trainer/global_step", "Step", "_step")
"""Columns that say which step a row is of, the best first: `_step` counts W&B's own calls."""


@dataclass(frozen=True)
class Entry:
    """One line of a mapping.

    Attributes:
        source: their name; `{name}` stands for any text, which may be used in `target`.
        target: ours.
        factor: their value times this is ours.
        single: only where one column alone has such a name.
        drops_zeros: a column that is 0 throughout was not computed.
        plain: `source` is a name as it stands, braces included.
    """

    source: str
    target: str
    factor: float = 1.0
    single: bool = False
    drops_zeros: bool = False
    plain: bool = False

    def target_of(self, column: str) -> str | None:
        """Our name for a column; None where this is not about it."""
        if self.plain:
            return self.target if column == self.source else None
        pieces = re.split(r"(\{\w+\})", self.source)
        pattern = "".join(f"(?P<{p[1:-1]}>.+)" if p.startswith("{") else re.escape(p) for p in pieces)
        found = re.fullmatch(pattern, column)
        return self.target.format(**found.groupdict()) if found else None


@dataclass(frozen=True)
class Taken:
    """A column that is taken for a metric."""

    target: str
    column: str
    factor: float
    drops_zeros: bool


@dataclass(frozen=True)
class Names:
    """Their names onto ours.

    Attributes:
        name: whose names they are.
        prefixes: what a name may begin with, and what stands for it in the entries.
        nulls: what null says of a value: not_finite, or absent.
        entries: the first that fits a metric of ours counts.
        step: the column that says which step a row is of; None: one of STEPS.
    """

    name: str
    prefixes: Mapping[str, str] = field(default_factory=dict)
    nulls: str = "absent"
    entries: tuple[Entry, ...] = ()
    step: str | None = None

    def bind(self, columns: Iterable[str]) -> list[Taken]:
        """The columns that are taken, one for each metric of ours. A column of our own name needs no entry."""
        columns = list(columns)
        short = {column: self._short(column) for column in columns}
        found: dict[str, Taken] = {}
        mapped: set[str] = set()
        for entry in self.entries:
            fits = [(c, target) for c in columns if (target := entry.target_of(short[c]) or entry.target_of(c))]
            if entry.single and len(fits) != 1:
                continue
            for column, target in fits:
                mapped.add(column)
                found.setdefault(target, Taken(target, column, entry.factor, entry.drops_zeros))
        for column in columns:
            if column not in mapped and is_metric(column):
                found.setdefault(column, Taken(column, column, 1.0, False))
        return list(found.values())

    def step_column(self, columns: Iterable[str]) -> str | None:
        columns = set(columns)
        return next((name for name in ((self.step,) if self.step else STEPS) if name in columns), None)

    def _short(self, column: str) -> str:
        for prefix, instead in self.prefixes.items():
            if column.startswith(prefix):
                return instead + column.removeprefix(prefix)
        return column


@cache
def built_in(name: str) -> Names:
    """A mapping of assets/health."""
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    entries = (
        Entry(one["from"], one["to"], single=bool(one.get("single")), drops_zeros=one.get("zero") == "absent")
        for one in content["metrics"]
    )
    return Names(content["name"], content["prefixes"], content["nulls"], tuple(entries))


OURS = Names("grpo_exp", nulls="not_finite")


def guess(columns: Iterable[str]) -> Names:
    """The mapping that knows most of the columns; one without entries where none knows any."""
    columns = list(columns)
    known = {name: len({one.column for one in built_in(name).bind(columns)}) for name in BUILT_IN}
    plain = len(OURS.bind(columns))
    best = max(BUILT_IN, key=lambda name: known[name])
    if known[best] > plain:
        return built_in(best)
    return OURS if "kind" in columns else Names("columns")


def with_own(mapping: Names, own: Mapping[str, str]) -> Names:
    """A mapping that a user's {our name: COLUMN or NUMBER*COLUMN} goes before.

    Raises:
        InputError: a name that is no metric of ours.
    """
    step, entries = mapping.step, []
    for name, column in own.items():
        if name == STEP:
            step = column
            continue
        if not is_metric(name):
            raise InputError(
                f"metrics.{name}={column}: no metric has that name; they are in docs/metrics.md.{nearest(name, metrics())}"
            )
        number, star, rest = column.partition("*")
        factor = _number(number) if star else None
        entries.append(Entry(column if factor is None else rest, name, 1.0 if factor is None else factor, plain=True))
    return replace(mapping, entries=(*entries, *mapping.entries), step=step)


def of_file(path: Path) -> dict[str, str]:
    """A user's file of lines `reward/mean: my_reward`, with or without `metrics.` before them.

    Raises:
        InputError: it cannot be read, or holds something else.
    """
    if path.suffix != ".yaml":
        raise InputError(
            f"mapping={path}: expected {', '.join(BUILT_IN)} or a YAML file of lines such as `reward/mean: my_reward`"
        )
    content = read_object(path)
    odd = next((name for name, column in content.items() if not isinstance(column, str)), None)
    if odd is not None:
        raise InputError(f"{path}: {odd}: expected the name of a column, as in `reward/mean: my_reward`")
    return {name.removeprefix("metrics."): column for name, column in content.items()}


@cache
def metrics() -> tuple[str, ...]:
    """Every metric, `<name>` in it standing for any name."""
    return tuple(yaml.safe_load((FOLDER / "metrics.yaml").read_text(encoding="utf-8")))


@cache
def is_metric(name: str) -> bool:
    """Whether one of our metrics has this name."""
    return any(re.fullmatch(_pattern(one), name) for one in metrics())


def _pattern(metric: str) -> str:
    pieces = re.split(r"(<[^>]+>)", metric)
    return "".join("eval/.+" if p == "<eval metric>" else ".+" if p.startswith("<") else re.escape(p) for p in pieces)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
