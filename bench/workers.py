"""Trials a minute with one worker and with several.

    python bench/workers.py [--workers 1 2] [--rounds 3] [--trials 8] [KEY=VALUE ...]

The same sweep of short runs of the embedded model, once with each number of workers, in alternation. One worker has all cores
to itself, several share them. Everything is timed as a user meets it: from the command to the end of its process, evaluations,
checkpoints, pictures and start-up included. Other words are overrides of every run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=8)
    options, overrides = parser.parse_known_args()
    rates: dict[int, list[float]] = {workers: [] for workers in options.workers}
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(options.rounds):
            for workers in options.workers:
                out = Path(folder) / f"round-{round_}-workers-{workers}"
                rates[workers].append(options.trials / minutes(out, workers, options.trials, overrides))
                print(f"round {round_ + 1}, {workers} workers: {rates[workers][-1]:.2f} trials a minute", flush=True)
        print(head(out / "0", overrides))
    first = options.workers[0]
    print("| workers | trials a minute, by round | against " + str(first) + " |\n|---|---|---|")
    for workers, found in rates.items():
        ratios = [rate / base for rate, base in zip(found, rates[first], strict=True)]
        shown = ", ".join(f"{rate:.2f}" for rate in found), ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"| {workers} | {shown[0]} | {shown[1]} |")


def minutes(folder: Path, workers: int, trials: int, overrides: list[str]) -> float:
    """How long the sweep takes."""
    seeds = ",".join(str(seed) for seed in range(trials))
    words = [f"seed={seeds}", f"sweep.workers={workers}", f"hydra.sweep.dir={folder}", "steps=30", "prompts_per_step=8"]
    words += ["track.wandb=off", "track.samples_every=0", *overrides]
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "grpo_exp", "-m", *words], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) / 60


def head(folder: Path, overrides: list[str]) -> str:
    card = json.loads((folder / "run.json").read_text())
    machine = card["hardware"]
    return (
        f"\n{datetime.date.today()}, {machine['cpu']}, {machine['dtype']}, torch {card['versions']['torch']}; "
        f"`{' '.join(['python bench/workers.py', *overrides])}`\n"
    )


if __name__ == "__main__":
    main()
