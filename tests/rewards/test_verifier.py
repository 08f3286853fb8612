"""What verifiers share: the steps, the line for people, the check of the data, and hostile completions for each of them."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from parts import HOSTILE, NEAR, PARTS, STEPS, completions, item, part, value

from grpo_exp.batch import Example
from grpo_exp.errors import ConfigError, DataError, RewardError
from grpo_exp.options import load_class, option
from grpo_exp.rewards.base import Reward, RewardSum
from grpo_exp.scoring import Failures
from grpo_exp.verifier import Verdict, Verifier

KINDS = sorted(path.stem for path in PARTS.glob("*.yaml"))
VERIFIERS = [kind for kind in KINDS if issubclass(load_class("grpo_exp.rewards", kind, Reward, "kind"), Verifier)]


@dataclass
class Word(Verifier):
    """Grades by the completion itself; `slow` cannot be found out."""

    near: float = option("value of one that is nearly right")

    def verdict(self, text: str, example: Example, finished: bool) -> Verdict:
        if text == "slow":
            raise RewardError("took too long")
        return Verdict(None if text == "none" else text, "it says so", text)


def word(**changes: float) -> Word:
    return Word(kind="word", weight=1.0, role="outcome", **{**NEAR, **changes})


def test_each_step_has_the_configured_value() -> None:
    scored = list(word().score(completions(["right", "near", "wrong", "missing", "none"])))
    assert scored == [1.0, 0.3, 0.0, -1.0, None]


@pytest.mark.parametrize("text", ["right", "near", "wrong", "missing"])
def test_the_line_for_people_states_the_value_that_score_gives(text: str) -> None:
    reward = word()
    assert reward.explain(text, item()) == f"{text}, {value(reward, text, item()):g}: it says so; read '{text}'"


def test_the_line_for_people_where_there_is_no_value() -> None:
    assert word().explain("none", item()) == "does not apply: it says so"
    assert word().explain("slow", item()) == "failed: took too long"


@pytest.mark.parametrize("step", ["near", "wrong", "missing"])
def test_right_is_worth_most(step: str) -> None:
    with pytest.raises(ConfigError, match=rf"reward\.parts\.word\.right=1 must be greater than.*{step}=1"):
        word(**{step: 1.0})


def test_a_sample_that_cannot_be_judged_fails_alone() -> None:
    rewards = RewardSum({"word": word()}, Failures("zero", 0.5))
    result = rewards(completions(["right", "slow", "wrong"]))
    torch.testing.assert_close(result.total, torch.tensor([1.0, 0.0, 0.0]))
    assert result.failed is not None
    assert result.failed.tolist() == [False, True, False]
    with pytest.raises(RewardError, match=r"took too long, for sample 1 of item 7 \('slow'\)"):
        RewardSum({"word": word()})(completions(["right", "slow", "wrong"]))


def test_a_shaping_part_sees_what_the_outcome_part_gave() -> None:
    @dataclass
    class Echo(Reward):
        after_outcome: ClassVar[bool] = True

        def score(self, completions: Any) -> Any:
            return [None if one is None else 10 * one for one in completions.outcome]

    echo = Echo(kind="echo", weight=1.0, role="shaping")
    result = RewardSum({"echo": echo, "word": word()})(completions(["right", "near", "none"]))
    assert list(result.parts) == ["echo", "word"]
    torch.testing.assert_close(result.total, torch.tensor([11.0, 3.3, 0.0]))


# ---- each verifier


@pytest.fixture
def made(tmp_path: Path) -> dict[str, tuple[Any, Example]]:
    """Each verifier with an item that it applies to."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("create table t (a int)")
        connection.commit()
    (tmp_path / "schema.json").write_text(
        json.dumps({"type": "object", "required": ["a"], "additionalProperties": {"type": "string"}})
    )
    return {
        "math": (part("math", **STEPS), item("18")),
        "regex": (part("regex", pattern="[0-9]{2}", **STEPS), item()),
        "contains": (part("contains", **NEAR), item("Paris")),
        "choice": (part("choice", options="options", **STEPS), item("B", options=["London", "Paris"])),
        "json": (part("json", schema=str(tmp_path / "schema.json"), **NEAR), item()),
        "tool_call": (part("tool_call", **NEAR), item('{"name": "f", "arguments": {"x": 1}}')),
        "sql": (part("sql", database=str(tmp_path / "shop.db"), database_field=None, **NEAR), item("select a from t")),
    }


def test_every_verifier_is_tested_here(made: dict[str, Any]) -> None:
    assert sorted(made) == VERIFIERS


@pytest.mark.parametrize("kind", VERIFIERS)
def test_hostile_completions_are_worth_nothing_and_hold_nothing_up(kind: str, made: dict[str, tuple[Any, Example]]) -> None:
    reward, example = made[kind]
    for text in HOSTILE:
        began = time.perf_counter()
        got = value(reward, text, example)
        assert got in (0.0, 0.3, -1.0), f"{text[:40]!r} got {got}"
        line = reward.explain(text, example)
        assert time.perf_counter() - began < 20, f"{text[:40]!r}"
        assert len(line) < 1000 and "\n" not in line and line.encode()
    assert value(reward, "", example) == -1.0


@pytest.mark.parametrize("kind", [kind for kind in VERIFIERS if kind not in ("math", "regex", "json")])
def test_data_without_what_it_needs_is_refused(kind: str, made: dict[str, tuple[Any, Example]]) -> None:
    reward, example = made[kind]
    with pytest.raises(DataError, match=rf"reward\.parts\.{kind}\.\w+=.*no item has"):
        reward.check_data([item(), item()])
    reward.check_data([item(), example])  # a mixture: it does not apply to the others
    assert value(reward, "<answer>1</answer>", item()) is None


def test_a_field_that_the_data_lacks_is_named_with_those_that_it_has() -> None:
    reward = part("tool_call", field="cals")
    with pytest.raises(DataError, match=r"reward\.parts\.tool_call\.field='cals'.*Did you mean 'calls'\? There are: calls, n"):
        reward.check_data([item(calls=[], n=1)])
