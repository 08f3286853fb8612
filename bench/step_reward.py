"""The reward of bench/step.py: costs nothing, differs from row to row, the same on both sides."""

from __future__ import annotations


def cheap(completions: list[str], **_: object) -> list[float]:
    return [float(sum(map(ord, text[:64])) % 17) / 17 for text in completions]
