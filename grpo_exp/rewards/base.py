"""What a reward part is, and how parts add up to the reward of a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from grpo_exp.batch import Completions, Rewards
from grpo_exp.errors import RewardError
from grpo_exp.options import option


@dataclass
class Reward:
    """One part of a reward. A subclass adds its options as fields and implements `score`.

    The class is built from the part's YAML: `OmegaConf.to_object` calls it with every field as a keyword.
    """

    kind: str = option("which reward: the name of a file in grpo_exp/rewards")
    weight: float = option("factor of this part in the sum")
    role: str = option("outcome: says right or wrong, exactly one part has it; shaping: all others", choices=("outcome", "shaping"))

    def score(self, completions: Completions) -> list[float | None]:
        """One value for each sample, None where this part does not apply."""
        raise NotImplementedError

    def answer(self, text: str) -> str | None:
        """The answer found in a completion, in a normal form in which equal answers are equal strings; None if there is none.

        Majority voting (maj@k) counts these. A reward without a notion of answer keeps this default.
        """
        return None


class RewardSum:
    """The weighted sum of named parts, one of which is the outcome.

    Raises:
        ConfigError: from `check_roles`, when not exactly one part is the outcome.
    """

    def __init__(self, parts: dict[str, Reward]) -> None:
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


def _scores(name: str, part: Reward, completions: Completions) -> torch.Tensor:
    """The part's checked values, NaN for None: `[N]`."""
    try:
        values = part.score(completions)
    except Exception as error:
        raise RewardError(f"reward part '{name}' raised {type(error).__name__}: {error}") from error
    if not isinstance(values, (list, tuple)) or len(values) != len(completions):
        got = f"{len(values)} values" if isinstance(values, (list, tuple)) else type(values).__name__
        raise RewardError(f"reward part '{name}' returned {got} for {len(completions)} samples; return a list with one value each")
    for row, value in enumerate(values):
        if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value)):
            raise RewardError(
                f"reward part '{name}' returned {value!r} for sample {row} ({completions.texts[row][:80]!r}); "
                "return a finite number, or None where the part does not apply"
            )
    return torch.tensor([math.nan if v is None else float(v) for v in values], dtype=torch.float32)
