"""What sampling ahead (`hardware.overlap=1`) gives and costs: throughput, and held-out pass@1 over several seeds.

    python bench/overlap.py [--seeds 0 1 2] [--steps 100] [--cores 2] [--out FOLDER] [KEY=VALUE ...]

Each seed is trained once without and once with it, in alternation, on the same cores: without it one process has a thread on
each (--plain N: N threads, for a model so small that fewer are faster), with it the run and its sampler have half each. Rates
are over all steps but the first, in which the sampler still loads its model; seconds are the whole run's, start and evaluations
included. Other words are overrides of every run. FOLDER keeps the runs; those that are finished there are not run again. A
machine that does anything else beside gives no such numbers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
QUIET = ["eval.every=0", "checkpoint.every=0", "checkpoint.export=false"]
QUIET += ["track.wandb=off", "track.console=quiet", "track.samples_every=0"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--plain", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    options, overrides = parser.parse_known_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="overlap-"))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])  # of what is started, too
    load = os.getloadavg()[0]
    threads = [options.plain or options.cores, max(1, options.cores // 2)]
    words = [f"steps={options.steps}", *QUIET, *overrides]
    runs: dict[int, list[Path]] = {0: [], 1: []}
    for place, seed in enumerate(options.seeds):
        for overlap in (0, 1) if place % 2 == 0 else (1, 0):
            folder = out / f"overlap-{overlap}" / f"seed-{seed}"
            runs[overlap].append(train(overlap, seed, threads[overlap], folder, words))
    asked = [f"--steps {options.steps}", *([f"--plain {options.plain}"] if options.plain else []), *overrides]
    print(head(runs[1][0], options.cores, load, asked))
    print(by_seed(runs, options.seeds))
    print(f"\npass@1, with it minus without it, paired by item, mean of {len(options.seeds)} seeds: {difference(runs)}")
    print(f"steps a minute, with it over without it, by seed: {', '.join(f'{ratio:.2f}' for ratio in ratios(runs))}")


def train(overlap: int, seed: int, threads: int, folder: Path, words: list[str]) -> Path:
    here = [f"hardware.overlap={overlap}", f"hardware.threads={threads}", f"seed={seed}", f"hydra.run.dir={folder}"]
    subprocess.run([sys.executable, "-m", "grpo_exp", *words, *here], check=True)
    return folder


def head(folder: Path, cores: int, load: float, words: list[str]) -> str:
    found = card(folder)
    machine, versions = found["hardware"], found["versions"]
    return (
        f"\n{datetime.date.today()}, {cores} cores of {machine['cpu']}, load {load:.1f} before it began, {machine['dtype']}, "
        f"python {versions['python']}, torch {versions['torch']}, transformers {versions['transformers']}; "
        f"`python bench/overlap.py {' '.join(words)}`\n"
    )


def by_seed(runs: dict[int, list[Path]], seeds: list[int]) -> str:
    """A row a run."""
    lines = [
        "| overlap | seed | tokens a second | steps a minute | sampling, or waiting for it | pass@1 before | pass@1 after "
        "| gap of log-probs, nats | mean weight | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for overlap, folders in runs.items():
        for seed, folder in zip(seeds, folders, strict=True):
            rows, found = steps(folder), card(folder)
            seconds = sum(row["time/total"] for row in rows)
            cells = [
                str(overlap),
                str(seed),
                f"{sum(row['throughput/tokens_per_s'] * row['time/total'] for row in rows) / seconds:,.0f}",
                f"{pace(folder):.1f}",
                f"{100 * sum(row['time/rollout'] for row in rows) / seconds:.0f} %",
                percent(found["before"]["eval/pass@1"]),
                percent(found["after"]["eval/pass@1"]),
                f"{mean([row['mismatch/abs_mean'] for row in rows]):.2g}",
                f"{mean([row.get('mismatch/weight_mean', 1.0) for row in rows]):.3f}",
                f"{found['wall_seconds']:.0f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def difference(runs: dict[int, list[Path]]) -> str:
    """In percentage points with a 95 % interval: items are drawn with replacement, each with its mean over seeds."""
    import torch

    from grpo_exp.stats import bootstrap_mean

    per_seed = []
    for plain, ahead in zip(runs[0], runs[1], strict=True):
        one, other = rates(plain), rates(ahead)
        per_seed.append([other[item] - one[item] for item in one])
    value, low, high = (100 * x for x in bootstrap_mean(torch.tensor(per_seed, dtype=torch.float64).mean(0)))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def rates(folder: Path) -> dict[str, float]:
    """The share of right samples of each held-out item in the last evaluation."""
    lines = [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]
    right: dict[str, list[float]] = {}
    for line in lines:
        if line["step"] == lines[-1]["step"]:
            right.setdefault(line["id"], []).append(float(line["outcome"] > 0.5))
    return {item: mean(found) for item, found in right.items()}


def ratios(runs: dict[int, list[Path]]) -> Iterator[float]:
    for plain, ahead in zip(runs[0], runs[1], strict=True):
        yield pace(ahead) / pace(plain)


def pace(folder: Path) -> float:
    """Steps a minute."""
    return 60 / mean([row["time/total"] for row in steps(folder)])


def steps(folder: Path) -> list[Row]:
    """The training steps but for the first."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "train"][1:]


def card(folder: Path) -> Row:
    return dict(json.loads((folder / "run.json").read_text()))


def percent(interval: list[float]) -> str:
    value, low, high = (100 * x for x in interval)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
