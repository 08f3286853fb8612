"""The outcomes of an evaluation by item."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grpo_exp.report import lines


@dataclass(frozen=True)
class Items:
    """What an evaluation found item by item, so that runs compare in pairs.

    Attributes:
        step: of the evaluation.
        ids, categories: of the items, `(items)`.
        fingerprint: of what was asked: ids, prompts and reference answers.
        right: share of right samples of each item, `[items]`; `reward` and `length`, mean over its samples.
        samples: samples of each item.
    """

    step: int
    ids: tuple[str, ...]
    categories: tuple[str, ...]
    fingerprint: str
    right: np.ndarray
    reward: np.ndarray
    length: np.ndarray
    samples: int

    def values(self, metric: str) -> np.ndarray | None:
        """A metric of the contract by item, `[items]`; None for those that the rows do not tell."""
        if metric.startswith("eval/pass@1/"):
            return self.right[[category == metric.removeprefix("eval/pass@1/") for category in self.categories]]
        known = {"eval/pass@1": self.right, "eval/reward": self.reward, "eval/length": self.length}
        return (self.right > 0).astype(np.float64) if metric == "eval/pass@k" else known.get(metric)


def read_items(path: Path, step: int | None) -> Items | None:
    """The items of eval.jsonl, of its last evaluation or that of `step`; None where there is none."""
    rows = lines.last_step(path, step)
    first: dict[str, lines.Row] = {}  # of each item
    for row in rows:
        first.setdefault(str(row.get("id")), row)
    if not first:
        return None
    place = {name: i for i, name in enumerate(first)}
    of = np.array([place[str(row.get("id"))] for row in rows])  # [rows], the item of each
    count = np.bincount(of)  # [items]

    def mean(values: np.ndarray) -> np.ndarray:
        return np.asarray(np.bincount(of, values) / count)

    at = rows[0].get("step")
    asked = [[name, row.get("prompt"), row.get("reference")] for name, row in first.items()]
    return Items(
        step=at if isinstance(at, int) else 0,
        ids=tuple(map(sys.intern, first)),
        categories=tuple(sys.intern(str(row.get("category"))) for row in first.values()),
        fingerprint=hashlib.sha256(json.dumps(asked).encode()).hexdigest(),
        right=mean((lines.column(rows, "outcome") > 0.5).astype(np.float64)),  # as metrics.RIGHT_ABOVE, which needs torch
        reward=mean(lines.column(rows, "total")),
        length=mean(lines.column(rows, "length")),
        samples=int(count.max()),
    )
