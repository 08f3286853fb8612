"""The embedded task: problems that are right, worked correctly, and never in two of its pools."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from grpo_exp.batch import Example
from grpo_exp.data.arithmetic import LEVELS, Arithmetic
from grpo_exp.data.base import Dataset
from grpo_exp.errors import ConfigError


def source(**changes: Any) -> Arithmetic:
    values: dict[str, Any] = {
        "name": "arithmetic",
        "kind": "arithmetic",
        "max_prompt_tokens": None,
        "long_prompts": "error",
        "pass_rates": None,
        "keep_between": None,
        "pool": "train",
        "train": 200,
        "heldout": 120,
        "levels": ["easy", "medium", "hard"],
        "careful": 1.0,
        "careless_right": 1.0,
        "seed": 0,
    }
    return Arithmetic(**(values | changes))


def load(**changes: Any) -> Dataset:
    return source(**changes).load()


def problem(example: Example) -> tuple[int, str, int]:
    match = re.fullmatch(r"(\d+)([+-])(\d+)=\?", str(example.prompt))
    assert match
    return int(match[1]), match[2], int(match[3])


def key(example: Example) -> tuple[str, frozenset[int]]:
    """A problem whatever the order of its operands."""
    a, operation, b = problem(example)
    return operation, frozenset((a, b))


def value(a: int, operation: str, b: int) -> int:
    return a + b if operation == "+" else a - b


def test_no_problem_is_in_two_pools_whatever_the_seeds() -> None:
    pools: dict[str, set[Any]] = {"train": set(), "warm_start": set(), "heldout": set()}
    for seed in range(6):
        for pool in ("train", "warm_start"):
            data = load(pool=pool, seed=seed, train=400, heldout=200)
            pools[pool] |= {key(e) for e in data.train}
            pools["heldout"] |= {key(e) for e in data.heldout}
    assert all(len(pool) > 500 for pool in pools.values())
    assert not pools["train"] & pools["warm_start"]
    assert not pools["heldout"] & (pools["train"] | pools["warm_start"])


def test_both_orders_of_operands_occur_in_one_pool() -> None:
    """Otherwise the test above would pass for want of swapped problems."""
    data = load(pool="warm_start", train=3000, heldout=1, levels=["easy"])
    prompts = {str(e.prompt) for e in data.train}
    swapped = sum(f"{b}+{a}=?" in prompts for a, op, b in map(problem, data.train) if op == "+" and a != b)
    assert swapped > 100


def test_no_problem_twice_within_training_and_evaluation() -> None:
    data = load(train=500, heldout=300)
    for items in (data.train, data.heldout):
        assert len({key(e) for e in items}) == len(items)
        assert len({e.id for e in items}) == len(items)


def test_answers_are_right_and_never_negative() -> None:
    data = load(train=600, heldout=200)
    operations = Counter()
    for example in data.train + data.heldout:
        a, operation, b = problem(example)
        operations[operation] += 1
        assert example.answer == str(value(a, operation, b))
        assert value(a, operation, b) >= 0
    assert min(operations.values()) > 250


def test_levels_take_turns_and_have_their_digits() -> None:
    data = load(train=600)
    for i, example in enumerate(data.train):
        level = list(LEVELS)[i % 3]
        assert example.category == example.columns["level"] == level
        digits = sorted(len(str(x)) for x in problem(example)[::2])
        assert digits in {"easy": ([1, 1], [1, 2]), "medium": ([2, 2],), "hard": ([3, 3],)}[level]
    easy = Counter(tuple(sorted(len(str(x)) for x in problem(e)[::2])) for e in data.train if e.category == "easy")
    assert min(easy[1, 1], easy[1, 2]) > 20
    assert {e.category for e in load(levels=["hard"]).train} == {"hard"}


def worked(example: Example) -> str:
    """The answer that the columns of a careful target give, every step of it checked."""
    target = str(example.target)
    a, operation, b = problem(example)
    steps, answer = re.fullmatch(r"(.*) <answer>(\d+)</answer>", target).groups()  # type: ignore[union-attr]
    top, bottom, carry, digits = str(a)[::-1], str(b)[::-1], 0, []
    columns = steps.split(" ")
    assert len(columns) == max(len(top), len(bottom))
    for i, column in enumerate(columns):
        match = re.fullmatch(r"(\d+)([+-])(\d)(?:([+-])1)?=(\d+)", column)
        assert match, column
        x, sign, y, extra, result = int(match[1]), match[2], int(match[3]), match[4], int(match[5])
        assert sign == operation and extra == (operation if carry else None), column
        assert result == value(value(x, sign, y), sign, carry), column
        assert y == int(bottom[i] if i < len(bottom) else 0)
        own = int(top[i] if i < len(top) else 0)
        last = i == len(columns) - 1
        if operation == "+":
            assert x == own and 0 <= result <= 19
            carry = result // 10
            digits.append(str(result) if last else str(result % 10))
        else:
            assert x in (own, own + 10) and 0 <= result <= 9
            carry = (x - own) // 10
            digits.append(str(result))
            assert not (last and carry)
    assert answer == example.answer
    return "".join(reversed(digits)).lstrip("0") or "0"


def test_careful_targets_are_correct_column_by_column() -> None:
    data = load(train=900, heldout=100)
    carries = 0
    for example in data.train + data.heldout:
        assert worked(example) == example.answer
        carries += bool(re.search(r"[+-]1=", str(example.target)))
    assert 300 < carries < 900


def test_careless_targets_are_right_as_often_as_asked() -> None:
    data = load(pool="warm_start", train=3000, careful=0.3, careless_right=0.25)
    careless = [e for e in data.train if str(e.target).startswith("<answer>")]
    assert len(careless) / 3000 == pytest.approx(0.7, abs=0.03)
    said = [int(re.fullmatch(r"<answer>(\d+)</answer>", str(e.target))[1]) for e in careless]  # type: ignore[index]
    off = [abs(s - int(str(e.answer))) for s, e in zip(said, careless, strict=True)]
    assert off.count(0) / len(off) == pytest.approx(0.25, abs=0.03)
    assert max(off) <= 20  # slips of a digit or a carry
    assert all(value(*problem(e)) == int(str(e.answer)) for e in careless)  # the reference answer stays right


def test_the_same_items_at_every_call_and_others_with_another_seed() -> None:
    one, again, other = load(), load(), load(seed=1)
    assert one.train == again.train and one.heldout == again.heldout and one.sha256 == again.sha256
    assert other.sha256 != one.sha256
    assert len({key(e) for e in one.train} & {key(e) for e in other.train}) < 100
    assert load(train=50).train == one.train[:50]
    assert load(pool="warm_start").heldout == one.heldout  # evaluation asks the same whatever one trains on


def test_more_problems_than_there_are_is_an_error() -> None:
    """Easy sums and differences: 2 x (55 + 900) problems, of which a fifth is held out."""
    with pytest.raises(ConfigError, match=r"450 heldout problems.*'easy'"):
        load(train=1, heldout=450, levels=["easy"])
    assert len(load(train=1, heldout=300, levels=["easy"]).heldout) == 300


@pytest.mark.parametrize("levels", [[], ["easy", "trivial"]])
def test_levels_that_do_not_exist_are_refused(levels: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"data\.levels"):
        source(levels=levels)
