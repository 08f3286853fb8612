"""What pruning saves and what it costs.

    python bench/pruning.py [--seeds 0 1 2] [--pruners median ...] [--sweep full_tpe] [--out FOLDER] [KEY=VALUE ...]

The same sweep with no pruner and with others, once for each seed of the sampler. Prints, for each, the tokens sampled by all
trials against those without pruning, the best trial, and how its held-out accuracy differs from that of the best without
pruning, paired by item. Runs go on one thread, so that a sweep is the same in every call; two sweeps go at a time. FOLDER keeps
them; what is finished there is not run again. A pruner may have options behind it: `percentile,n_warmup_steps=15`. Other words
are overrides of every run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Trial = dict[str, Any]
"""trial.json, its folder under `folder`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pruners", nargs="*", default=["median"])
    parser.add_argument("--sweep", default="full_tpe")
    parser.add_argument("--out", type=Path, default=None)
    options, overrides = parser.parse_known_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="pruning-"))
    cases = [(seed, pruner) for pruner in ["none", *options.pruners] for seed in options.seeds]
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(cases, pool.map(lambda case: trials(out, options.sweep, *case, overrides), cases), strict=True))
    print(head(found[cases[0]][0]["folder"], overrides))
    columns = (
        "seed",
        "pruner",
        "complete, pruned",
        "tokens",
        "share",
        "best trial",
        "its objective",
        "against the best unpruned",
    )
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for seed in options.seeds:
        for pruner in ["none", *options.pruners]:
            print(row(seed, pruner, found[seed, pruner], found[seed, "none"]))


def trials(out: Path, sweep: str, seed: int, pruner: str, overrides: list[str]) -> list[Trial]:
    """Run one sweep, or what is missing of it; its trials."""
    folder = out / f"{re.sub('[^a-z0-9.]+', '_', pruner)}-{seed}"
    name, *options = pruner.split(",")
    words = [f"sweeps={sweep}", f"hydra/sweeper/pruner={name}", f"hydra.sweeper.sampler.seed={seed}"]
    words += [f"hydra.sweeper.pruner.{option}" for option in options]
    words += [f"hydra.sweep.dir={folder}", "hardware.threads=1", "track.wandb=off", "track.console=quiet", *overrides]
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"{folder.name}.log").open("w") as log:
        subprocess.run([sys.executable, "-m", "grpo_exp", *words], check=True, stdout=log, stderr=log, env=environment())
    paths = sorted(folder.glob("*/trial.json"), key=lambda path: int(path.parent.name))
    return [{**json.loads(path.read_text()), "folder": path.parent} for path in paths]


def environment() -> dict[str, str]:
    """Two processes side by side: threads that wait must not spin."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def row(seed: int, pruner: str, those: list[Trial], unpruned: list[Trial]) -> str:
    states = [trial["state"] for trial in those]
    spent, full = (sum(trial["tokens"] for trial in some) for some in (those, unpruned))
    one, reference = best(those), best(unpruned)
    values = ", ".join(f"{key} {value:.3g}" for key, value in one["params"].items())
    told = "" if pruner == "none" else against(one["folder"], reference["folder"])
    counts = f"{states.count('complete')}, {states.count('pruned')}"
    return f"| {seed} | {pruner} | {counts} | {spent:,} | {spent / full:.2f} | {values} | {100 * one['value']:.1f} % | {told} |"


def best(those: list[Trial]) -> Trial:
    """The complete trial with the highest objective among those that keep to the constraints, as the sweep itself names it."""
    import optuna

    from grpo_exp.sweep.results import best as best_of
    from grpo_exp.sweep.study import storage

    folder = those[0]["folder"].parent
    study = optuna.load_study(study_name=folder.name, storage=storage(folder, None))
    found = best_of(study)
    assert found is not None, f"{folder}: no trial is complete"
    return those[found.number]


def against(folder: Path, reference: Path) -> str:
    """The difference in held-out accuracy with a 95 % interval, by bootstrap over items."""
    import torch

    from grpo_exp.report.items import read_items
    from grpo_exp.stats import bootstrap_mean

    one, other = (read_items(path / "eval.jsonl", None) for path in (folder, reference))
    assert one is not None and other is not None and one.fingerprint == other.fingerprint
    value, low, high = (100 * x for x in bootstrap_mean(torch.tensor(one.right - other.right, dtype=torch.float64)))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def head(folder: Path, overrides: list[str]) -> str:
    card = json.loads((folder / "run.json").read_text())
    return (
        f"{datetime.date.today()}, {card['hardware']['cpu']}, one thread a run, torch {card['versions']['torch']}, "
        f"optuna {card['versions'].get('optuna', '')}; `{' '.join(['python bench/pruning.py', *overrides])}`\n"
    )


if __name__ == "__main__":
    main()
