"""Algorithms side by side at an equal budget of generated tokens, over several seeds; prints a table for docs/algorithms.md.

    python bench/algorithms.py [--algos grpo ppo ...] [--seeds 0 1 2] [--tokens 150000] [--out FOLDER] [KEY=VALUE ...]

Everything but the algorithm is the same: model, prompts, reward, samples a step, random numbers of sampling. A run ends with
the first step that reaches the budget. Other words are overrides of every run. FOLDER keeps the runs and gets curves.png, one
line an algorithm for the first seed; runs that are finished there are not run again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ALGORITHMS = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "ppo", "dpo")

DRAWN = ("grpo", "dapo", "gspo", "rloo", "ppo", "dpo")
"""More curves than colours tell nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=150_000)
    parser.add_argument("--out", type=Path, default=None)
    options, overrides = parser.parse_known_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="algorithms-"))
    runs = {
        algo: [train(algo, seed, options.tokens, out / algo / f"seed-{seed}", overrides) for seed in options.seeds]
        for algo in options.algos
    }
    print(head(next(iter(runs.values()))[0], options.tokens, overrides))
    print(table(runs))
    print("\n" + "\n".join(f"    {algo:<22} {card(folders[0])['formula']}" for algo, folders in runs.items()))
    from grpo_exp.track.picture import draw

    drawn = [algo for algo in runs if algo in DRAWN] or list(runs)[:8]
    print(f"\ncurves: {draw([runs[algo][0] for algo in drawn], out / 'curves.png', drawn)}")


def train(algo: str, seed: int, tokens: int, folder: Path, overrides: list[str]) -> Path:
    """One run; the budget ends it long before its steps are used up."""
    words = [f"algo={algo}", f"seed={seed}", f"experience.max_tokens={tokens}", "steps=1000", "checkpoint.every=0"]
    words += [f"hydra.run.dir={folder}", "track.wandb=off", "track.console=quiet", "track.samples_every=0", *overrides]
    subprocess.run([sys.executable, "-m", "grpo_exp", *words], check=True)
    return folder


def card(folder: Path) -> dict:  # type: ignore[type-arg]
    return json.loads((folder / "run.json").read_text())  # type: ignore[no-any-return]


def head(folder: Path, tokens: int, overrides: list[str]) -> str:
    machine, versions = card(folder)["hardware"], card(folder)["versions"]
    words = " ".join([f"--tokens {tokens}", *overrides])
    return (
        f"{datetime.date.today()}, {machine['cpu']}, {machine['threads']} threads, {machine['dtype']}, "
        f"torch {versions['torch']}, transformers {versions['transformers']}; `python bench/algorithms.py {words}`\n"
    )


def table(runs: dict[str, list[Path]]) -> str:
    """One row an algorithm. Pass@1 of each seed; the mean over seeds of the paired rises, with an interval over items."""
    lines = [
        "| algo | pass@1 after, by seed | rise, mean of seeds | KL, last 10 | steps | tokens | seconds | peak GiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for algo, folders in runs.items():
        cards = [card(folder) for folder in folders]
        rows = [[json.loads(line) for line in (f / "metrics.jsonl").read_text().splitlines()] for f in folders]
        train_rows = [[row for row in one if row["kind"] == "train"] for one in rows]
        cells = [
            algo,
            ", ".join(f"{100 * c['after']['eval/pass@1'][0]:.1f}" for c in cards),
            rise(folders),
            over(train_rows, "kl/mean", ".3f"),
            "{:.0f}".format(mean([one[-1]["step"] for one in train_rows])),
            "{:,.0f}".format(mean([c["tokens"] for c in cards])),
            "{:.0f}".format(mean([c["wall_seconds"] for c in cards])),
            "{:.2f}".format(max(one[-1]["memory/peak_gib"] for one in train_rows)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rise(folders: list[Path]) -> str:
    """The rise of pass@1 with a 95 % interval: items are drawn with replacement, each with its mean over seeds."""
    import torch

    from grpo_exp.stats import bootstrap_mean

    per_seed = []
    for folder in folders:
        rows = [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]
        first, last = rows[0]["step"], rows[-1]["step"]
        right: dict[tuple[int, str], list[float]] = {}
        for row in rows:
            right.setdefault((row["step"], row["id"]), []).append(float(row["outcome"] > 0.5))
        ids = list(dict.fromkeys(row["id"] for row in rows))
        per_seed.append([mean(right[last, i]) - mean(right[first, i]) for i in ids])
    value, low, high = (100 * x for x in bootstrap_mean(torch.tensor(per_seed, dtype=torch.float64).mean(0)))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def over(runs: list[list[dict[str, float]]], name: str, form: str) -> str:
    """The mean of a metric over the last ten steps and all seeds; a dash where it is not measured."""
    values = [row[name] for rows in runs for row in rows[-10:] if name in row]
    return format(mean(values), form) if values else "-"


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
