"""The labelled responses themselves: many, the same at every call, and labelled as a careful reader would."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest

from grpo_exp.answers import quantities, words
from grpo_exp.batch import Example
from grpo_exp.laboratory import spellings
from grpo_exp.laboratory.problems import number, word_problems
from grpo_exp.laboratory.responses import spelled
from grpo_exp.laboratory.writing import SLOT, Writing
from grpo_exp.rewards.custom import CustomReward

SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_labels_are_those_of_exact_arithmetic(seed: int) -> None:
    """What is right has the reference's value and what is wrong has not, for the answers as they stand in a tag."""
    wrong = []
    for problem in word_problems(seed):
        for right, several in ((True, problem.right), (False, problem.wrong)):
            wrong += [(problem.reference, s, right) for s in several if quantities.equal(s.text, problem.reference) != right]
    assert not wrong


@pytest.mark.parametrize("value", ["7", "45", "-12", "1998", "2.5", "-0.75", "1/3", "1234567", "4500000", "10", "100", "1"])
def test_numbers_of_all_kinds(value: str) -> None:
    problem = number("", Fraction(value))
    assert [s for s in problem.right if not quantities.equal(s.text, problem.reference)] == []
    assert [s for s in problem.wrong if quantities.equal(s.text, problem.reference)] == []


def test_there_are_hundreds_and_no_text_has_two_labels() -> None:
    for problem in word_problems(0):
        right, wrong = ({" ".join(s.text.split()) for s in several} for several in (problem.right, problem.wrong))
        assert not right & wrong
    made = [s for problem in word_problems(0) for s in (*problem.right, *problem.wrong)]
    assert len(made) > 800 and len({s.how for s in made}) > 40
    assert Counter(spelling.how for spelling in made)["thousands"] > 20


def test_the_same_seed_makes_the_same_responses() -> None:
    items = [Example(f"i{n}", f"{n}+1=?", str(n + 1)) for n in range(30)]
    writing = Writing(object.__new__(CustomReward), [f"<answer>{SLOT}</answer>", SLOT])
    made = [spelled(items, writing, True, seed) for seed in (0, 0, 1)]
    assert made[0] == made[1] != made[2]
    assert len({(r.example.id, r.text) for r in made[0]}) == len(made[0])


def test_numbers_are_written_as_they_are_read() -> None:
    rng = random.Random(0)
    for n in [*range(1200), *(rng.randrange(10**9) for _ in range(200))]:
        assert words.read(words.write(str(n))) == (n, "")
    assert words.write("1234567") == "one million two hundred and thirty-four thousand five hundred and sixty-seven"
    assert words.write("30.05") == "thirty point zero five"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eighteen eggs", (18, " eggs")),
        ("Twenty one", (21, "")),
        ("minus seven", (-7, "")),
        ("a hundred and five", (105, "")),
        ("two and a half hours", (Fraction(5, 2), " hours")),
        ("three quarters", (Fraction(3, 4), "")),
        ("half of 18", (Fraction(1, 2), " of 18")),
        ("two and three", (2, " and three")),
        ("seven or eight", (7, " or eight")),
        ("eighteen hundred", (18, " hundred")),
        ("three point one four", (Fraction("3.14"), "")),
        ("five million", (5_000_000, "")),
        ("thousand", None),
        ("third", None),
        ("and", None),
        ("a", None),
        ("twentyish", None),
        ("no", None),
        ("18", None),
        ("", None),
    ],
)
def test_words(text: str, expected: tuple[Fraction, str] | None) -> None:
    assert words.read(text) == expected


def test_decimals_with_and_without_an_end() -> None:
    values = {"1/8": "0.125", "1/3": None, "-5/2": "-2.5", "1200": "1200", "0": "0", "1/1000": "0.001"}
    assert {text: spellings.decimal(Fraction(text)) for text in values} == values
