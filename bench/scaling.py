"""How the time and memory of a step grow with group size, completion length, prompts and vocabulary.

    python bench/scaling.py [--models tiny smollm2] [--vary G new prompts vocabulary] [--work FOLDER] [KEY=VALUE ...]

One thing is varied at a time around G=8, 64 new tokens (no token ends a completion), 4 prompts and the model's own
vocabulary. Each point is a run of its own in a process of its own, its first step not counted. Printed: seconds a step and of
its parts, the seconds of the prompts' own pass while sampling, the most memory beyond the loaded model, and for each part the
slope between the last two points in log-log: 1 is growth in proportion, 2 quadratic, 0 none. `scaling.png` in FOLDER draws
them.

Vocabularies beyond the model's own are made of rows of zeros: as much to compute, and never sampled.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from step import MALLOC
from step_case import BETA, CASES, Case, model_folder, prompt_file

POINTS: dict[str, list[int]] = {"G": [4, 8, 16, 32, 64], "new": [32, 64, 128, 256, 512], "prompts": [2, 4, 8, 16]}
VOCABULARY = {"tiny": [89, 1_000, 10_000, 50_000], "smollm2": [49_152, 98_304, 196_608]}
MIDDLE = {"G": 8, "new": 64, "prompts": 4}
MODELS = {"tiny": CASES["tiny"], "smollm2": CASES["smollm2-lora"]}
PARTS = ("step", "prefill", "rollout", "logp", "update", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--vary", nargs="+", choices=[*POINTS, "vocabulary"], default=[*POINTS, "vocabulary"])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/grpo_exp/bench")
    parser.add_argument("--point", help=argparse.SUPPRESS)  # this process is one point
    options, words = parser.parse_known_args()
    work = options.work.absolute()
    if options.point:
        print(json.dumps(point(MODELS[options.models[0]], work, options.steps, json.loads(options.point), words)))
        return
    work.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for model in options.models:
        model_folder(MODELS[model].model, work)
        machine = f"{os.cpu_count()} cores of {processor()}, load {os.getloadavg()[0]:.1f}"
        print(f"\n{datetime.date.today()}, {model}, {machine} {' '.join(words)}")
        for what in options.vary:
            values = POINTS.get(what) or VOCABULARY[model]
            print(f"\n| {what} | {' s | '.join(PARTS[:-1])} s | memory GiB |\n|{'---|' * (len(PARTS) + 1)}", flush=True)
            found = []
            for value in values:
                found.append(one(model, work, options.steps, {what: value}, words))
                print(f"| {value} | {' | '.join(f'{found[-1][part]:.3f}' for part in PARTS)} |", flush=True)
            slopes = [slope(values, [row[part] for row in found]) for part in PARTS]
            print(f"| slope | {' | '.join(slopes)} |", flush=True)
            drawn[model, what] = values, found
    draw(drawn, work / "scaling.png")


def one(model: str, work: Path, steps: int, changed: dict[str, int], words: list[str]) -> dict[str, float]:
    """One point, in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "--models",
        model,
        "--steps",
        str(steps),
        "--work",
        str(work),
        "--point",
        json.dumps(changed),
    ]
    done = subprocess.run([*command, *words], capture_output=True, text=True, env=os.environ | MALLOC)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def point(case: Case, work: Path, steps: int, changed: dict[str, int], words: list[str]) -> dict[str, float]:
    """Medians over the timed steps."""
    from step_ours import peak, resident

    from grpo_exp import config as configuration
    from grpo_exp.compose import compose, register
    from grpo_exp.policy import Policy
    from grpo_exp.rollout.states import StreamState
    from grpo_exp.run import train

    register()
    at = MIDDLE | changed
    prompts = prompt_file(case, work, max(1, steps * at["prompts"] // 4))
    folder = widened(case, work, changed.get("vocabulary"))
    options = f"""model=hf model.path={folder} data=file data.path={prompts} data.prompt=prompt
        data.answer=null data.split=0.01 eval.every=0 eval.start=false beta={BETA} G={at["G"]} prompts_per_step={at["prompts"]}
        max_new_tokens={at["new"]} steps={steps + 1} lr=1e-6 track=quiet checkpoint.every=0 checkpoint.export=false
        reward=custom reward.style=grpo_exp reward.path={Path(__file__).parent / "step_shared.py"}:cheap"""
    load, begin, start, prefill = Policy.load, StreamState.__init__, [0.0], []

    def loaded(*args: Any) -> Policy:
        policy = load(*args)
        policy.eos_ids, start[0] = [-1], resident()
        return policy

    def begun(*args: Any) -> None:
        began = time.perf_counter()
        begin(*args)
        prefill.append(time.perf_counter() - began)

    Policy.load, StreamState.__init__ = loaded, begun  # type: ignore[method-assign]
    composed = compose([*options.split(), *case.ours, *words])
    with tempfile.TemporaryDirectory() as folder:
        train(configuration.build(composed), configuration.resolved(composed), set(), Path(folder), lambda *_: None)
        lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
        rows = [row for row in lines if row["kind"] == "train"][1:]
    times = {part: statistics.median(row[f"time/{part}"] for row in rows) for part in ("rollout", "logp", "update")}
    step = statistics.median(row["time/total"] for row in rows)
    chunks = len(prefill) / (steps + 1)
    return {"step": step, "prefill": statistics.median(prefill[1:]) * chunks, **times, "memory": peak() - start[0]}


def widened(case: Case, work: Path, vocabulary: int | None) -> Path:
    """The model with a vocabulary of this size, made where it is not there yet."""
    folder = model_folder(case.model, work)
    target = work / f"{case.model}-{vocabulary}"
    if vocabulary is None:
        return folder
    if not (target / "config.json").exists():
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(folder)
        known = model.config.vocab_size
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
        for table in (model.get_input_embeddings(), model.get_output_embeddings()):
            table.weight.data[known:] = 0
        model.save_pretrained(target)
        AutoTokenizer.from_pretrained(folder).save_pretrained(target)
    return target


def slope(values: list[int], found: list[float]) -> str:
    """Growth between the last two points: log ratio over log ratio."""
    if min(found[-2:]) <= 0:
        return "-"
    return f"{math.log(found[-1] / found[-2]) / math.log(values[-1] / values[-2]):.2f}"


def draw(found: dict[tuple[str, str], tuple[list[int], list[dict[str, float]]]], path: Path) -> None:
    """A row of panels for each model, log-log."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    models, varied = (list(dict.fromkeys(key[i] for key in found)) for i in (0, 1))
    figure, panels = plt.subplots(len(models), len(varied), figsize=(4 * len(varied), 3.4 * len(models)), squeeze=False)
    for (model, what), (values, rows) in found.items():
        panel = panels[models.index(model)][varied.index(what)]
        for part in ("rollout", "logp", "update", "prefill"):
            panel.plot(values, [row[part] for row in rows], marker="o", markersize=3, label=part)
        panel.plot(values, [row["memory"] for row in rows], color="0.5", linestyle="--", label="GiB")
        panel.set(xscale="log", yscale="log", xlabel=what, title=f"{model}: {what}")
        panel.set_xticks(values, [f"{value:,}" for value in values], minor=False)
        panel.minorticks_off()
    panels[0][0].legend(fontsize=8, frameon=False)
    for row in panels:
        row[0].set_ylabel("seconds a step, GiB")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    print(f"\n{path}")


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
