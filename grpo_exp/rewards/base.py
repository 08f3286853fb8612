"""What a reward part is, and how parts add up to the reward of a sample."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from grpo_exp import pool
from grpo_exp.batch import Completions, Example, Rewards
from grpo_exp.errors import ConfigError, InputError, RewardError
from grpo_exp.options import option
from grpo_exp.scoring import Failures, score


@dataclass
class Reward:
    """One part of a reward. A subclass adds its options as fields and implements `score`.

    The class is built from the part's YAML: `OmegaConf.to_object` calls it with every field as a keyword.
    """

    kind: str = option("which reward: the name of a file in grpo_exp/rewards")
    weight: float = option("factor of this part in the sum")
    role: str = option(
        "outcome: says right or wrong, exactly one part has it; shaping: all others", choices=("outcome", "shaping")
    )

    def score(self, completions: Completions) -> list[float | None]:
        """One value for each sample, None where this part does not apply."""
        raise NotImplementedError

    def answer(self, text: str) -> str | None:
        """The answer found in a completion, in a normal form in which equal answers are equal strings; None if there is none.

        Majority voting (maj@k) counts these. A reward without a notion of answer keeps this default.
        """
        return None

    def written(self, answer: str) -> str:
        """A completion that states this answer as the reward expects it; `check` tries it before a model loads."""
        return f"<answer>{answer}</answer>"

    def card(self) -> dict[str, Any]:
        """What the run card says of it besides weight and role."""
        return {}

    def state(self) -> dict[str, Any]:
        """What it remembers between calls, as JSON can hold it; part of every checkpoint."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned."""


class RewardSum:
    """The weighted sum of named parts, one of which is the outcome.

    Raises:
        ConfigError: from `check_roles`, when not exactly one part is the outcome.
    """

    def __init__(self, parts: dict[str, Reward], failures: Failures = Failures()) -> None:  # noqa: B008
        check_roles(parts)
        self.parts, self.failures = parts, failures
        self._told: set[str] = set()
        self.outcome_name = next(name for name, part in parts.items() if part.role == "outcome")

    @property
    def outcome_part(self) -> Reward:
        return self.parts[self.outcome_name]

    def __call__(self, completions: Completions) -> Rewards:
        """Score N samples.

        Raises:
            RewardError: a part raised, took too long, or returned a wrong number of values or one that is not a finite number
                or None, and `failures` does not let that pass.
        """
        pool.stops()  # of what was compared before
        scored = {name: score(name, part.score, completions, self.failures) for name, part in self.parts.items()}
        columns = {name: values for name, (values, _) in scored.items()}  # [N] each
        total = torch.zeros(len(completions))
        for name, part in self.parts.items():
            total += part.weight * torch.nan_to_num(columns[name])  # a part that does not apply adds nothing
        outcome, timeouts = torch.nan_to_num(columns[self.outcome_name]), pool.stops()
        if self.failures.on_error == "error":
            return Rewards(total, columns, outcome, timeouts=timeouts)
        rows = {row for _, failed in scored.values() for row in failed}
        failed = torch.tensor([row in rows for row in range(len(completions))], dtype=torch.bool)
        notes = self._notes({name: failed for name, (_, failed) in scored.items()})
        return Rewards(total, columns, outcome, failed, notes, timeouts)

    def state(self) -> dict[str, dict[str, Any]]:
        """What the parts remember, by their names."""
        return {name: copy.deepcopy(state) for name, part in self.parts.items() if (state := part.state())}

    def load(self, state: dict[str, dict[str, Any]]) -> None:
        """Put back what `state` returned; a part that it does not name stays as it is."""
        for name, part in self.parts.items():
            if name in state:
                part.load(copy.deepcopy(state[name]))

    @contextmanager
    def unmoved(self) -> Iterator[None]:
        """Whatever is scored within, it is forgotten afterwards: an evaluation is no experience."""
        before = self.state()
        try:
            yield
        finally:
            self.load(before)

    def _notes(self, failed: dict[str, dict[int, str]]) -> list[str]:
        """What a person should know of failures that are let pass: the first of each part."""
        new = [name for name, rows in failed.items() if rows and name not in self._told]
        self._told.update(new)
        return [
            f"{next(iter(failed[name].values()))}. It adds nothing to that sample; more of these are counted in "
            "reward/failed_frac and not told"
            for name in new
        ]


def check_roles(parts: Mapping[str, Reward]) -> None:
    """Raise ConfigError unless there are parts and exactly one of them is the outcome."""
    if not parts:
        raise ConfigError(
            "reward.parts is empty: choose a reward such as reward=math, or add +reward/part@reward.parts.math=math"
        )
    outcomes = [name for name, part in parts.items() if part.role == "outcome"]
    if not outcomes:
        raise ConfigError(
            f"reward.parts: none of {', '.join(parts)} has role=outcome, so nothing says right or wrong; "
            f"set reward.parts.NAME.role=outcome for one of them, or add +reward/part@reward.parts.math=math"
        )
    if len(outcomes) > 1:
        raise ConfigError(
            f"reward.parts: {', '.join(outcomes)} all have role=outcome, but exactly one part says right or wrong; "
            f"set reward.parts.{outcomes[-1]}.role=shaping, or keep another one"
        )


def check(rewards: RewardSum, example: Example) -> list[tuple[str, dict[str, float]]]:
    """Try the reward on one data item before a model loads: `[(probe, {part: value, ..., "total": sum})]` for the run card.

    The probes are the worked target and the reference answer, where the item has them, and an empty completion. A part that
    does not apply shows NaN. Token ids are stand-ins, one for each word, since there is no tokenizer yet.

    Raises:
        InputError: a part raised, or returned something else than one finite number or None for each sample.
    """
    probes = {"empty completion": ""}
    if example.answer is not None:
        probes = {"reference answer": rewards.outcome_part.written(example.answer)} | probes
    if example.target is not None:
        probes = {"worked target": example.target} | probes
    prompt = example.prompt if isinstance(example.prompt, str) else "\n".join(m["content"] for m in example.prompt)
    texts = list(probes.values())
    completions = Completions(
        examples=[example] * len(texts),
        prompts=[prompt] * len(texts),
        texts=texts,
        token_ids=[[0] * max(1, len(text.split())) for text in texts],
        finished=[True] * len(texts),
    )
    every = 1 - 1 / len(texts)  # a part that fails on all probes would fail on all samples
    try:
        with rewards.unmoved():
            result = RewardSum(rewards.parts, dataclasses.replace(rewards.failures, max_failed=every))(completions)
    except RewardError as error:
        raise InputError(f"{error} (tried on data item {example.id} before training)") from error
    seen = {**result.parts, "total": result.total}  # [probes] each
    return [(probe, {name: round(float(values[i]), 6) for name, values in seen.items()}) for i, probe in enumerate(probes)]
