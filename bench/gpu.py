"""One size of model on one device: sampling and learning, timed; see bench/gpu.sh.

    python bench/gpu.py [--size 135m] [--device cuda] [--prompts 8] [--group 8] [--new 256] [--rounds 3] [--out FILE]

A random Qwen 2 of that size, prompts of 128 tokens, completions of exactly `--new`. Sampling by `rollout=torch` and by
transformers' own `generate` (`rollout=hf`) in turns, then a forward and a backward pass over the samples, all weights trained.
The share of peak counts 2 FLOP a weight and token forward, 6 with the backward pass, against the device's rate in large
products, measured beside it. One line a size: tokens a second of each, ratio, share of peak, most memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SIZES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
    },
    "135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "1.5b": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
}
PROMPT = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="135m")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forward", choices=["auto", "stream", "modules"], default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = measured(options)
    print(json.dumps(found), flush=True)
    if options.out:
        with options.out.open("a") as file:
            file.write(json.dumps(found) + "\n")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one size."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from grpo_exp import config as configuration
    from grpo_exp import tiny
    from grpo_exp.batch import Example, Prompts, TokenBatch
    from grpo_exp.compose import compose, register
    from grpo_exp.policy import Policy
    from grpo_exp.rollout.base import Sampling

    register()
    device = torch.device(options.device)
    built = {
        name: configuration.build(compose(["model=tiny_random", f"rollout={name}", *DTYPE, f"model.forward={options.forward}"]))
        for name in ("torch", "hf")
    }
    torch.manual_seed(0)
    shape = Qwen2Config(
        vocab_size=151_936,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        pad_token_id=0,
        eos_token_id=2,
        **SIZES[options.size],
    )
    policy = Policy(built["torch"].model, Qwen2ForCausalLM(shape), tiny.tokenizer(), device, torch.bfloat16)
    policy.eos_ids = [-1]
    weights = sum(p.numel() for p in policy.model.parameters())
    tokens = torch.randint(3, 1000, (options.prompts, PROMPT), device=device)
    asked = Prompts(
        tokens, torch.ones_like(tokens).bool(), [""] * options.prompts, [Example(str(i), "") for i in range(options.prompts)]
    )
    sampling, rows = Sampling(1.0, options.new, options.group, (0, 0, 1)), options.prompts * options.group
    times: dict[str, list[float]] = {"torch": [], "hf": []}
    for number in range(options.rounds + 1):
        for name in times:
            seconds, rollout = timed(lambda name=name: built[name].rollout.sample(policy, asked, sampling, rows), device)
            times[name] += [seconds] if number else []  # the first warms up
    batch = TokenBatch(asked.tokens, asked.mask, rollout.group, rollout.tokens, rollout.mask, loss_mask=rollout.mask)

    def learn() -> None:
        for _, micro in batch.split(8):
            policy.forward(micro, 1.0, train=True).logp.sum().backward()

    def look() -> None:
        with torch.no_grad():
            for _, micro in batch.split(8):
                policy.forward(micro, 1.0)

    passes = {
        what: statistics.median([timed(f, device)[0] for _ in range(options.rounds + 1)][1:])
        for what, f in (("logp", look), ("update", learn))
    }
    peak, drawn = rate(device), rows * options.new
    computed = drawn + options.prompts * PROMPT
    torch_, hf = (statistics.median(times[name]) for name in ("torch", "hf"))
    return {
        "size": options.size,
        "weights": weights,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "forward": "stream" if policy.streams else "modules",
        "rows": rows,
        "new": options.new,
        "sampled_tokens_per_s": round(drawn / torch_),
        "generate_tokens_per_s": round(drawn / hf),
        "ratio": round(hf / torch_, 2),
        "logp_tokens_per_s": round(computed / passes["logp"]),
        "update_tokens_per_s": round(computed / passes["update"]),
        "update_share_of_peak": round(6 * weights * computed / passes["update"] / peak, 3),
        "peak_tflops_measured": round(peak / 1e12, 1),
        "memory_gib": round(torch.cuda.max_memory_allocated(device) / 2**30, 2) if device.type == "cuda" else None,
    }


DTYPE = ("model.dtype=bfloat16",)


def timed(work: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Seconds until the device is done, and the result."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began, result


def rate(device: torch.device) -> float:
    """FLOP/s of a large product in bfloat16."""
    n = 8192 if device.type == "cuda" else 2048
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    return 2 * n**3 / min(timed(lambda: a @ a, device)[0] for _ in range(5))


if __name__ == "__main__":
    main()
