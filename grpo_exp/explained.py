"""What the reward reads in a sample, said of a row of samples.jsonl."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from grpo_exp.batch import Example

if TYPE_CHECKING:
    from grpo_exp.rewards.base import RewardSum


def explainer(reward: RewardSum) -> Callable[[dict[str, Any]], str] | None:
    """A function that says what the outcome part found in a sample and why that is worth what it gives, in a line; None where
    the part asks a model or an endpoint, since looking costs nothing."""
    if reward.outcome_part.costly:
        return None

    def explain(row: dict[str, Any]) -> str:
        reference = row.get("reference")
        example = Example(str(row.get("id", "")), row.get("prompt", ""), None if reference is None else str(reference))
        try:
            with reward.unmoved():
                return reward.outcome_part.explain(str(row.get("completion", "")), example)
        except Exception as error:  # it may need columns of the data that the row has not; the finding stands without
            return f"not explained: {type(error).__name__}"

    return explain
