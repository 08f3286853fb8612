"""Killed at random moments and called again, does a run end as if nothing had happened?

    python bench/soak.py [--kills 50] [--kills-a-run 5] [--seed 0] [--out FOLDER] [KEY=VALUE ...]

Short runs of GRPO, PPO and DPO on the embedded model, one thread each. A run gets SIGKILL while it starts, anywhere in a step,
in an evaluation, in the middle of a checkpoint; the same command goes on, until it is left to finish. Then its rows, samples,
evaluations, last checkpoint and exported weights are compared, bit for bit, with those of a run that nobody disturbed, without
what takes time or memory. Which moments are tried depends on the seed alone, where exactly they fall on the machine. Other
words are overrides of every run. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]
ALGORITHMS = ("grpo", "ppo", "dpo")
MOMENTS = ("start-up", "step", "evaluation", "checkpoint")
EVERY = 2
WORDS = [
    *("track=quiet", "hardware.threads=1", "steps=8", "prompts_per_step=4", "G=4", "max_new_tokens=16", "data.train=32"),
    *("data.heldout=24", "eval.samples=2", f"eval.every={EVERY}", "checkpoint.every=1"),
]
TIMED = ("seconds", "time/", "throughput/", "memory/")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--kills-a-run", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    options, overrides = parser.parse_known_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="soak-"))
    random, began = Random(options.seed), time.monotonic()
    whole = {algo: undisturbed(algo, out / f"{algo}-whole", overrides) for algo in ALGORITHMS}
    lines, total, number, differ = [], Counter[str](), 0, 0
    while total.total() < options.kills:
        algo, number = ALGORITHMS[number % len(ALGORITHMS)], number + 1
        folder = out / f"{algo}-{number}"
        hit = killed(algo, folder, min(options.kills_a_run, options.kills - total.total()), random, whole[algo], overrides)
        total += hit
        found = differences(out / f"{algo}-whole", folder)
        differ += bool(found)
        cells = [str(number), algo, *(str(hit[moment]) for moment in MOMENTS), "; ".join(found) or "none"]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    minutes = (time.monotonic() - began) / 60
    print(
        f"\n{datetime.date.today()}, {processor()}, torch {torch.__version__}, seed {options.seed}: {total.total()} kills, "
        f"{number} runs, {number - differ} of them as if undisturbed, {minutes:.1f} minutes\n\n"
        f"| run | algorithm | {' | '.join(MOMENTS)} | differences |\n|{'---|' * (len(MOMENTS) + 3)}"
    )
    print("\n".join([*lines, f"| all | | {' | '.join(str(total[m]) for m in MOMENTS)} | {differ or 'none'} |"]))
    return 1 if differ else 0


def processor() -> str:
    """The processor's name."""
    names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def start(algo: str, folder: Path, overrides: list[str]) -> subprocess.Popen[bytes]:
    """The command that begins a run, and goes on with it."""
    words = [sys.executable, "-m", "grpo_exp", f"algo={algo}", *WORDS, f"hydra.run.dir={folder}", *overrides]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Leave it alone to its end."""
    _, err = process.communicate()
    if process.returncode:
        raise SystemExit(f"a run ended with exit code {process.returncode}: {err.decode()}")


def undisturbed(algo: str, folder: Path, overrides: list[str]) -> float:
    """A whole run; returns the seconds until its first row."""
    began, first = time.monotonic(), 0.0
    process = start(algo, folder, overrides)
    while process.poll() is None and not rows(folder):
        time.sleep(0.01)
    first = time.monotonic() - began
    finish(process)
    return first


def killed(algo: str, folder: Path, kills: int, random: Random, start_up: float, overrides: list[str]) -> Counter[str]:
    """A run that is killed so many times, then left to finish; returns how often it was hit where."""
    hit: Counter[str] = Counter()
    longest = {"start-up": start_up, "step": 1.0, "evaluation": 0.2, "checkpoint": 0.02}
    while hit.total() < kills:
        moment, watch = random.choice(MOMENTS), Watch(folder)
        wait = random.uniform(0, longest[moment])
        process = start(algo, folder, overrides)
        while process.poll() is None and moment not in ("start-up", watch.where()):
            time.sleep(0.001)
        until = time.monotonic() + wait
        while process.poll() is None and time.monotonic() < until:
            watch.where()
            time.sleep(0.001)
        process.kill()
        process.communicate()
        if process.returncode == 0:  # the kill came too late, and there is nothing more to kill
            return hit
        assert process.returncode == -9, process.returncode
        hit[watch.where()] += 1
    finish(start(algo, folder, overrides))
    return hit


class Watch:
    """What a process does with a run's folder, told from what it has written since."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.left, self.file = self.writing(), self.metrics()
        self.first = -1  # the rows that it began with

    def metrics(self) -> int:
        """Which file metrics.jsonl is; one that goes on begins with another."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "metrics.jsonl").stat().st_ino
        return 0

    def writing(self) -> set[tuple[str, int, int]]:
        """The checkpoints that are not whole."""
        found = set()
        for path in (self.folder / "checkpoints").glob(".writing-*"):
            with contextlib.suppress(FileNotFoundError):
                found.add((path.name, (at := path.stat()).st_ino, at.st_mtime_ns))
        return found

    def where(self) -> str:
        """What it is doing, or was when it was killed: one of MOMENTS."""
        if self.writing() - self.left:
            return "checkpoint"
        if self.metrics() == self.file:
            return "start-up"
        now = rows(self.folder)
        self.first = len(now) if self.first < 0 else self.first
        if len(now) <= self.first:
            return "start-up"  # or in its first step
        last = now[-1]
        return "evaluation" if last["kind"] == "train" and last["step"] % EVERY == 0 else "step"


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The whole rows of a file, without what takes time or memory."""
    try:
        lines = (folder / name).read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(TIMED)} for line in lines]


def differences(one: Path, other: Path) -> list[str]:
    """What is not the same in two runs, bit for bit."""
    found = [name for name in ("metrics.jsonl", "samples.jsonl", "eval.jsonl") if rows(one, name) != rows(other, name)]
    cards = [json.loads((folder / "run.json").read_text()) for folder in (one, other)]
    found += [
        key for key in ("status", "objective", "tokens", "before", "after", "difference") if cards[0][key] != cards[1][key]
    ]
    kept = [sorted(p.name for p in (folder / "checkpoints").iterdir()) for folder in (one, other)]
    if kept[0][-1] != kept[1][-1]:
        return [*found, f"checkpoints {kept[0]} and {kept[1]}"]
    for name in ("export/model.safetensors", f"checkpoints/{kept[0][-1]}/weights.safetensors"):
        a, b = load_file(one / name), load_file(other / name)
        if a.keys() != b.keys() or not all(torch.equal(a[key], b[key]) for key in a):
            found.append(name)
    return found


if __name__ == "__main__":
    sys.exit(main())
