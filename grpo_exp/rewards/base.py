"""What a reward part is, and how parts add up to the reward of a sample."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from grpo_exp import calls, pool
from grpo_exp.advantages import group_normalized
from grpo_exp.batch import Completions, Example, Rewards
from grpo_exp.errors import ConfigError, InputError, RewardError
from grpo_exp.options import option
from grpo_exp.parts import Gate, Normalization
from grpo_exp.scoring import Failures, score

Values = Sequence[float | RewardError | None]
EXPLAINING = 10.0  # seconds that a part has for a completion whose value is to be explained


@dataclass
class Reward:
    """One part of a reward. A subclass adds its options as fields and implements `score`.

    The class is built from the part's YAML: `OmegaConf.to_object` calls it with every field as a keyword.
    """

    after_outcome: ClassVar[bool] = False
    """True where it looks at `Completions.outcome`."""

    reads: ClassVar[str] = "numbers"
    """What it tells right from wrong by, for the laboratory. numbers: the reference answer, where that is a number in any
    spelling; answers: the reference answer as the data has it; form: no answer."""

    lenient: ClassVar[bool] = False
    """True where a right answer among others, or denied, is right by design."""

    costly: ClassVar[bool] = False
    """True where it asks a model or an endpoint, so that it is not asked by the way."""

    kind: str = option("which reward: the name of a file in grpo_exp/rewards")
    weight: float = option("factor of this part in the sum")
    role: str = option(
        "outcome: says right or wrong, exactly one part has it; gate: where closed, nothing else counts; shaping: all others",
        choices=("outcome", "shaping", "gate"),
    )

    def score(self, completions: Completions) -> Values | Awaitable[Values]:
        """One value for each sample; None where this part does not apply, a RewardError where it failed on that sample.

        A subclass may make it `async def`; it is then awaited together with the other parts that do.
        """
        raise NotImplementedError

    def explain(self, text: str, example: Example) -> str:
        """What this part found in one completion and why that is worth what `score` gives it, in a line for people."""
        done = calls.run({0: partial(self.score, stand_in(example, [text]))}, EXPLAINING, EXPLAINING)[0]
        if done.error is not None:
            raise done.error
        return told(done.value[0])

    def check_data(self, examples: Sequence[Example]) -> None:
        """Called before a model loads.

        Raises:
            InputError: the data has nothing of what this part needs.
        """

    def about(self) -> dict[str, Any]:
        """What the run card should say of it besides weight and role, as JSON values."""
        return {}

    def answer(self, text: str) -> str | None:
        """The answer found in a completion, in a normal form in which equal answers are equal strings; None if there is none.

        Majority voting (maj@k) counts these. A reward without a notion of answer keeps this default.
        """
        return None

    def written(self, answer: str) -> str:
        """A completion that states this answer as the reward expects it; `check` tries it before a model loads."""
        return f"<answer>{answer}</answer>"

    def writings(self, answer: str) -> list[str]:
        """The same in each form in which the reward reads answers, `written` first; the laboratory tries all."""
        return [self.written(answer)]

    def state(self) -> dict[str, Any]:
        """What it remembers between calls, as JSON can hold it; part of every checkpoint."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned."""


class RewardSum:
    """The weighted sum of named parts, one of which is the outcome, and some of which may be gates.

    Raises:
        ConfigError: from `check_roles`, when not exactly one part is the outcome.
    """

    def __init__(
        self,
        parts: dict[str, Reward],
        failures: Failures = Failures(),  # noqa: B008
        gate: Gate = Gate(0.0, 0.0),  # noqa: B008
        normalization: Normalization = Normalization("none", 1, 1e-4),  # noqa: B008
    ) -> None:
        check_roles(parts)
        self.parts, self.failures, self.gate, self.normalization = parts, failures, gate, normalization
        self._told: set[str] = set()
        self.outcome_name = next(name for name, part in parts.items() if part.role == "outcome")
        self.gates = [name for name, part in parts.items() if part.role == "gate"]

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
        scored = self._scored(completions)
        columns = {name: values for name, (values, _) in scored.items()}  # [N] each
        failed = {name: rows for name, (_, rows) in scored.items()}
        closed = self._closed(columns, failed)
        counted = self._counted(columns, closed)
        total = torch.zeros(len(completions))
        for name, part in self.parts.items():
            total += part.weight * torch.nan_to_num(counted[name])  # a part that does not apply adds nothing
        outcome = torch.nan_to_num(counted[self.outcome_name])
        rewards = Rewards(total, columns, outcome, timeouts=pool.stops(), closed=closed)
        if self.failures.on_error == "error":
            return rewards
        rows = {row for part in failed.values() for row in part}
        some = torch.tensor([row in rows for row in range(len(completions))], dtype=torch.bool)
        return dataclasses.replace(rewards, failed=some, notes=self._notes(failed))

    def _scored(self, completions: Completions) -> dict[str, tuple[Tensor, dict[int, str]]]:
        """By part its values, `[N]`, and row -> how it failed."""
        later = {name for name, part in self.parts.items() if part.after_outcome}
        found = score({name: part.score for name, part in self.parts.items() if name not in later}, completions, self.failures)
        if later:
            right = found[self.outcome_name][0].tolist()  # [N]
            judged = dataclasses.replace(completions, outcome=[None if math.isnan(value) else value for value in right])
            found |= score({name: self.parts[name].score for name in later}, judged, self.failures)
        return {name: found[name] for name in self.parts}

    def _closed(self, columns: dict[str, Tensor], failed: dict[str, dict[int, str]]) -> Tensor | None:
        """True for samples behind a closed gate: bool `[N]`; None without gates. A gate that failed is closed."""
        if not self.gates:
            return None
        closed = torch.stack([columns[name] <= self.gate.above for name in self.gates]).any(0)  # [N]; NaN is no closed gate
        for name in self.gates:
            closed[list(failed[name])] = True
        return closed

    def _counted(self, columns: dict[str, Tensor], closed: Tensor | None) -> dict[str, Tensor]:
        """What each part counts before weighting, `[N]` each, NaN where it does not apply: its value, but for gates."""
        if closed is None:
            return columns
        counted = {name: torch.where(closed & ~values.isnan(), 0.0, values) for name, values in columns.items()}
        return counted | {self.outcome_name: columns[self.outcome_name].masked_fill(closed, self.gate.closed)}

    def normalized(self, rewards: Rewards, group: Tensor) -> Tensor | None:
        """What credit is given for instead of the total, where parts are normalised within their group: `[N]`, or None."""
        if not self.normalization.on:
            return None
        counted, (ddof, eps) = self._counted(rewards.parts, rewards.closed), (self.normalization.ddof, self.normalization.eps)
        parts = [part.weight * group_normalized(counted[name], group, ddof, eps) for name, part in self.parts.items()]
        return torch.stack(parts).sum(0)

    def formula(self) -> str:
        """What becomes of the parts besides their weighted sum, in words; empty where nothing does."""
        behind = f"{self.outcome_name} counts {self.gate.closed:g} and all else 0 where "
        gates = behind + " or ".join(f"{name} <= {self.gate.above:g}" for name in self.gates) if self.gates else ""
        return ";  ".join(text for text in (self.normalization.formula(), gates) if text)

    def check_data(self, examples: Sequence[Example]) -> None:
        """Raise InputError where the data has nothing of what a part needs."""
        for part in self.parts.values():
            part.check_data(examples)

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
    completions = stand_in(example, list(probes.values()))
    every = 1 - 1 / len(probes)  # a part that fails on all probes would fail on all samples
    try:
        with rewards.unmoved():
            failures = dataclasses.replace(rewards.failures, max_failed=every)
            result = RewardSum(rewards.parts, failures, rewards.gate)(completions)
    except RewardError as error:
        raise InputError(f"{error} (tried on data item {example.id} before training)") from error
    seen = {**result.parts, "total": result.total}  # [probes] each
    return [(probe, {name: round(float(values[i]), 6) for name, values in seen.items()}) for i, probe in enumerate(probes)]


def stand_in(example: Example, texts: list[str]) -> Completions:
    """Completions of an item that no model sampled; token ids are stand-ins, one for each word."""
    prompt = example.prompt if isinstance(example.prompt, str) else "\n".join(m["content"] for m in example.prompt)
    return Completions(
        examples=[example] * len(texts),
        prompts=[prompt] * len(texts),
        texts=texts,
        token_ids=[[0] * max(1, len(text.split())) for text in texts],
        finished=[True] * len(texts),
    )


def told(value: float | RewardError | None) -> str:
    """A value as people read it."""
    return "does not apply" if value is None else f"failed: {value}" if isinstance(value, RewardError) else f"{value:g}"
