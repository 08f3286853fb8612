"""Made-up courses of runs: what a detector says of them, step by step, as it would be asked in a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

from grpo_exp.compose import compose
from grpo_exp.config import build
from grpo_exp.health.base import Detector, Finding
from grpo_exp.health.monitor import Monitor

Row = dict[str, Any]
Curve = Callable[[int], float | None]
"""The value of a metric at a step, counted from 1; None where the run does not give it there."""

CONFIG: Row = {
    "max_new_tokens": 400,
    "G": 4,
    "prompts_per_step": 10,
    "lr": 1e-4,
    "beta": 0.04,
    "temperature": 1.0,
    "algo": {"mask_truncated": False, "aggregation": "sequence_mean"},
    "data": {"train": 512, "levels": ["medium", "hard"]},
    "experience": {"dynamic_sampling": False, "skip_visits": 0},
    "reward": {
        "parts": {
            "math": {"kind": "math", "role": "outcome", "weight": 1.0},
            "format": {"kind": "format", "role": "shaping", "weight": 0.1},
        }
    },
}


@cache
def standard() -> dict[str, Detector]:
    """The detectors with the thresholds that they come with."""
    return build(compose(["model=tiny_random"])).health.detectors


def samples(step: int, make: Callable[[int, int], Row], prompts: int = 10, G: int = 4) -> list[Row]:
    """Rows of samples.jsonl: `make(p, g)` says what is special of sample g of prompt p. Prompts are the same in every step."""
    plain = {"outcome": 0.0, "total": 0.0, "length": 10, "finished": True, "reference": None}
    return [
        {"step": step, "id": f"p{p}", "prompt": f"What is {p}?", "completion": f"{p} {g} {step}", **plain, **make(p, g)}
        for p in range(prompts)
        for g in range(G)
    ]


def watch(
    name: str,
    steps: int,
    train: Mapping[str, Curve],
    evals: Mapping[str, Curve] | None = None,
    rows: Callable[[int], list[Row]] | None = None,
    config: Row = CONFIG,
    without: Collection[str] = (),
    explain: Callable[[Row], str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Finding | None:
    """What one detector finds in a run of so many steps, the first time. `without` are metrics, or `samples`, that the run does
    not give; `options` thresholds other than the standard ones."""
    monitor = Monitor({name: dataclasses.replace(standard()[name], **(options or {}))}, explain=explain)
    monitor.start({"steps": steps}, config)
    for step in range(1, steps + 1):
        found = []
        for kind, curves in (("train", train), ("eval", evals or {})):
            values = {n: v for n, curve in curves.items() if n not in without and (v := curve(step)) is not None}
            if not values and kind == "eval":
                continue
            monitor.metrics({"step": step, "kind": kind, "tokens": 0, "seconds": 0.0, **values})
            if kind == "train" and rows is not None and "samples" not in without:
                monitor.samples(rows(step))
            found += monitor.look()
        if found:
            return found[0]
    return None


def flat(value: float) -> Curve:
    """The same at every step."""
    return lambda step: value


def line(start: float, end: float, begin: int, stop: int) -> Curve:
    """`start` up to the step `begin`, `end` from `stop` on, straight between them."""
    return lambda step: start + (end - start) * min(1.0, max(0.0, (step - begin) / (stop - begin)))


def jump(before: float, after: float, at: int) -> Curve:
    """`before` up to a step, `after` from it on."""
    return lambda step: after if step >= at else before


def every(steps: int, curve: Curve) -> Curve:
    """Only at every so many steps, as an evaluation."""
    return lambda step: None if step % steps else curve(step)
