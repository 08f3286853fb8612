"""Options of how the parts of a reward count together: gates, and each part normalised within its group."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_exp.options import option


@dataclass
class Gate:
    """When a part with role=gate is closed for a sample, and what that does.

    Behind a closed gate the outcome counts `closed`, and every other part, gates included, 0: the total is `closed` times the
    outcome's weight. So such a sample is never right, and a group of samples that are wrong or behind a gate has no contrast
    in its outcomes where `closed` is what a wrong one is worth: filtering, which looks at outcomes, sees what the reward says.
    An open gate counts as any other part, its weight times its value. A gate that does not apply is open; one that failed,
    where `on_error=zero` lets that pass, is closed, since it vouches for nothing.
    """

    above: float = option("a part with role=gate is open for a sample where its value is greater than this")
    closed: float = option("what the outcome counts behind a closed gate, where every other part counts 0", high=0.5)


@dataclass
class Normalization:
    """GDPO (arXiv 2601.05242): each part is normalised within its group, then weighted and added up.

    So groups that gained one of two parts and groups that gained both, which a normalised sum takes for the same, stay apart.
    The paper's last step, normalising over the batch, is the algorithm's `std=batch`. A part whose values are all equal in a
    group adds exactly 0 there. Left out: options for single parts.
    """

    scale: str = option(
        "group: credit is given for parts that are each normalised within their group; none: for their sum as it is",
        choices=("none", "group"),
    )
    ddof: int = option("degrees of freedom taken off in that standard deviation", low=0, high=1)
    eps: float = option("added to that standard deviation", low=0)

    @property
    def on(self) -> bool:
        return self.scale == "group"

    def formula(self) -> str:
        """What becomes of the parts, in words; empty where they are added up as they are."""
        if not self.on:
            return ""
        return f"R = sum over parts of weight (part - mean_group part) / (std_group[ddof {self.ddof}] part + {self.eps:g})"
