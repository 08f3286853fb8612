"""Time `python -m grpo_exp report` on a large folder: python bench/report.py [RUNS] [STEPS] [WORDS ...]

Makes RUNS runs (1,000) of STEPS steps (1,000) in a temporary folder, 250 settings of beta and G by 4 seeds, with the files and
the sizes of real ones, reports on them in a process of its own and prints seconds, seconds of CPU (which tell more on a busy
machine) and the most memory held. Words go on to the verb; --no-html times the terminal's part alone.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from grpo_exp.track.files import json_line

ITEMS, SAMPLES = 64, 4
TRAIN = """reward/mean reward/std reward/group_std reward/zero_std_frac reward/all_right_frac reward/all_wrong_frac
reward/part/math reward/part/format format/rate length/mean length/p50 length/p95 length/right length/wrong
length/truncated_frac text/unique_frac text/repetition wasted/token_frac time/rollout time/reward loss/total grad/norm lr
adv/absmax loss/policy loss/kl clip/low clip/high ratio/max entropy/mean kl/mean kl/median kl/p95 kl/k1 kl/k2 kl/k3
mismatch/abs_mean mismatch/abs_max time/logp time/update time/total throughput/tokens_per_s memory/peak_gib""".split()  # noqa: SIM905


def main(runs: int, steps: int, words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sweep = Path(folder) / "large"
        began = time.perf_counter()
        write(sweep, runs, steps)
        size = sum(f.stat().st_size for f in sweep.rglob("*") if f.is_file())
        print(f"{runs} runs of {steps} steps, {size / 2**30:.2f} GiB, made in {time.perf_counter() - began:.0f} s", flush=True)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "grpo_exp", "report", str(sweep), *words], check=True)
        seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"\n{seconds:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU, at most {used.ru_maxrss / 2**20:.2f} GiB")


def write(sweep: Path, runs: int, steps: int) -> None:
    """The sweep's folder. Lines are taken from a pool, since only their sizes matter here."""
    draw = random.Random(0)
    pool = [", ".join(f'"{name}": {draw.random()!r}' for name in TRAIN) for _ in range(100)]
    sweep.mkdir(parents=True)
    (sweep / "multirun.yaml").write_text("{}\n")
    config = yaml.safe_dump(_config(), sort_keys=False)
    for number in range(runs):
        setting, seed = divmod(number, 4)
        beta, G = round(0.001 * 1.02 ** (setting // 5), 6), (2, 4, 8, 16, 32)[setting % 5]
        folder = sweep / str(number)
        folder.mkdir()
        values = {"beta": beta, "G": G, "seed": seed}
        right = np.random.default_rng(number).random((ITEMS, SAMPLES)) < 0.4 + 0.05 * (G > 4)
        (folder / "config.yaml").write_text("".join(f"{k}: {v}\n" for k, v in values.items()) + config)
        (folder / "run.json").write_text(json.dumps(_card(values, float(right.mean()))))
        with open(folder / "metrics.jsonl", "w") as file:
            for step in range(1, steps + 1):
                head = f'"tokens": {step * 2048}, "seconds": {step * 0.5}'
                file.write(f'{{"step": {step}, "kind": "train", {head}, {draw.choice(pool)}}}\n')
                if step % 100 == 0:
                    file.write(f'{{"step": {step}, "kind": "eval", {head}, "eval/pass@1": {right.mean()}}}\n')
        with open(folder / "eval.jsonl", "wb") as lines:
            for step in (0, steps):
                lines.writelines(json_line(row) for row in _rows(step, right))


def _rows(step: int, right: np.ndarray) -> list[dict[str, Any]]:
    text = "<think> 11 + 22 = 33, since 1 + 2 = 3 twice </think> <answer>33</answer>"
    return [
        {"step": step, "category": "easy", "id": f"heldout-{i}", "prompt": "11+22=?", "completion": text, "reference": "33",
         "reward/part/math": float(x), "total": float(x), "outcome": float(x), "length": 31, "finished": True, "answer": "33"}
        for i, samples in enumerate(right.tolist()) for x in samples
    ]  # fmt: skip


def _config() -> dict[str, Any]:
    filler = {f"option_{i}": 0.5 for i in range(120)}
    return {
        "objective": {"metric": "eval/pass@1", "direction": "maximize"},
        "algo": {"name": "grpo", **filler},
        "eval": {"every": 100, "start": True, "samples": SAMPLES, "temperature": 0.7, "max_items": 0, "seed": 0},
    }


def _card(values: dict[str, Any], objective: float) -> dict[str, Any]:
    return {
        "name": "large", "status": "finished", "objective": objective, "data": {"name": "arithmetic", "sha256": "00"},
        "goal": {"metric": "eval/pass@1", "direction": "maximize"}, "overrides": {k: str(v) for k, v in values.items()},
        "tokens": 2_048_000, "after": {"eval/pass@1": [objective, objective - 0.05, objective + 0.05]},
    }  # fmt: skip


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    main(*(numbers + [1000, 1000][len(numbers) :]), [word for word in sys.argv[1:] if not word.isdigit()])  # type: ignore[misc]
