"""The batch on which a run ended, for a person to look at: tensors as they were, and the same rows as text."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from grpo_exp.batch import Example, TokenBatch
from grpo_exp.errors import RunError
from grpo_exp.policy import Policy
from grpo_exp.track.files import plain, write_whole


def write(folder: Path, batch: TokenBatch, policy: Policy, examples: Sequence[Example], about: dict[str, Any]) -> str:
    """Write `batch.safetensors`, every tensor of the batch by its name, and `batch.json`: `about`, then a row for each of its
    rows, with the ids of the items that have its prompt. Returns in words where they are, or why they are not there.
    """
    tensors = {f.name: x for f in dataclasses.fields(batch) if isinstance(x := getattr(batch, f.name), Tensor)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Copies, since safetensors refuses two names for the same memory, as mask and loss_mask may be.
        save_file({name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}, folder / "batch.safetensors")
        content = plain({**about, "rows": _rows(batch, policy, examples)})
        write_whole(folder / "batch.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    except (OSError, SafetensorError, RunError) as error:
        return f"The batch could not be written to {folder}: {error}"
    return f"The batch is in {folder}"


def _rows(batch: TokenBatch, policy: Policy, examples: Sequence[Example]) -> list[dict[str, Any]]:
    ids: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for example in examples:
        ids[tuple(policy.prompt_ids(example)[0])].append(example.id)
    prompts = [row[mask].tolist() for row, mask in zip(batch.prompt_tokens, batch.prompt_mask, strict=True)]
    numbers = {name: x for name in ("reward", "outcome", "normalized", "age") if (x := getattr(batch, name)) is not None}
    decode = policy.tokenizer.decode
    return [
        {
            "ids": ids[tuple(prompts[group])],
            "prompt": decode(prompts[group]),
            "completion": decode(batch.tokens[i][batch.mask[i]].tolist()),
            **{name: x[i].item() for name, x in numbers.items()},
        }
        for i, group in enumerate(batch.group.tolist())
    ]
