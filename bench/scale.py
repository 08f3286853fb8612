"""What runs from 0.5B to 70B parameters on 1 to 64 GPUs take, on paper: memory by part, time by part, what a sweep costs.

    python bench/scale.py            # the tables of docs/scale.md
    python bench/scale.py --check    # the same formulas for a step that was measured on a CPU (docs/performance.md)

Nothing is run on a GPU. Memory is `grpo_exp/footprint.py`, as preflight.paper has it; time is the arithmetic below, from what
the GPU's data sheet says and the shares of it that ASSUMED names.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from grpo_exp import footprint
from grpo_exp import model as source
from grpo_exp.compose import compose
from grpo_exp.config import build
from grpo_exp.footprint import GIB, Sizes, Way
from grpo_exp.preflight.cost import held_by
from grpo_exp.preflight.paper import LIBRARIES, reckon


@dataclass(frozen=True)
class Device:
    """FLOP/s of dense bfloat16 products, bytes/s of its memory, of the link to others, of the way through files; GiB."""

    flops: float
    memory: float
    link: float
    files: float
    gib: float


H100 = Device(989e12, 3.35e12, 450e9, 2e9, 80)
"""NVIDIA H100 SXM5 80 GB, data sheet: 989 TFLOP/s bfloat16 without sparsity, 3.35 TB/s, NVLink 900 GB/s both ways. A disk."""
BETWEEN = 50e9
"""Bytes/s of a GPU to those of other machines: 400 Gbit/s each. A machine has 8 GPUs."""
ASSUMED = {"update": 0.4, "forward": 0.5, "decode": 0.6}
"""Share of the FLOP/s in the update and in the reference's pass, of the bytes/s while decoding."""
PROMPTS, G, PROMPT, COMPLETION, STEPS, TRIALS, PRICE = 64, 8, 256, 1024, 200, 100, 2.5
"""Of the run: prompts a step, samples each, tokens of both, steps; trials of a sweep; price of a GPU hour, in any currency."""
MODES = {
    "QLoRA": "model.adapter=lora model.quantize=4bit optim.name=adamw_8bit model.gradient_checkpointing=true",
    "LoRA": "model.adapter=lora model.gradient_checkpointing=true",
    "all": "model.adapter=none model.gradient_checkpointing=true",
    "all, 8 bits": "model.adapter=none model.gradient_checkpointing=true hardware.reference=8bit optim.name=adamw_8bit",
}
PROFILES = {
    "gpu_8gb": "hardware=gpu_8gb",
    "gpu_24gb": "hardware=gpu_24gb",
    "gpu_24gb_full": "hardware=gpu_24gb_full",
    "gpu, LoRA, 80 GB": "hardware=gpu hardware.memory_gib=80 model.adapter=lora model.gradient_checkpointing=true",
    "gpu, all weights, 80 GB": "hardware=gpu hardware.memory_gib=80 model.adapter=none model.gradient_checkpointing=true",
    "vllm_colocate": "hardware=vllm_colocate",
    "fsdp, 8 GPUs": "hardware=fsdp hardware.memory_gib=80 hardware.processes=8 model.adapter=none",
    "zero3_offload, 8 GPUs": "hardware=zero3_offload hardware.memory_gib=80 hardware.processes=8 model.adapter=none",
    "fsdp, 8 GPUs, LoRA": "hardware=fsdp hardware.memory_gib=80 hardware.processes=8 model.adapter=lora",
}


def products(sizes: Sizes, tokens: float, context: float, passes: float) -> float:
    """FLOPs of products: two for each weight of layers and head and token, and attention's two, half of which are causal.

    `passes`: 1 forwards; backwards 2 where weights learn, 1 under an adapter (its own products left out); 1 to compute again.
    """
    dense = 2 * (sizes.linear + sizes.vocab * sizes.hidden)
    return tokens * passes * (dense + 4 * sizes.layers * sizes.queries * context / 2)


def decoding(sizes: Sizes, device: Device, rows: float, gpus: int) -> float:
    """Seconds for all rows: at each token the weights and all keys and values are read once, or the products take longer."""
    read = 2 * sizes.weights + rows * (PROMPT + COMPLETION / 2) * 2 * sizes.layers * 2 * sizes.keys
    by_memory = read / (gpus * device.memory * ASSUMED["decode"])
    by_products = products(sizes, rows, PROMPT + COMPLETION, 1) / (gpus * device.flops * ASSUMED["update"])
    return COMPLETION * max(by_memory, by_products)


@dataclass(frozen=True)
class Plan:
    """A mode of a model on so many GPUs: GiB a GPU by part, seconds a step by part."""

    memory: dict[str, float]
    time: dict[str, float]
    rows: int
    fits: bool


def plan(size: str, mode: str, gpus: int, device: Device = H100) -> Plan:
    """All GPUs sample, then all learn. What `hardware.shard` goes with is shared out over all; the rest each has whole."""
    config = build(compose(["model=tiny_random", *MODES[mode].split()]))
    sizes, way = sized(size, mode)
    whole = mode.startswith("all")
    shards = gpus if mode == "all" else 1
    held = {name: amount / shards for name, amount in held_by(config, sizes, way).items()}
    held["whole layers"] = footprint.whole(sizes, way).unit if shards > 1 else 0.0
    tokens = PROMPT + COMPLETION
    row, head = footprint.activations(sizes, way, tokens, tokens), footprint.head(sizes, whole, PROMPTS * G * COMPLETION)
    free = 0.9 * device.gib * GIB - LIBRARIES * GIB - sum(held.values()) - head
    total = PROMPTS * G
    rows = int(max(0, min(total / gpus, free // row)))
    memory = held | {"activations": max(1, rows) * row, "logits": head, "libraries": LIBRARIES * GIB}
    together = next(t for t in (1, 2, 4, 8, 16) if 2 * sizes.weights / t < 0.5 * device.gib * GIB)
    here = max(1, gpus // together)
    link = device.link if gpus <= 8 else BETWEEN
    work = products(sizes, total * tokens, tokens, 1)
    learn = 4 if whole else 3  # forwards, again, backwards
    exchanged = 4 * sizes.trained * 2 * (gpus - 1) / gpus
    micro = max(1, -(-total // gpus // max(1, rows)))
    gathers = 2 * micro * 2 * sizes.weights * (gpus - 1) / gpus if shards > 1 else 0.0
    time = {
        "rollout": decoding(sizes, device, total / here, together) if gpus >= together else float("nan"),
        "reference": work / (gpus * device.flops * ASSUMED["forward"]),
        "update": learn * work / (gpus * device.flops * ASSUMED["update"]),
        "exchange": (exchanged + gathers) / link,
        "sync": 2 * (2 * sizes.weights if whole else 4 * sizes.trained) / device.files,
    }
    return Plan({name: amount / GIB for name, amount in memory.items() if amount}, time, rows, rows >= 1)


@functools.cache
def sized(size: str, mode: str) -> tuple[Sizes, Way]:
    """Sizes of a published model in a mode, computed by transformers' modules in bfloat16."""
    import torch

    from grpo_exp.policy import adapted

    options = build(compose(["model=tiny_random", *MODES[mode].split()])).model
    plain = dataclasses.replace(options, quantize="none")
    model = adapted(source.on_paper(options, size), plain, torch.bfloat16, torch.device("meta"))
    return Sizes.of(model), Way(2, False, True)


def by_profile() -> Iterator[str]:
    """What each profile needs for each size, as preflight.paper says."""
    sizes = list(source.sizes())
    yield f"| profile | memory | {' | '.join(sizes)} |"
    yield f"|---|---|{'---|' * len(sizes)}"
    run = [f"prompts_per_step={PROMPTS}", f"G={G}", f"max_new_tokens={COMPLETION}", f"preflight.prompt_tokens={PROMPT}"]
    for name, words in PROFILES.items():
        cells, there_is = [], 0.0
        for size in sizes:
            sheet = reckon(build(compose(["model=tiny_random", f"preflight.size={size}", *run, *words.split()])))
            there_is = sheet.there_is
            cells.append(
                f"{sheet.needed:.1f}, {sheet.rows['update']} rows" if not sheet.exit_code else f"no ({sheet.needed:.0f})"
            )
        yield f"| {name} | {there_is:.0f} GiB | {' | '.join(cells)} |"


def by_gpus() -> Iterator[str]:
    """Memory of a GPU by part, where it fits and where not."""
    yield "| model | mode | GPUs | weights | gradients | optimizer | reference | the rest | needed of 80 GB | |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for size in ("0.5b", "7b", "70b"):
        for mode in MODES:
            for gpus in (1, 8, 64):
                made = plan(size, mode, gpus)
                main = [made.memory.get(name, 0.0) for name in ("weights", "gradients", "optimizer", "reference")]
                needed = sum(made.memory.values())
                told = f"fits, {made.rows} rows at a time" if made.fits else "does not fit"
                cells = " | ".join(f"{amount:.1f}" for amount in [*main, needed - sum(main), needed])
                yield f"| {size} | {mode} | {gpus} | {cells} | {told} |"


def by_time() -> Iterator[str]:
    """Seconds of a step by part, hours of a run, and a sweep's GPU hours and price."""
    parts = "rollout | reference | update | exchange | sync | step, s | run, h"
    yield f"| model | mode | GPUs | {parts} | {TRIALS} trials, GPU h | price |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for size in ("0.5b", "7b", "70b"):
        for mode in ("QLoRA" if size == "70b" else "LoRA", "all"):
            for gpus in (1, 2, 4, 8, 16, 32, 64):
                made = plan(size, mode, gpus)
                step = sum(made.time.values())
                if not made.fits or step != step:
                    continue
                hours = step * STEPS / 3600
                cells = " | ".join(f"{seconds:.3g}" for seconds in [*made.time.values(), step])
                price = f"{TRIALS * hours * gpus:,.0f} | {TRIALS * hours * gpus * PRICE:,.0f}"
                yield f"| {size} | {mode} | {gpus} | {cells} | {hours:.2f} | {price} |"


MEASURED = {"sampling": (2.6, 290e9, 1), "reference": (1.6, 400e9, 1), "update": (3.3, 400e9, 2)}
"""docs/performance.md, smollm2-lora on an AMD EPYC: seconds that products take, FLOP/s that they reach, passes over weights."""


def check() -> Iterator[str]:
    """Products of a step of SmolLM2-135M with LoRA, 4 prompts of some 40 tokens, 8 samples of 64, by the formula above."""
    import torch

    from grpo_exp.policy import adapted

    options = build(compose(["model=smollm2_135m"])).model
    sizes = Sizes.of(adapted(source.on_paper(options), options, torch.bfloat16, torch.device("meta")))
    tokens = 4 * 40 + 32 * 64
    yield "| part | seconds in products, measured | by the formula | off |"
    yield "|---|---|---|---|"
    for part, (seconds, rate, passes) in MEASURED.items():
        said = products(sizes, tokens, 104, passes) / rate
        yield f"| {part} | {seconds:.1f} | {said:.1f} | {said / seconds - 1:+.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    for table in (check,) if parser.parse_args().check else (by_profile, by_gpus, by_time):
        print("\n".join(table()), end="\n\n")


if __name__ == "__main__":
    main()
