"""How long it takes to begin: to the first rollout of a run, and from one job of a multirun to the next one's.

    python bench/start.py [--rounds 5] [WORD ...]

A run of the embedded model is ended at its first rollout, in turns with a bare script that imports what any such program needs
(torch, transformers' Llama, hydra, and peft where an adapter is asked for). For the gap, three jobs of one step run in one
process. WORDs are added to both. Printed: medians, and the ratio.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

IMPORTS = "import torch, hydra; from transformers import LlamaForCausalLM"
FIRST = """
import os, sys
from grpo_exp.rollout.torch import TorchEngine
TorchEngine.sample = lambda *_: os._exit(0)
from grpo_exp.__main__ import main
sys.argv[0] = "grpo_exp"
main()
"""
GAPS = """
import sys, time
from grpo_exp.rollout.torch import TorchEngine
from grpo_exp.train import Trainer
ended, waiting = time.perf_counter(), True
run, sample = Trainer.run, TorchEngine.sample
def timed_run(*given, **named):
    global ended, waiting
    result = run(*given, **named)
    ended, waiting = time.perf_counter(), True
    return result
def timed_sample(*given, **named):
    global waiting
    if waiting:
        print(f"GAP {time.perf_counter() - ended:.4f}", flush=True)
    waiting = False
    return sample(*given, **named)
Trainer.run, TorchEngine.sample = timed_run, timed_sample
from grpo_exp.__main__ import main
sys.argv[0] = "grpo_exp"
main()
"""
BRIEF = ["track=quiet", "eval.start=false", "eval.every=0", "steps=1", "checkpoint.export=false"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options, words = parser.parse_known_args()
    bare = IMPORTS + ("; import peft" if "model.adapter=lora" in words else "")
    times: dict[str, list[float]] = {"bare": [], "run": []}
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"WANDB_MODE": "offline"}
        for _ in range(options.rounds):
            times["bare"].append(timed([sys.executable, "-c", bare], folder))
            times["run"].append(timed([sys.executable, "-c", FIRST, *BRIEF, *words], folder))
        command = [sys.executable, "-c", GAPS, "-m", "seed=0,1,2", *BRIEF, *words]
        said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=environment).stdout
    gaps = [float(line.split()[1]) for line in said.splitlines() if line.startswith("GAP")][1:]
    medians = {name: statistics.median(found) for name, found in times.items()}
    about = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} {' '.join(words)}"
    print(f"{datetime.date.today()}, {about}")
    ratio = medians["run"] / medians["bare"]
    print(f"imports alone {medians['bare']:.2f} s, a run to its first rollout {medians['run']:.2f} s: {ratio:.2f}")
    print(f"from one job's end to the next one's first rollout: {', '.join(f'{gap:.2f}' for gap in gaps)} s")


def timed(command: list[str], folder: str) -> float:
    """Seconds from a process's start to its end."""
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
