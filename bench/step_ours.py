"""This side of bench/step.py: a run as any other, timed, and how far its numbers are from plain float32; prints JSON.

python bench/step_ours.py CASE (--steps 3 | --errors) --work FOLDER [KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from step_case import BETA, CASES, PROMPTS, Case, G, model_folder, prompt_file
from step_shared import ended, lengths

from grpo_exp import config as configuration
from grpo_exp.batch import Example, TokenBatch
from grpo_exp.compose import compose, register
from grpo_exp.policy import Policy
from grpo_exp.rollout.base import Sampling
from grpo_exp.rollout.draw import Draw
from grpo_exp.run import train

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--work", type=Path)
    options, words = parser.parse_known_args()
    register()
    case = CASES[options.case]
    found = errors(case, options.work, words) if options.errors else timed(case, options.work, options.steps, words)
    print(json.dumps(found))


def timed(case: Case, work: Path, steps: int, words: list[str]) -> dict[str, Any]:
    """Seconds of each timed step, from the end of the one before to its own, and of its parts."""
    prompts = prompt_file(case, work, steps)
    work_point = f"""model=hf model.path={model_folder(case.model, work)} data=file data.path={prompts} data.prompt=prompt
        data.answer=null data.split=0.01 eval.every=0 eval.start=false beta={BETA} G={G} prompts_per_step={PROMPTS}
        max_new_tokens={case.new} steps={steps + 1} lr=1e-6 track=quiet checkpoint.every=0 checkpoint.export=false
        reward=custom reward.style=grpo_exp reward.path={HERE / "step_shared.py"}:cheap"""
    composed = compose([*work_point.split(), *case.ours, *words])
    start: list[float] = []
    _control_lengths(case, start)
    with tempfile.TemporaryDirectory() as folder:
        train(configuration.build(composed), configuration.resolved(composed), set(), Path(folder), lambda *_: None)
        lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
        rows = [row for row in lines if row["kind"] == "train"]
    assert all(abs(row["length/mean"] - case.mean_length) < 1e-6 for row in rows)
    named = {"rollout": "time/rollout", "reward": "time/reward", "logp": "time/logp", "update": "time/update"}
    found = {part: [row[name] for row in rows[1:]] for part, name in named.items()}
    found["step"] = [now["seconds"] - before["seconds"] for before, now in itertools.pairwise(rows)]
    return found | {"start": start[0], "peak": peak()}


def _control_lengths(case: Case, start: list[float]) -> None:
    """Rows never end, or exactly where they are to; `start` gets the memory held once the policy is loaded."""
    load, take = Policy.load, Draw.take
    wanted = None if case.shortest is None else lengths(case.shortest, case.new, PROMPTS * G)

    def loaded(*args: Any) -> Policy:
        policy = load(*args)
        policy.eos_ids = [-1] if wanted is None else policy.eos_ids[:1]
        start.append(resident())
        return policy

    def taken(draw: Draw, logits: torch.Tensor) -> torch.Tensor | None:
        if wanted is not None:
            logits = ended(logits, draw.policy.eos_ids[0], draw.done, wanted[draw.alive])
        return take(draw, logits)

    Policy.load = loaded  # type: ignore[method-assign]
    Draw.take = taken  # type: ignore[method-assign]


def errors(case: Case, work: Path, words: list[str]) -> dict[str, float]:
    """How far this side's numbers are from those of transformers' modules in float32, on samples of its own."""
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


def resident() -> float:
    """Memory that this process holds now, GiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30


def peak() -> float:
    """The most that it held, GiB."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
