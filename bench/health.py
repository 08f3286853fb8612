"""Do the health detectors find what is wrong, in time, and leave alone what is right?

    python bench/health.py [--replay] [--only NAME ...] [--out FOLDER] [--pictures FOLDER]

Makes each failure in bench/health_cases.py on purpose on the embedded model, and as many runs again that nothing is wrong with:
two at a time, one thread each. Their files then go through the detectors step by step, as they would have seen them. Prints
Markdown tables for docs/health.md: what was found, by which detector, at which step, and what was found where there was nothing
to find. FOLDER keeps the runs; what is finished there is not run again, so that a threshold may be changed and tried at once;
--replay runs nothing. --pictures draws, for each detector, the curve in which it shows.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from health_cases import BUDGET, FAULTS, HEALTHY, Case
from health_runs import ended, run_all

Row = dict[str, Any]


@dataclass(frozen=True)
class Replayed:
    """A run, and what the detectors said of it."""

    case: Case
    folder: Path
    card: Row
    found: list[Row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--only", nargs="+", default=None)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--pictures", type=Path, default=None)
    options = parser.parse_args()
    out = (options.out or Path(tempfile.mkdtemp(prefix="health-"))).resolve()
    cases = [case for case in (*FAULTS, *HEALTHY) if options.only is None or case.name in options.only]
    sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, whatever is installed
    if not options.replay:
        run_all(cases, out)
    replayed = [replay(case, out / case.name) for case in cases if ended(out / case.name)]
    print(tables(replayed))
    if options.pictures:
        from health_pictures import draw_all

        draw_all(replayed, list(detectors()), options.pictures)


# ---- what the detectors say


@cache
def detectors() -> dict[str, Any]:
    """Those of conf/health/standard.yaml, with its thresholds."""
    from grpo_exp.compose import compose
    from grpo_exp.config import build

    return build(compose([])).health.detectors


def replay(case: Case, folder: Path) -> Replayed:
    """The run's rows go through the detectors in the order in which the run told them."""
    import yaml

    from grpo_exp.health.monitor import Monitor, by_step

    card, config = (yaml.safe_load((folder / name).read_text()) for name in ("run.json", "config.yaml"))
    monitor = Monitor(detectors())
    monitor.start(card, config)
    samples, evaluated = ({rows[0]["step"]: rows for rows in by_step(folder / f"{name}.jsonl")} for name in ("samples", "eval"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = []
    for step, of_step in groupby(rows, key=lambda row: row["step"]):
        for row in of_step:
            monitor.metrics(row)
            if row["kind"] == "train":
                monitor.samples(samples.get(step, []))
            else:
                monitor.evaluations(evaluated.get(step, []))
        found += [finding.row() for finding in monitor.look()] if step else []
    return Replayed(case, folder, card, found)


# ---- tables


def tables(runs: list[Replayed]) -> str:
    card = runs[0].card
    head = (
        f"{datetime.date.today()}, {card['hardware']['cpu']}, one thread a run, {card['hardware']['dtype']}, "
        f"torch {card['versions']['torch']}, transformers {card['versions']['transformers']}; `python bench/health.py`"
    )
    faults, healthy = [one for one in runs if one.case.finds], [one for one in runs if not one.case.finds]
    return "\n\n".join([head, of_faults(faults), of_healthy(healthy), of_detectors(faults, healthy)])


def table(columns: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (list(columns), *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]])


def said(found: list[Row]) -> str:
    return ", ".join(f"{row['detector']} {row['step']}" for row in found) or "-"


def of_faults(runs: list[Replayed]) -> str:
    """Each fault: what should find it, what did and when, and what else was said."""
    rows, in_time = [], 0
    for run in runs:
        hits = [row for row in run.found if row["detector"] in run.case.finds]
        first = hits[0] if hits else None
        in_time += bool(first and first["step"] <= BUDGET / 2)
        told = f"{first['detector']}, step {first['step']}" if first else "not found"
        others = [row for row in run.found if row is not first]
        rows.append([run.case.name, run.case.what, ", ".join(run.case.finds), told, said(others)])
    count = f"{in_time} of {len(runs)} faults found within {BUDGET // 2} steps, half of what a run has.\n\n"
    return count + table(("run", "what is wrong", "should be found by", "found by", "found besides"), rows)


def of_healthy(runs: list[Replayed]) -> str:
    """Each healthy run: that it learned, and what was said although nothing is wrong."""
    alarms = [run for run in runs if run.found]
    count = f"{len(alarms)} of {len(runs)} healthy runs with a finding.\n\n"
    rows = [[run.case.name, run.case.what, pass_at_1(run.card), said(run.found)] for run in runs]
    return count + table(("run", "settings", "pass@1 before and after", "found"), rows)


def pass_at_1(card: Row) -> str:
    before, after = (100 * card[name]["eval/pass@1"][0] for name in ("before", "after"))
    return f"{before:.0f} % to {after:.0f} %"


def of_detectors(faults: list[Replayed], healthy: list[Replayed]) -> str:
    """Each detector: the faults in which it said something, and the healthy runs."""
    rows = []
    for name in detectors():
        wanted = [run.case.name for run in faults if name in run.case.finds]
        hits = [run.case.name for run in faults if any(row["detector"] == name for row in run.found)]
        alarms = [run.case.name for run in healthy if any(row["detector"] == name for row in run.found)]
        of_those = f"{len(set(wanted) & set(hits))} of {len(wanted)}"
        rows.append([name, of_those, ", ".join(hits) or "-", ", ".join(alarms) or "none"])
    return table(("detector", "found of those named for it", "all faults it found", "false alarms"), rows)


if __name__ == "__main__":
    main()
