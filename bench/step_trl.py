"""TRL's side of bench/step.py, in an environment that has TRL and not this project; prints one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import torch
import transformers
from datasets import Dataset  # type: ignore[import-not-found,unused-ignore]
from step_shared import cheap, ended, lengths
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found,unused-ignore]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompt_file", type=Path)
    parser.add_argument("--new", type=int)
    parser.add_argument("--shortest", type=int, help="completions end at lengths from this to --new, not all at --new")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--group", type=int)
    parser.add_argument("--beta", type=float)
    parser.add_argument("--lora", type=int, default=0)
    parser.add_argument("--rows", type=int, default=0, help="rows in a micro-batch; 0 for all")
    parser.add_argument("--dtype", choices=["fp32", "amp"], help="amp: float32 weights, bfloat16 products, TRL's own default")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    rows = options.prompts * options.group
    micro = options.rows or rows
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=rows // micro,
        num_generations=options.group,
        max_completion_length=options.new,
        generation_kwargs={} if options.shortest else {"min_new_tokens": options.new},
        beta=options.beta,
        temperature=1.0,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        max_steps=options.steps + 1,
        bf16=options.dtype != "fp32",
        fp16=False,
        use_cpu=True,
        gradient_checkpointing=False,  # on by default, and slower
        report_to="none",
        save_strategy="no",
        logging_steps=10**6,
        disable_tqdm=True,
        shuffle_dataset=False,
        dataloader_pin_memory=False,
    )
    adapter = None
    if options.lora:
        from peft import LoraConfig

        adapter = LoraConfig(r=options.lora, lora_alpha=2 * options.lora, target_modules="all-linear", task_type="CAUSAL_LM")
    if options.shortest:
        end_rows(model, tokenizer.eos_token_id, lengths(options.shortest, options.new, rows))
    prompts = [json.loads(line)["prompt"] for line in options.prompt_file.read_text().splitlines()]
    clock = Clock()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=cheap,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        peft_config=adapter,
        callbacks=[clock],
    )
    clock.watch(trainer, "_generate_single_turn", lambda: "rollout")
    clock.watch(trainer, "_get_per_token_logps_and_entropies", lambda: "update" if torch.is_grad_enabled() else "logp")
    clock.watch(trainer.accelerator, "backward", lambda: "update")
    clock.watch(trainer, "_calculate_rewards", lambda: "reward")
    with open("/proc/self/statm") as file:
        start = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30
    trainer.train()
    found = {part: values[1:] for part, values in clock.found.items()}
    print(json.dumps(found | {"start": start, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))


def end_rows(model: object, end: int, wanted: torch.Tensor) -> None:
    """Have the model's `generate` end each row exactly at its wanted length, `[rows]`."""
    generate = model.generate  # type: ignore[attr-defined]

    def controlled(*args: object, **kwargs: object) -> object:
        first: list[int] = []  # tokens of the prompts

        def processor(tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            first[:] = first or [tokens.shape[1]]
            return ended(logits, end, tokens.shape[1] - first[0], wanted)

        return generate(*args, **kwargs, logits_processor=transformers.LogitsProcessorList([processor]))

    model.generate = controlled  # type: ignore[attr-defined]


class Clock(TrainerCallback):  # type: ignore[misc]
    """Seconds of each step, and of its parts."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {part: [] for part in ("step", "rollout", "reward", "logp", "update")}
        self.now = dict.fromkeys(self.found, 0.0)
        self.began = 0.0

    def on_train_begin(self, *_: object, **__: object) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *_: object, **__: object) -> None:
        """TRL samples before it says that a step begins, so a step is what lies between two ends."""
        now = time.perf_counter()
        self.now["step"], self.began = now - self.began, now
        for part, values in self.found.items():
            values.append(self.now[part])
            self.now[part] = 0.0

    def watch(self, owner: object, name: str, part) -> None:  # type: ignore[no-untyped-def]
        """Add the time of each call of a method to a part."""
        inner = getattr(owner, name)

        def timed(*args: object, **kwargs: object) -> object:
            which, began = part(), time.perf_counter()
            result = inner(*args, **kwargs)
            self.now[which] += time.perf_counter() - began
            return result

        setattr(owner, name, timed)


if __name__ == "__main__":
    main()
