"""What a reward part is, and how parts add up to the reward of a sample."""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from grpo_exp.batch import Completions, Example, Rewards
from grpo_exp.errors import ConfigError, GrpoError, InputError, RewardError
from grpo_exp.options import option


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


class RewardSum:
    """The weighted sum of named parts, one of which is the outcome.

    Raises:
        ConfigError: from `check_roles`, when not exactly one part is the outcome.
    """

    def __init__(self, parts: dict[str, Reward]) -> None:
        check_roles(parts)
        self.parts = parts
        self.outcome_name = next(name for name, part in parts.items() if part.role == "outcome")

    @property
    def outcome_part(self) -> Reward:
        return self.parts[self.outcome_name]

    def __call__(self, completions: Completions) -> Rewards:
        """Score N samples.

        Raises:
            RewardError: a part raised, or returned a wrong number of values or one that is not a finite number or None.
        """
        columns = {name: _scores(name, part, completions) for name, part in self.parts.items()}  # [N] each
        total = torch.zeros(len(completions))
        for name, part in self.parts.items():
            total += part.weight * torch.nan_to_num(columns[name])  # a part that does not apply adds nothing
        outcome = torch.nan_to_num(columns[self.outcome_name])
        return Rewards(total=total, parts=columns, outcome=outcome)


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
    try:
        result = rewards(completions)
    except RewardError as error:
        raise InputError(f"{error} (tried on data item {example.id} before training)") from error
    seen = {**result.parts, "total": result.total}  # [probes] each
    return [(probe, {name: round(float(values[i]), 6) for name, values in seen.items()}) for i, probe in enumerate(probes)]


def _scores(name: str, part: Reward, completions: Completions) -> torch.Tensor:
    """The part's checked values, NaN for None: `[N]`."""
    try:
        values = part.score(completions)
    except GrpoError:
        raise  # it explains itself
    except (Exception, SystemExit) as error:  # SystemExit: sys.exit() in a reward must not end the run as if it were done
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise RewardError(
            f"reward part '{name}' raised {type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
        ) from error
    if not isinstance(values, (list, tuple)) or len(values) != len(completions):
        got = f"{len(values)} values" if isinstance(values, (list, tuple)) else type(values).__name__
        raise RewardError(
            f"reward part '{name}' returned {got} for {len(completions)} samples; return a list with one value each"
        )
    for row, value in enumerate(values):
        if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value)):
            raise RewardError(
                f"reward part '{name}' returned {value!r} for sample {row} ({completions.texts[row][:80]!r}); "
                "return a finite number, or None where the part does not apply"
            )
    return torch.tensor([math.nan if v is None else float(v) for v in values], dtype=torch.float32)
