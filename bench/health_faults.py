"""Rewards that are wrong and faults of code, made on purpose for bench/health.py."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import time
from typing import Any

CALLS = itertools.count(1)
KEPT: list[bytearray] = []

# ---- rewards, each a mistake that people make


def boxed_only(completions, answers, **columns):
    """A reader that knows one form of answer alone, and not the one that the model was taught: all is wrong."""
    found = [re.findall(r"\\boxed\{(.*?)\}", text) for text in completions]
    return [float(bool(one) and one[-1] == answer) for one, answer in zip(found, answers, strict=True)]


def any_number(completions, answers, **columns):
    """A check so lenient that whatever holds a number passes it."""
    return [float(bool(re.search(r"\d", text))) for text in completions]


def coin(completions, answers, **columns):
    """A judge whose verdict has nothing to do with the answer."""
    draw = random.Random(next(CALLS))
    return [float(draw.random() < 0.5) for _ in completions]


def pays_length(completions, answers, **columns):
    """More is better, whatever it says."""
    return [len(text) / 40 for text in completions]


def pays_equations(completions, answers, **columns):
    """A bonus for shown working, counted in equations."""
    return [0.5 * text.count("=") for text in completions]


def costs_length(completions, answers, **columns):
    """A price on each letter that is larger than what a right answer earns."""
    return [-len(text) / 10 for text in completions]


def outliers(completions, answers, **columns):
    """A model that now and then returns a number of another order."""
    values = [0.0] * len(completions)
    if next(CALLS) % 5 == 0:
        values[0] = 300.0
    return values


def slower(completions, answers, **columns):
    """A service that answers at once until it is overrun, and then runs into its time limit of 10 seconds."""
    time.sleep(10.0 if next(CALLS) > 13 else 0.0)
    return [0.0] * len(completions)


def keeps_everything(completions, answers, **columns):
    """12 MiB that nobody frees, in each call."""
    KEPT.append(bytearray(b"x" * (12 << 20)))
    return [0.0] * len(completions)


# ---- code that is wrong


def sampler_temperature() -> None:
    """The sampler divides by another temperature than the one that the policy's log-probs are taken at."""
    from grpo_exp.rollout.draw import Stepwise

    sample = Stepwise.sample

    def cooler(self: Any, policy: Any, prompts: Any, sampling: Any, rows: int) -> Any:
        return sample(self, policy, prompts, dataclasses.replace(sampling, temperature=0.7 * sampling.temperature), rows)

    Stepwise.sample = cooler  # type: ignore[method-assign]


def padding() -> None:
    """The training forward attends to the padding to the left of short prompts, which the sampler does not."""
    import torch

    from grpo_exp.policy import Policy

    forward = Policy.forward

    def attends(self: Any, batch: Any, *rest: Any, **more: Any) -> Any:
        return forward(self, batch.with_(prompt_mask=torch.ones_like(batch.prompt_mask)), *rest, **more)

    Policy.forward = attends  # type: ignore[method-assign]


def other_reference() -> None:
    """The reference is another model than the one that the run begins with."""
    import torch

    from grpo_exp.policy import Policy

    freeze = Policy.freeze_reference

    def another(self: Any, moves: bool = False) -> None:
        freeze(self, moves)
        noise = torch.Generator().manual_seed(0)
        for weight in self._frozen.parameters():
            weight.data += 0.3 * weight.data.std() * torch.randn(weight.shape, generator=noise)

    Policy.freeze_reference = another  # type: ignore[method-assign]


def half_precision() -> None:
    """Gradients pass through float16 with a loss scale that grows and is never taken back."""
    from grpo_exp.optim import Optimizer

    step, scale = Optimizer.step, [2.0**14]

    def scaled(self: Any, number: int, loss: float) -> Any:
        for weight in self.parameters:
            if weight.grad is not None:
                weight.grad = (weight.grad * scale[0]).half().to(weight.dtype) / scale[0]
        scale[0] *= 1.5
        return step(self, number, loss)

    Optimizer.step = scaled  # type: ignore[method-assign]


PATCHES = {one.__name__: one for one in (sampler_temperature, padding, other_reference, half_precision)}
