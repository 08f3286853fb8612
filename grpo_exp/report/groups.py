"""What was varied between runs, found from their configurations, and the runs of equal values together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_exp.report.runs import Run

_ASIDE = ("track", "checkpoint", "objective", "health", "hydra")  # where a run is recorded, not what it is
_GROUPS = ("algo", "model", "data", "reward", "hardware")
_MISSING = "–"


@dataclass
class Group:
    """Runs of equal values, which differ in their seed alone.

    Attributes:
        values: varied key -> value.
        runs: in the order of their seeds.
    """

    values: dict[str, Any]
    runs: list[Run]

    @property
    def label(self) -> str:
        """`beta=0.01 G=8`; the run's own name where nothing was varied."""
        return " ".join(f"{key}={written(value)}" for key, value in self.values.items()) or self.runs[0].label


def varied(runs: Sequence[Run]) -> list[str]:
    """The keys of the configurations that differ between runs: what was asked for, not what follows from it.

    First what the command lines gave different values to, in their order. Of all other keys that differ, those that follow
    from these are left out: `name`, a key that always equals another (`algo.beta`), what belongs to a chosen group
    (`algo.*` where `algo` differs), and what the same sweep derived (`prompts_per_step` from G). The seed never counts, nor
    how a run is recorded.
    """
    runs = [run for run in runs if run.config]
    keys = [key for key in dict.fromkeys(key for run in runs for key in run.config) if _differs(runs, key)]
    keys = [key for key in keys if key not in ("seed", "name") and key.partition(".")[0] not in _ASIDE]
    asked = [key for key in _asked(runs) if key in keys]
    kept = list(asked)
    for key in sorted(keys, key=lambda key: (key.count("."), key.partition(".")[0] not in _GROUPS)):
        if key not in kept and not _derived(runs, key, kept, asked):
            kept.append(key)
    return kept


def groups(runs: Sequence[Run], by: Sequence[str]) -> list[Group]:
    """The runs of equal values of `by`, in the order in which they first occur. Runs without a configuration are left out."""
    found: dict[tuple[Hashable, ...], Group] = {}
    for run in runs:
        if run.config:
            values = {key: run.config.get(key, _MISSING) for key in by}
            found.setdefault(tuple(map(_hashable, values.values())), Group(values, [])).runs.append(run)
    for group in found.values():
        group.runs.sort(key=lambda run: (run.seed is None, run.seed or 0))
    return list(found.values())


def written(value: Any) -> str:
    """A value as it is typed: 0.05, 3e-05, true, null."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _asked(runs: Iterable[Run]) -> list[str]:
    """The keys that command lines or a study gave different values to; `algo=ppo` gave one to `algo`."""
    given = [{**_given(run), **_params(run)} for run in runs]
    keys = dict.fromkeys(key for values in given for key in values)
    return [key.lstrip("+") for key in keys if len({str(values.get(key)) for values in given}) > 1]


def _given(run: Run) -> dict[str, Any]:
    found = run.card.get("overrides")
    return found if isinstance(found, dict) else {}


def _params(run: Run) -> dict[str, Any]:
    found = run.record.get("params")
    return found if isinstance(found, dict) else {}


def _derived(runs: Sequence[Run], key: str, kept: Sequence[str], asked: Sequence[str]) -> bool:
    """Whether a key that differs follows from those that are kept."""
    if any(_equal(runs, key, other) for other in kept):
        return True
    owner = key.partition(".")[0]
    if owner != key and owner in kept and _follows(runs, key, kept):
        return True
    sweeps = {run.sweep for run in runs}
    inside = [[run for run in runs if run.sweep == sweep] for sweep in sweeps if sweep is not None]
    varies_in_one = any(_differs(part, key) for part in inside)
    return bool(asked) and varies_in_one and _follows(runs, key, asked)


def _follows(runs: Sequence[Run], key: str, others: Sequence[str]) -> bool:
    """Whether runs that agree in `others` agree in `key`."""
    return all(not _differs(group.runs, key) for group in groups(runs, others))


def _equal(runs: Sequence[Run], one: str, other: str) -> bool:
    return all(_hashable(run.config.get(one)) == _hashable(run.config.get(other)) for run in runs)


def _differs(runs: Sequence[Run], key: str) -> bool:
    return len({_hashable(run.config.get(key, _MISSING)) for run in runs}) > 1


def _hashable(value: Any) -> Hashable:
    return repr(value) if isinstance(value, (list, dict)) else (type(value) is bool, value)
