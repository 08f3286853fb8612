"""Held-out evaluation with samples that are known beforehand, so that every number can be worked out by hand."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import pytest
import torch

from grpo_exp.batch import Completions, Example, Prompts, Rollout
from grpo_exp.evaluate import EvalOptions, Evaluation, Evaluator
from grpo_exp.memory import Rows
from grpo_exp.rewards.base import Reward, RewardSum
from grpo_exp.rollout.base import Sampling


class Names:
    """A policy, as far as evaluation sees it."""

    def prompts(self, examples: list[Example]) -> Prompts:
        tokens = torch.zeros(len(examples), 2, dtype=torch.long)
        return Prompts(tokens, torch.ones_like(tokens, dtype=torch.bool), [str(e.prompt) for e in examples], examples)

    def whole(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Script:
    """An engine that says what it is told to, by the id of the item; a text ending in ~ was cut off."""

    def __init__(self, said: dict[str, list[str]]) -> None:
        self.said = said
        self.calls: list[tuple[Sampling, int]] = []

    def sample(self, policy: Any, prompts: Prompts, sampling: Sampling, rows: int) -> Rollout:
        self.calls.append((sampling, rows))
        texts = [text for e in prompts.examples for text in self.said[e.id]]
        assert len(texts) == len(prompts) * sampling.samples
        lengths = torch.tensor([max(1, len(text)) for text in texts])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        return Rollout(
            prompts,
            torch.arange(len(prompts)).repeat_interleave(sampling.samples),
            torch.zeros_like(mask, dtype=torch.long),
            mask,
            torch.zeros(mask.shape),
            torch.tensor([not text.endswith("~") for text in texts]),
            texts,
        )


@dataclass
class Equal(Reward):
    """Right where the text is the answer; an empty text has no answer."""

    def score(self, completions: Completions) -> list[float | None]:
        return [float(text == e.answer) for text, e in zip(completions.texts, completions.examples, strict=True)]

    def answer(self, text: str) -> str | None:
        return text or None


@dataclass
class Shout(Reward):
    """A shaping part, which knows no answers."""

    def score(self, completions: Completions) -> list[float | None]:
        return [float(text.isupper()) for text in completions.texts]


def rewards() -> RewardSum:
    return RewardSum({"equal": Equal("equal", 1.0, "outcome"), "format": Shout("shout", 0.5, "shaping")})


def options(**changes: Any) -> EvalOptions:
    return EvalOptions(
        **(
            {"every": 1, "start": True, "samples": 4, "temperature": 0.7, "max_items": 0, "max_new_tokens": 9, "seed": 3}
            | changes
        )
    )


ITEMS = [Example("a", "ask a", "A", "x"), Example("b", "ask b", "b", "y"), Example("c", "ask c", "C", "x")]
SAID = {"a": ["A", "A", "q", "B~"], "b": ["q", "q", "b", "b"], "c": ["", "", "", "xx"]}


def evaluation(said: dict[str, list[str]] = SAID, **changes: Any) -> Evaluation:
    return Evaluator(Names(), Script(said), rewards(), ITEMS, options(**changes), Rows(100))(7)  # type: ignore[arg-type]


def test_metrics_by_hand() -> None:
    found = evaluation()
    values = {name: column.tolist() for name, column in found.items.items()}
    assert values["eval/pass@1"] == [0.5, 0.5, 0]
    assert values["eval/pass@k"] == [1, 1, 0]
    assert values["eval/maj@k"] == [1, 0, 0]  # b is a tie that the answer given first wins; c has one vote, a wrong one
    assert values["eval/length"] == [(1 + 1 + 1 + 2) / 4, 1, (1 + 1 + 1 + 2) / 4]
    assert values["eval/truncated_frac"] == [0.25, 0, 0]
    assert values["eval/format"] == [0.75, 0, 0]
    assert values["eval/reward"] == [0.5 + 0.5 * 0.75, 0.5, 0]
    assert values["eval/pass@1/x"][::2] == [0.5, 0] and math.isnan(values["eval/pass@1/x"][1])
    assert found.metrics == pytest.approx(
        {
            "eval/pass@1": 1 / 3,
            "eval/pass@k": 2 / 3,
            "eval/maj@k": 1 / 3,
            "eval/length": 3.5 / 3,
            "eval/truncated_frac": 1 / 12,
            "eval/reward": 1.375 / 3,
            "eval/format": 0.25,
            "eval/pass@1/x": 0.25,
            "eval/pass@1/y": 0.5,
        }
    )
    assert found.tokens == 14


def test_rows_for_eval_jsonl() -> None:
    rows = evaluation().rows
    assert len(rows) == 12
    assert rows[3] == {
        "step": 7,
        "category": "x",
        "item": blake2b(b'"ask a"["A", null, null, null]', digest_size=8).hexdigest(),  # prompt; answer, target and pair
        "id": "a",
        "prompt": "ask a",
        "completion": "B~",
        "reference": "A",
        "reward/part/equal": 0.0,
        "reward/part/format": 1.0,
        "total": 0.5,
        "outcome": 0.0,
        "length": 2,
        "finished": False,
        "answer": "B~",
    }
    assert [row["id"] for row in rows] == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    assert rows[8]["answer"] is None


def test_one_sample_has_no_pass_at_k() -> None:
    found = evaluation({name: texts[:1] for name, texts in SAID.items()}, samples=1)
    assert found.metrics["eval/pass@1"] == pytest.approx(1 / 3)
    assert not {"eval/pass@k", "eval/maj@k"} & set(found.items)


def test_majority_is_there_from_the_start_and_only_where_the_reward_knows_answers() -> None:
    """A model that gives no answer at all is wrong by majority; a metric that came and went could not be an objective."""
    silent = evaluation({name: [""] * 4 for name in SAID})
    assert silent.metrics["eval/maj@k"] == 0
    unknowing = RewardSum({"shout": Shout("shout", 1.0, "outcome")})
    found = Evaluator(Names(), Script(SAID), unknowing, ITEMS, options(), Rows(100))(1)  # type: ignore[arg-type]
    assert "eval/maj@k" not in found.items and "eval/pass@k" in found.items


def test_a_reward_is_told_the_step_of_the_evaluation() -> None:
    seen: list[int] = []

    class Late(Shout):
        def score(self, completions: Completions) -> list[float | None]:
            seen.append(completions.steps)
            return super().score(completions)

    Evaluator(Names(), Script(SAID), RewardSum({"late": Late("late", 1.0, "outcome")}), ITEMS, options(), Rows(100))(7)  # type: ignore[arg-type]
    assert seen == [7]


def test_behind_a_closed_gate_nothing_is_right_and_no_answer_has_a_vote() -> None:
    """The gate stops texts in small letters: of item b both right answers, so that a wrong one wins the vote."""
    gated = RewardSum({"equal": Equal("equal", 1.0, "outcome"), "loud": Shout("shout", 0.0, "gate")})
    said = {"a": ["a", "a", "A", "B"], "b": ["B", "B", "b", "b"], "c": ["c", "C", "C", "xx"]}
    found = Evaluator(Names(), Script(said), gated, ITEMS, options(), Rows(100))(1)  # type: ignore[arg-type]
    assert found.items["eval/pass@1"].tolist() == [0.25, 0, 0.5]
    assert found.items["eval/maj@k"].tolist() == [1, 0, 1]
    assert [row["answer"] for row in found.rows[:4]] == ["a", "a", "A", "B"]


def test_one_category_has_no_columns_of_its_own() -> None:
    same = [Example(e.id, e.prompt, e.answer, "only") for e in ITEMS]
    found = Evaluator(Names(), Script(SAID), rewards(), same, options(), Rows(100))(1)  # type: ignore[arg-type]
    assert not [name for name in found.items if name.startswith("eval/pass@1/")]


def test_intervals_are_over_items_and_leave_out_what_does_not_apply() -> None:
    intervals = evaluation().intervals()
    value, low, high = intervals["eval/pass@1"]
    assert value == pytest.approx(1 / 3) and 0 <= low < value < high <= 0.5
    assert intervals["eval/pass@1/y"].value == 0.5
    assert all(not math.isnan(x) for interval in intervals.values() for x in interval)


def test_difference_is_paired_by_item() -> None:
    before = evaluation()
    after = evaluation(SAID | {"c": ["C", "C", "C", ""]})
    difference = after.minus(before)
    assert difference["eval/pass@1"].value == pytest.approx(0.25)
    assert difference["eval/pass@1/y"] == (0, 0, 0)
    assert difference["eval/pass@1/x"].value == pytest.approx(0.375)
    assert before.minus(before)["eval/reward"] == (0, 0, 0)


def test_every_evaluation_asks_in_the_same_way() -> None:
    engine = Script(SAID)
    evaluator = Evaluator(Names(), engine, rewards(), ITEMS, options(), Rows(100))  # type: ignore[arg-type]
    evaluator(0)
    evaluator(50)
    (first, rows), (second, _) = engine.calls
    assert first == second and rows == 100
    assert (first.temperature, first.max_new_tokens, first.samples, first.key[0]) == (0.7, 9, 4, 3)
    # and with other numbers than training: its key is (seed, stream 0, step)
    assert first.key[1] != 0


@pytest.mark.parametrize("count", [1, 6, 40, 60, 119, 120, 500])
def test_fewer_items_are_a_fair_share_of_every_category(count: int) -> None:
    """Data often go through the categories in turn; every third item of such a list is all of one kind."""
    items = [Example(f"e{i}", "p", "A", ("easy", "medium", "hard")[i % 3]) for i in range(120)]
    evaluator = Evaluator(Names(), Script({}), rewards(), items, options(max_items=count), Rows(100))  # type: ignore[arg-type]
    chosen = [e.id for e in evaluator.examples]
    assert len(set(chosen)) == len(chosen) == min(count, 120)
    by_category = [sum(e.category == c for e in evaluator.examples) for c in ("easy", "medium", "hard")]
    assert max(by_category) - min(by_category) <= 1
    again = Evaluator(Names(), Script({}), rewards(), items, options(max_items=count), Rows(100))  # type: ignore[arg-type]
    assert [e.id for e in again.examples] == chosen
