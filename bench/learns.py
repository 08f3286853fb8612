"""Does the default run learn? Three seeds, one after the other; prints a Markdown table for docs/learning.md.

    python bench/learns.py [--seeds 0 1 2] [--out FOLDER] [KEY=VALUE ...]

Other words are overrides of every run, such as steps=50 or algo.std=none. FOLDER keeps the runs and gets curves.png, all
seeds overlaid.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=None)
    options, overrides = parser.parse_known_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="learns-"))
    folders = [train(seed, out / f"seed-{seed}", overrides) for seed in options.seeds]
    print(table(folders, overrides))
    from grpo_exp.track.picture import draw

    print(f"\ncurves: {draw(folders, out / 'curves.png', [f'seed {s}' for s in options.seeds])}")


def train(seed: int, folder: Path, overrides: list[str]) -> Path:
    words = [f"seed={seed}", f"hydra.run.dir={folder}", "track.wandb=off", "track.console=quiet", *overrides]
    subprocess.run([sys.executable, "-m", "grpo_exp", *words], check=True)
    return folder


def table(folders: list[Path], overrides: list[str]) -> str:
    """One row a seed: held-out pass@1 at the start and at the end with intervals, when 80 % was reached, tokens and seconds."""
    cards = [json.loads((f / "run.json").read_text()) for f in folders]
    machine, versions = cards[0]["hardware"], cards[0]["versions"]
    lines = [
        f"{datetime.date.today()}, {machine['cpu']}, {machine['threads']} threads, {machine['dtype']}, "
        f"torch {versions['torch']}, transformers {versions['transformers']}; "
        f"`{' '.join(['python -m grpo_exp', *overrides])}`",
        "",
        "| seed | pass@1 before | after | difference | 80 % at step | reward, last 10 steps | format | KL, last 10 | tokens "
        "| seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for folder, card in zip(folders, cards, strict=True):
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        last = [row for row in rows if row["kind"] == "train"][-10:]
        reached = next((str(row["step"]) for row in rows if row["kind"] == "eval" and row["eval/pass@1"] >= 0.8), "-")
        cells = [str(card["seeds"]["run"]), *(percent(card[name]["eval/pass@1"]) for name in ("before", "after", "difference"))]
        cells += [
            reached,
            f"{mean(last, 'reward/mean'):.3f}",
            percent(card["after"]["eval/format"]),
            f"{mean(last, 'kl/mean'):.3f}",
        ]
        cells += [f"{card['tokens']:,}", f"{card['wall_seconds']:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def percent(interval: list[float]) -> str:
    value, low, high = (100 * x for x in interval)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def mean(rows: list[dict[str, float]], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


if __name__ == "__main__":
    main()
