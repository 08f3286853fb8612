"""The answer that runs give together: which setting is best, how the others follow, and which differences are real."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from grpo_exp.report.command import command
from grpo_exp.report.groups import Group, groups, varied
from grpo_exp.report.runs import Run
from grpo_exp.report.standing import Standing, correct, standing, versus

FALLBACK = "reward/mean"
"""What runs are judged by that were never evaluated."""

_FAILED = ("failed", "broken")


@dataclass
class Apart:
    """Runs that cannot be compared with the others, and why."""

    reason: str
    runs: list[Run]


@dataclass
class Comparison:
    """What some runs say together.

    Attributes:
        runs: all of them.
        metric, maximize: what they are judged by.
        by: the keys that make a setting.
        pooled: keys that differ within settings, where not all that was varied makes one.
        ranked: the finished settings, best first, then those that are not finished, then those that have no value.
        apart: runs that were measured in another way.
        failures: runs that failed or cannot be read.
        start: objective before the first step, where all runs began at the same.
        samples: samples of each held-out item.
        family: number of pairs of finished settings, what p-values are corrected for.
        command: the best setting as a command line.
        sentences: what can be said, and what cannot.
    """

    runs: list[Run]
    metric: str
    maximize: bool
    by: list[str]
    pooled: list[str] = field(default_factory=list)
    ranked: list[Standing] = field(default_factory=list)
    apart: list[Apart] = field(default_factory=list)
    failures: list[Run] = field(default_factory=list)
    start: float | None = None
    samples: int | None = None
    family: int = 0
    command: str | None = None
    sentences: list[str] = field(default_factory=list)

    @property
    def best(self) -> Standing | None:
        """The best finished setting; where none is finished, the best so far."""
        return self.ranked[0] if self.ranked and self.ranked[0].interval is not None else None

    @property
    def unit(self) -> str:
        """What a setting has several of."""
        return "runs" if self.pooled else "seeds"

    @property
    def final(self) -> list[Standing]:
        return [s for s in self.ranked if s.final]


def compare(runs: Sequence[Run], by: Sequence[str] | None = None) -> Comparison:
    """Rank the settings of `by` (None: what was varied) and test each against the best.

    Compared are the runs of the largest set that was measured in the same way: the same metric, held-out items and way of
    asking. p-values are corrected by Holm for all pairs of settings, since the best was picked by the same numbers.
    """
    from grpo_exp.report.sentences import sentences

    failures = [run for run in runs if run.status in _FAILED]
    classes = _classes([run for run in runs if run.status not in _FAILED])
    main = max(classes, key=lambda part: (sum(run.status == "finished" for run in part), len(part)), default=[])
    keys = list(by) if by is not None else varied(runs)
    metric, maximize = _goal(main or list(runs))
    found = Comparison(list(runs), metric, maximize, keys, failures=failures)
    found.pooled = [key for key in varied(main) if key not in keys] if by is not None else []
    found.apart = [Apart(_why(part, main), part) for part in classes if part is not main]
    main_ids = {id(run) for run in main}
    there = [run for run in runs if id(run) in main_ids or (run.status in _FAILED and run.config)]
    found.ranked = _ranked([standing(group, metric) for group in _settings(there, keys)], maximize)
    found.start = _start(main, metric)
    found.samples = next((n for run in main if isinstance(n := run.config.get("eval.samples"), int)), None)
    final = found.final
    found.family = len(final) * (len(final) - 1) // 2
    for other in final[1:]:
        other.versus = versus(final[0], other, found.family)
    correct(final, found.family)
    if found.best is not None:
        found.command = _command(found.best, maximize)
    found.sentences = sentences(found)
    return found


def _settings(runs: Sequence[Run], keys: Sequence[str]) -> list[Group]:
    """The runs by setting; those without a configuration each for itself."""
    return [*groups(runs, keys), *(Group({}, [run]) for run in runs if not run.config)]


def _ranked(standings: Sequence[Standing], maximize: bool) -> list[Standing]:
    """Finished ones first, the best at the top; then the others by what they have reached; those without a value last."""

    def key(s: Standing) -> tuple[bool, bool, float]:
        value = 0.0 if s.interval is None else s.interval.value
        return not s.final, s.interval is None, -value if maximize else value

    return sorted(standings, key=key)


def _command(best: Standing, maximize: bool) -> str | None:
    """Of the setting's best run; the seed is left out where the setting is more than one run."""
    values = best.values.mean(1)  # [seeds]
    run = best.used[int(values.argmax() if maximize else values.argmin())]
    return command(run, with_seed=len(best.group.runs) == 1)


def _goal(runs: Sequence[Run]) -> tuple[str, bool]:
    """(metric, whether more is better)."""
    if all(run.objective is None for run in runs) and any(run.tail for run in runs):
        return FALLBACK, True
    return (runs[0].metric, runs[0].maximize) if runs else ("eval/pass@1", True)


def _start(runs: Sequence[Run], metric: str) -> float | None:
    values = {round(run.before[metric].value, 6) for run in runs if metric in run.before}
    return values.pop() if len(values) == 1 else None


# ---- which runs were measured in the same way


def _classes(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs in sets that can be compared, by how they were asked and by what: the hash of the data, or the items asked."""
    found: dict[Hashable, list[Run]] = {}
    known: dict[Hashable, Hashable] = {}
    unknown: list[Run] = []
    for run in runs:
        data = run.data_hash
        how = tuple(_how(run).items())
        if not run.config or not data:
            unknown.append(run)
            continue
        place = known.get((data, how))
        if place is None:
            items = run.items()
            prints = (items.fingerprint, how) if items else (data, how)
            place = known.setdefault(prints, (data, how))
            known[data, how] = place
        found.setdefault(place, []).append(run)
    classes = list(found.values())
    return [*classes, unknown] if unknown else classes


def _how(run: Run) -> dict[str, str]:
    """How a run is measured: its objective, the options of evaluation, and what makes a sample right."""
    config = run.config
    found = {"objective.metric": run.metric, "objective.direction": "maximize" if run.maximize else "minimize"}
    found |= {key: repr(config[key]) for key in config if key.startswith("eval.") and key not in ("eval.every", "eval.start")}
    roles = {key.removesuffix(".role"): value for key, value in config.items() if key.endswith(".role")}
    deciding = [part for part, role in roles.items() if role in ("outcome", "gate")]
    deciding += ["reward.gate"] if "gate" in roles.values() else []
    for part in deciding:
        found |= {k: repr(config[k]) for k in config if k.startswith(f"{part}.") and k != f"{part}.weight"}
    return found


def _why(part: Sequence[Run], main: Sequence[Run]) -> str:
    """Why runs are not compared with the main set."""
    if not all(run.config for run in part):
        return "config.yaml does not say what they were"
    how, others = _how(part[0]), _how(main[0])
    keys = [key for key in dict.fromkeys([*how, *others]) if how.get(key) != others.get(key)]
    if keys:
        texts = [f"{key} is {how.get(key, 'absent')} instead of {others.get(key, 'absent')}" for key in keys[:3]]
        return f"measured in another way: {', '.join(texts)}"
    if not all(run.data_hash for run in part):
        return "run.json does not say what data they were measured on"
    return "measured on other held-out items: the data has another hash"


def counts(runs: Sequence[Run]) -> str:
    """`25 finished, 1 running, 1 failed`."""
    found = Counter(run.status for run in runs)
    return ", ".join(f"{found[name]} {name}" for name in found)
