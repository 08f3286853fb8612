"""The runs of bench/health.py: failures made on purpose, and runs that nothing is wrong with."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

FAULTY = Path(__file__).with_name("health_faults.py")
BUDGET = 50
"""Steps of a run. A fault is to be found before half of them, so a run with one ends soon after."""
COMMON = [
    *("prompts_per_step=8", "eval.every=10", "eval.max_items=40", "hardware.threads=1", "track=quiet"),
    *("health=off", "checkpoint.every=0", "checkpoint.export=false"),
]


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        what: in words, for the table.
        words: overrides; {out} is the folder of all runs.
        finds: detectors that should find it, said before it was run: any of them counts. Empty: nothing may be found.
        patch: of health_faults.py, where code is broken.
        after: the run whose export it begins with.
    """

    name: str
    what: str
    words: str
    finds: tuple[str, ...] = ()
    patch: str | None = None
    after: str | None = None

    @property
    def steps(self) -> int:
        return BUDGET // 2 + 3 if self.finds else BUDGET


def outcome(function: str) -> str:
    return f"reward=custom reward.path={FAULTY}:{function}"


def beside(function: str, weight: int = 1) -> str:
    """A reward beside right and wrong."""
    part = f"+reward/part@reward.parts.extra=custom reward.parts.extra.role=shaping reward.parts.extra.weight={weight}"
    return f"{part} reward.path={FAULTY}:{function}"


PAIRS = "algo=dpo_offline data=preferences data.answer=answer data.chat=false data.split=40 data.path={out}"
FAULTS = (
    Case("lr_30", "lr 30 times too high", "lr=3e-3", ("learning_rate_high", "kl_explosion")),
    Case("lr_100", "lr 100 times too high", "lr=1e-2", ("learning_rate_high", "kl_explosion", "format_falling")),
    Case("lr_low", "lr 10,000 times too low", "lr=1e-8", ("not_moving",)),
    Case("no_leash", "beta=0 with lr 10 times too high", "beta=0 lr=1e-3 algo.kl.report_every=1",
         ("kl_explosion", "learning_rate_high", "entropy_collapse")),
    Case("boxed_only", "a reader that rejects right answers", outcome("boxed_only"), ("reward_zero",)),
    Case("too_hard", "products of large numbers, never right",
         "data=file data.path={out}/products.jsonl data.chat=false data.split=40", ("reward_zero", "no_contrast")),
    Case("lenient", "a check that anything with a number passes", outcome("any_number"), ("no_contrast",)),
    Case("format_only", "a reward for the form alone", "reward=format", ("no_contrast",)),
    Case("pays_length", "a reward that pays for length", beside("pays_length", 5) + " lr=1e-3 beta=0",
         ("length_blowup", "truncation", "heldout_falling", "repetition")),
    Case("pays_equations", "a bonus for each equation", beside("pays_equations", 5) + " lr=1e-3 beta=0",
         ("repetition", "length_blowup", "truncation", "heldout_falling")),
    Case("conflict", "a price on length above what a right answer earns", beside("costs_length") + " lr=5e-4",
         ("heldout_falling", "format_falling", "entropy_collapse")),
    Case("cold", "temperature near 0", "temperature=0.01", ("same_completion", "no_contrast")),
    Case("cut", "max_new_tokens below what the model writes", "model.source=hub model.path={out}/sft/export max_new_tokens=16",
         ("truncation", "reward_zero"), after="sft"),
    Case("coin", "G=2 and a judge that tosses a coin", outcome("coin") + " G=2 prompts_per_step=32",
         ("not_moving", "heldout_falling")),
    Case("gspo_clip", "GSPO's clip range with a ratio for each token, 4 passes",
         "algo.clip_low=3e-4 algo.clip_high=4e-4 algo.updates_per_rollout=4 lr=3e-4 steps=14", ("clip_saturated",)),
    Case("sampler", "the sampler's temperature is not the policy's", "steps=12", ("mismatch",), "sampler_temperature"),
    Case("padding", "the training forward attends to padding", "steps=12", ("mismatch",), "padding"),
    Case("reference", "the reference is another model", "steps=12", ("kl_explosion",), "other_reference"),
    Case("half", "float16 gradients under a loss scale that only grows", "optim.max_skips=1000", ("not_finite",),
         "half_precision"),
    Case("blind", "PPO whose critic hardly learns", "algo=ppo algo.critic.lr_factor=1e-6", ("value_blind",)),
    Case("sinking", "DPO on pairs that differ in a digit, lr 10 times too high", PAIRS + "/alike.jsonl beta=0.05 lr=1e-3",
         ("chosen_sinking",)),
    Case("dpo_length", "DPO on pairs whose chosen completions are long", PAIRS + "/longer.jsonl", ("length_bias",)),
    Case("memorised", "two training items", "data.train=2 data.levels=[hard] prompts_per_step=2 G=32 lr=5e-4 beta=0",
         ("heldout_falling", "no_contrast", "same_completion")),
    Case("sft_hot", "SFT with 8 examples a step at a rate for hundreds", "algo=sft", ("learning_rate_high", "heldout_falling")),
    Case("outliers", "a reward that now and then is of another order", "algo=dr_grpo " + beside("outliers"),
         ("gradient_spikes",)),
    Case("slower", "a reward service that runs into its time limit", beside("slower"), ("throughput_falling",)),
    Case("leak", "a reward that keeps 12 MiB a call", beside("keeps_everything"), ("memory_creeping",)),
    Case("too_easy", "items that the model can already do", "model.source=hub model.path={out}/sft/export data.levels=[easy] "
         "data.train=100 data.heldout=40", ("no_contrast", "same_completion"), after="sft"),
)  # fmt: skip
HEALTHY = (
    Case("sft", "SFT on worked sums", "algo=sft lr=5e-4 prompts_per_step=32 data.train=1000 checkpoint.export=true"),
    *(Case(f"seed_{seed}", f"the default, seed {seed}", f"seed={seed}") for seed in range(2)),
    Case("ppo", "PPO", "algo=ppo"),
    Case("dr_grpo", "Dr. GRPO", "algo=dr_grpo"),
    Case("rloo", "RLOO", "algo=rloo"),
    Case("gspo", "GSPO", "algo=gspo"),
    Case("dpo", "DPO on mined pairs", "algo=dpo"),
    Case("lora", "LoRA, lr 10 times as high", "model.adapter=lora lr=1e-3"),
    Case("beta_001", "beta=0.01", "beta=0.01 seed=11"),
    Case("beta_01", "beta=0.1", "beta=0.1 seed=12"),
    Case("lr_double", "lr doubled", "lr=2e-4 seed=14"),
    Case("G_4", "G=4, 16 prompts a step", "G=4 prompts_per_step=16 seed=15"),
    Case("G_16", "G=16, 4 prompts a step", "G=16 prompts_per_step=4 seed=16"),
    Case("T_08", "temperature=0.8", "temperature=0.8 seed=17"),
    Case("T_12", "temperature=1.2", "temperature=1.2 seed=18"),
    Case("length", "a soft penalty on overlong completions", "reward=length seed=19"),
    Case("minibatches", "two minibatches, two passes", "algo.minibatch_count=2 algo.updates_per_rollout=2 seed=21"),
    Case("no_beta", "beta=0", "beta=0 seed=22"),
    *(Case(f"seed_{seed}", f"the default, seed {seed}", f"seed={seed}") for seed in range(2, 5)),
    Case("lr_half", "lr halved", "lr=5e-5 seed=13"),
    Case("two_levels", "harder items, 400 of them", "data.levels=[medium,hard] data.train=400 seed=20"),
    Case("dapo", "DAPO", "algo=dapo"),
)  # fmt: skip


def files() -> dict[str, list[dict[str, str]]]:
    """Data that the faults train on, by the name of the file."""
    draw = random.Random(0)
    products = [(draw.randrange(1000, 10000), draw.randrange(100, 1000)) for _ in range(240)]
    sums = [(draw.randrange(10, 50), draw.randrange(10, 50)) for _ in range(240)]
    alike, longer = [], []
    for a, b in sums:
        right, wrong = f"<answer>{a + b}</answer>", f"<answer>{a + b + draw.choice([-1, 1])}</answer>"
        about = {"prompt": f"{a}+{b}=?", "answer": str(a + b), "rejected": wrong}
        alike.append({**about, "chosen": right})
        longer.append({**about, "chosen": f"{a}+{b}={a + b} {b}+{a}={a + b} {right}"})
    return {
        "products.jsonl": [{"prompt": f"{a}*{b}=?", "answer": str(a * b)} for a, b in products],
        "alike.jsonl": alike,
        "longer.jsonl": longer,
    }
