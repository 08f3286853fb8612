"""What each place of the reference costs and changes: peak memory of a step, and how far int8 is from the exact reference.

    python bench/placement.py                        # SmolLM2-135M, all weights trained; some minutes on two cores
    python bench/placement.py --model tiny --steps 2

Each choice trains in a process of its own; memory is the most that the process held. The error of int8 is measured on
completions that the starting policy samples: KL(exact || int8) over the whole vocabulary at each token, and the gap of the
sampled tokens' log-probs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

CHOICES = {
    "no reference": ["beta=0", "algo.kl.report_every=0"],
    "hardware.reference=same": [],
    "hardware.reference=8bit": ["hardware.reference=8bit"],
    "model.dtype=bfloat16, same": ["model.dtype=bfloat16"],
    "model.dtype=bfloat16, 8bit": ["model.dtype=bfloat16", "hardware.reference=8bit"],
    "model.adapter=lora, adapter_off": ["model.adapter=lora"],
    "hardware.processes=2": ["hardware.processes=2"],
    "hardware.processes=2 hardware.shard=full": ["hardware.processes=2", "hardware.shard=full"],
}


RUN = ["prompts_per_step=2", "G=2", "max_new_tokens=16", "model.adapter=none"]
"""What is small beside the weights, so that these are seen."""
QUIET = ["track=quiet", "eval.every=0", "eval.start=false", "eval.max_items=2", "eval.samples=1", "checkpoint.export=false"]
# the most that is held then follows from the tensors, not from what the allocator keeps
QUIET += ["checkpoint.every=0", "hardware.keep_memory=false"]


def step(model: str, words: list[str], steps: int) -> dict[str, float]:
    """The last training row of a short run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "grpo_exp", f"model={model}", f"steps={steps}", *RUN, *QUIET, *words]
        subprocess.run([*command, f"hydra.run.dir={folder}/run"], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in Path(folder, "run/metrics.jsonl").read_text().splitlines()]
    return next(row for row in reversed(rows) if row["kind"] == "train")


def on_paper(model: str, words: list[str]) -> float:
    """GiB that preflight.paper says."""
    from grpo_exp.compose import compose
    from grpo_exp.config import build
    from grpo_exp.preflight.paper import reckon

    return reckon(build(compose([f"model={model}", "preflight.prompt_tokens=64", *RUN, *words]))).needed


@torch.no_grad()
def error(model: str, dtype: str, skip: tuple[str, ...]) -> dict[str, float]:
    """KL(exact || int8) in nats a token, and the gap of the sampled tokens' log-probs."""
    from grpo_exp import frozen
    from grpo_exp.batch import TokenBatch
    from grpo_exp.compose import compose
    from grpo_exp.config import build
    from grpo_exp.hardware import prepare
    from grpo_exp.head import Head
    from grpo_exp.rollout.base import Sampling
    from grpo_exp.run import load_policy

    config = build(compose([f"model={model}", f"model.dtype={dtype}", "model.adapter=none"]))
    policy = load_policy(config, prepare(config.hardware, dtype))
    prompts = policy.prompts(config.data.load().train[:4])
    sampled = config.rollout.sample(policy, prompts, Sampling(1.0, 24, 4, (0, 0, 0)), 16)
    batch = TokenBatch(prompts.tokens, prompts.mask, sampled.group, sampled.tokens, sampled.mask, loss_mask=sampled.mask)
    distributions = []
    for copy in (frozen.copied(policy.language_model, policy.dtype), frozen.int8(policy.language_model, skip)):
        policy._frozen = copy
        with policy.reference(), policy.autocast():
            logits = Head(policy.language_model, policy.streams).logits(policy._hidden(batch))
        distributions.append(torch.log_softmax(logits, -1))
    exact, rounded = distributions
    kl = (exact.exp() * (exact - rounded)).sum(-1)
    tokens = batch.tokens[batch.mask][:, None]
    gap = (exact - rounded).gather(-1, tokens)
    return {
        "kl": kl.mean().item(),
        "kl_p95": kl.quantile(0.95).item(),
        "gap": gap.abs().mean().item(),
        "bias": gap.mean().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2_135m")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--only", help="of the choices, those with this in their name; and no error of int8")
    options = parser.parse_args()
    if options.only is None:
        errors(options.model)
    print("\n| choice | peak GiB | on paper | seconds a step | of that log-probs |\n|---|---|---|---|---|")
    for name, words in CHOICES.items():
        if (options.only or "") in name:
            row, said = step(options.model, words, options.steps), on_paper(options.model, words)
            times = f"{row['time/total']:.1f} | {row['time/logp']:.1f}"
            print(f"| {name} | {row['memory/peak_gib']:.2f} | {said:.2f} | {times} |", flush=True)


def errors(model: str) -> None:
    """Print how far int8 is off."""
    print("| int8 reference | KL(exact, int8), nats a token | its 95th percentile | gap of log-probs, mean | its sign kept |")
    print("|---|---|---|---|---|")
    for dtype in ("float32", "bfloat16"):
        for name, skip in (("all matrices", ()), ("head and embeddings exact", ("lm_head", "embed_tokens"))):
            found = error(model, dtype, skip)
            print(f"| {dtype}, {name} | " + " | ".join(f"{found[key]:.2g}" for key in ("kl", "kl_p95", "gap", "bias")) + " |")


if __name__ == "__main__":
    main()
