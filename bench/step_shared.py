"""What both sides of bench/step.py have in common; needs torch alone."""

from __future__ import annotations

import random

import torch


def cheap(completions: list[str], **_: object) -> list[float]:
    """A reward that costs nothing and differs from row to row."""
    return [float(sum(map(ord, text[:64])) % 17) / 17 for text in completions]


def lengths(shortest: int, longest: int, rows: int) -> torch.Tensor:
    """Completion lengths of a step's rows, evenly from the shortest to the longest, mixed: long `[rows]`."""
    places = random.Random(0).sample(range(rows), rows)
    return torch.tensor([round(shortest + (longest - shortest) * place / (rows - 1)) for place in places])


def ended(logits: torch.Tensor, end: int, step: int, wanted: torch.Tensor) -> torch.Tensor:
    """Logits `[n, V]` of token number `step` under which a row ends exactly at its wanted length, `[n]`."""
    logits = logits.index_fill(-1, torch.tensor([end]), float("-inf"))
    last = (wanted == step + 1).nonzero().squeeze(-1)
    logits[last] = float("-inf")
    logits[last, end] = 0
    return logits
