"""A trained reward model: `reward=model reward.path=FOLDER`, what `algo=reward_model` exports or any other with one label.

The folder holds a sequence-classification model of transformers and its own tokenizer, which need not be the policy's.
"""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_exp import frozen
from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError
from grpo_exp.frozen import Waiting
from grpo_exp.options import option
from grpo_exp.paths import expanded
from grpo_exp.rewards.base import Reward


@dataclass
class ModelReward(Reward):
    """The model's score of prompt and completion, read at the last token, which is the end of sequence of a finished sample.

    Prompt, completion and end of sequence are joined as ids, as in training. A sample that was cut off has no end of sequence.
    `evaluate` calls a sample right where its value is above 0.5: with output=sigmoid that is where the score is above
    `threshold`. Left out: models that read prompt and completion as two segments, and batches of like lengths.
    """

    costly = True

    path: str | None = option("folder of a sequence-classification model with one label, its tokenizer beside it")
    rows: int = option("samples scored at a time", low=1)
    device: str = option("where the model is computed; auto: a GPU where there is one", choices=("auto", "cpu", "cuda"))
    output: str = option("score: the model's own, less threshold; sigmoid: of that", choices=("score", "sigmoid"))
    threshold: float = option("score that is neither good nor bad; subtracted first")
    place: str = option(
        "same: the model stays on its device; cpu: it waits in the CPU's memory between calls, where the policy needs that of "
        "the GPU; 8bit: it stays, in int8",
        choices=("same", "cpu", "8bit"),
    )

    def __post_init__(self) -> None:
        self._folder = folder(self.path)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("reward.parts: device=cuda for the reward model, but torch sees no GPU; use auto or cpu")
        self._loaded: tuple[Any, Any, Waiting | None] | None = None

    @torch.no_grad()
    def score(self, completions: Completions) -> list[float | None]:
        """The values of N samples.

        Raises:
            ConfigError: at the first use: the folder's files do not make a model, or do not belong together.
        """
        model, tokenizer, waiting = self._loaded = self._loaded or self._load()
        triples = zip(completions.examples, completions.texts, completions.finished, strict=True)
        ids = [token_ids(tokenizer, *triple) for triple in triples]
        with waiting.here() if waiting is not None else contextlib.nullcontext():
            parts = [scores(model, ids[i : i + self.rows]) for i in range(0, len(ids), self.rows)]
        values = torch.cat(parts) - self.threshold  # [N]
        return list((values.sigmoid() if self.output == "sigmoid" else values).tolist())

    def _load(self) -> tuple[Any, Any, Waiting | None]:
        """Model, tokenizer, and what keeps the model in the CPU's memory between calls."""
        model, tokenizer = load(self._folder, self.device)
        if self.place == "8bit":
            model = frozen.int8(model, skip=("score",))  # one row, whose scale would be the only one of all scores
        return model, tokenizer, Waiting(model, torch.device(place(self.device))) if self.place == "cpu" else None


def folder(path: str | None) -> Path:
    """The folder, once its config.json says that it holds a sequence-classification model with one label.

    Raises:
        ConfigError: it does not.
    """
    if path is None:
        raise ConfigError("reward.path=null: the model reward needs a folder, such as reward.path=outputs/runs/RUN/export")
    where = expanded(path)
    wanted = f"reward.path={path!r}: expected the folder of a sequence-classification model with one label"
    try:
        config = json.loads((where / "config.json").read_text(encoding="utf-8"))
        architecture = str((config.get("architectures") or ["none"])[0])
        labels = len(config.get("id2label") or {}) or int(config.get("num_labels", 2))
    except FileNotFoundError as error:
        raise ConfigError(f"{wanted}, but there is no {where / 'config.json'} (the current folder is {Path.cwd()})") from error
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{wanted}, but {where / 'config.json'} cannot be read: {error}") from error
    if not architecture.endswith("ForSequenceClassification"):
        raise ConfigError(f"{wanted}, but it holds {architecture}. algo=reward_model trains and exports one")
    if labels != 1:
        raise ConfigError(f"{wanted}, but {architecture} has {labels} labels")
    return where


def load(where: Path, device: str) -> tuple[Any, Any]:
    """Model and tokenizer, in float32 on a CPU, in the file's dtype on a GPU.

    Raises:
        ConfigError: files are missing or damaged, the head has no weights, or the tokenizer is another model's.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    dtype: Any = torch.float32 if place(device) == "cpu" else "auto"
    key = f"reward.path={str(where)!r}"
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
            tokenizer: Any = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
            model, about = AutoModelForSequenceClassification.from_pretrained(
                where, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    except Exception as error:  # transformers, tokenizers and safetensors share no class for what they cannot read
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise ConfigError(f"{key}: the reward model cannot be loaded: {reason}") from error
    if missing := sorted(about["missing_keys"]):
        raise ConfigError(f"{key}: the weights of {', '.join(missing[:3])} are missing, so its scores would be random")
    known, largest = model.get_input_embeddings().num_embeddings, max(tokenizer.get_vocab().values())
    if largest >= known:
        raise ConfigError(
            f"{key}: its tokenizer has ids up to {largest} and the model knows {known} tokens: the tokenizer is of another "
            "vocabulary. Put the model's own beside it"
        )
    return model.to(place(device)).eval(), tokenizer


def place(device: str) -> str:
    """Where `device` means."""
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def token_ids(tokenizer: Any, example: Example, text: str, finished: bool) -> list[int]:
    """Prompt, completion and, where the sample ended by itself, the end of sequence."""
    prompt, templated = example.prompt, False
    if not isinstance(prompt, str):
        templated = getattr(tokenizer, "chat_template", None) is not None
        joined = "\n".join(message["content"] for message in prompt)
        prompt = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) if templated else joined
    ids = [
        *tokenizer(prompt, add_special_tokens=not templated)["input_ids"],
        *tokenizer(text, add_special_tokens=False)["input_ids"],
    ]
    return ids + ([tokenizer.eos_token_id] if finished and tokenizer.eos_token_id is not None else [])


def scores(model: Any, rows: list[list[int]]) -> Tensor:
    """The score of each row at its last token, float32 on the CPU: `[n]`.

    transformers looks for the last token that is not padding, by its id: a padding token that is also the end of sequence would
    make it read one token early. So the rows are padded with a token that none of them ends in.
    """
    ends = {row[-1] for row in rows}
    pad = next(i for i in range(len(ends) + 1) if i not in ends)
    model.config.get_text_config().pad_token_id = pad
    width = max(map(len, rows))
    tokens = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=model.device)  # [n, S]
    mask = torch.arange(width, device=model.device) < torch.tensor([len(row) for row in rows], device=model.device)[:, None]
    result: Tensor = model(input_ids=tokens, attention_mask=mask.long()).logits[:, 0].float().cpu()
    return result
