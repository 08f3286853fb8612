"""Completions of a model that earned nothing, beside what was read in them: a right answer that was not read shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from grpo_exp.answers.reference import reference_answer
from grpo_exp.batch import Completions, Example
from grpo_exp.laboratory.trial import Trial, Value

if TYPE_CHECKING:
    from grpo_exp.config import Config
    from grpo_exp.data.base import Dataset

COUNT = 50


@dataclass(frozen=True)
class Sample:
    """A completion with its value; where it is not right, why not, and whether the reference answer stands somewhere in it."""

    example: Example
    text: str
    finished: bool
    value: Value
    why: str = ""
    holds_reference: bool = False


def sampled(config: Config, data: Dataset, trial: Trial) -> tuple[list[Sample], list[str]]:
    """COUNT completions of training items, one each, more where there are fewer items; and notes on model and prompts.

    Raises:
        ModelError: the model does not load, or does not fit.
    """
    from grpo_exp.hardware import prepare
    from grpo_exp.policy import Policy
    from grpo_exp.rollout.base import Sampling
    from grpo_exp.run import fit_prompts, rows_at_once

    config.rollout.check()
    machine = prepare(config.hardware, config.model.dtype)
    policy = Policy.load(config.model, machine.device, machine.dtype, config.root.seed)
    data = fit_prompts(config, data, policy)
    examples = [data.train[i % len(data.train)] for i in range(COUNT)]
    rows = rows_at_once(config, policy, machine, examples)["rollout_rows"]
    notes = [*data.notes, *policy.notes]
    rows.tell = notes.append
    prompts = policy.prompts(examples)
    sampling = Sampling(config.root.temperature, config.root.max_new_tokens, 1, (config.root.seed, 0, 0))
    ask = partial(config.rollout.sample, policy, prompts, sampling)
    rollout = rows.attempt(ask, "sampling", prompts.tokens.shape[1], config.root.max_new_tokens)
    return _told(rollout.completions(), trial), notes


def _told(completions: Completions, trial: Trial) -> list[Sample]:
    values = trial.judged(completions)
    rows = zip(completions.examples, completions.texts, completions.finished, values, strict=True)
    found = [Sample(*row) for row in rows]
    return [one if one.value.right else _explained(one, trial) for one in found]


def _explained(one: Sample, trial: Trial) -> Sample:
    answer = None if one.example.answer is None else reference_answer(str(one.example.answer))
    holds = bool(answer) and str(answer).casefold() in one.text.casefold()
    return replace(one, why=trial.why(one.example, one.text), holds_reference=holds)
