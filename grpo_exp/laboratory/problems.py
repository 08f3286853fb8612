"""Word problems made from a seed, each with right and wrong ways to write its answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from grpo_exp.laboratory import spellings
from grpo_exp.laboratory.spellings import Spelling


@dataclass(frozen=True)
class Problem:
    """A question, its reference answer, and spellings of right and of wrong answers."""

    prompt: str
    reference: str
    right: list[Spelling]
    wrong: list[Spelling]


def number(prompt: str, value: Fraction, reference: str | None = None) -> Problem:
    """A problem whose answer is a number other than 0, without a unit."""
    right, wrong = spellings.right_number(value), spellings.wrong_number(value)
    return Problem(prompt, reference or spellings.write(value), right, wrong)


def word_problems(seed: int) -> list[Problem]:
    """One problem of each kind: counts, amounts of money, fractions, percentages, quantities with units, sets, words."""
    rng = random.Random(f"word-problems-{seed}")
    return [make(rng) for make in _KINDS]


def _counted(rng: random.Random) -> Problem:
    boxes, eggs = rng.randrange(11, 40), rng.randrange(6, 13)
    plain = number(f"A farm packs {boxes} boxes of {eggs} eggs each. How many eggs are packed?", Fraction(boxes * eggs))
    return _with(plain, spellings.right_unit(plain.reference, "eggs", "eggs in all"))


def _thousands(rng: random.Random) -> Problem:
    sold, more = rng.randrange(12_345, 60_000), rng.randrange(1_111, 9_999)
    prompt = f"A shop sold {sold} pens in May and {more} more than that in June. How many did it sell in June?"
    return number(prompt, Fraction(sold + more))


def _many(rng: random.Random) -> Problem:
    value = rng.randrange(12_345_678, 98_765_432)
    return number(f"One half of a country's people are {value // 2}. How many people are there?", Fraction(value // 2 * 2))


def _millions(rng: random.Random) -> Problem:
    tenths = rng.randrange(13, 98)
    prompt = f"A town spends {tenths} times 100000 dollars a year. How many dollars is that?"
    return number(prompt, Fraction(tenths * 100_000))


def _below_zero(rng: random.Random) -> Problem:
    at_noon, fall = rng.randrange(2, 9), rng.randrange(12, 25)
    prompt = f"It was {at_noon} degrees Celsius at noon and {fall} degrees colder at night. What was the temperature at night?"
    plain = number(prompt, Fraction(at_noon - fall))
    return _with(plain, spellings.right_unit(plain.reference, "°C", "degrees Celsius"))


def _average(rng: random.Random) -> Problem:
    a = rng.randrange(10, 60)
    b = a + 2 * rng.randrange(1, 20) + 1
    return number(f"What is the mean of {a} and {b}?", Fraction(a + b, 2))


def _eighths(rng: random.Random) -> Problem:
    top = rng.choice((1, 3, 5, 7))
    return number(
        f"A cake is cut into 8 pieces and {8 - top} are eaten. What part of it is left?", Fraction(top, 8), f"{top}/8"
    )


def _quarters(rng: random.Random) -> Problem:
    days = rng.choice((3, 5, 7, 9))
    return number(f"A job takes a quarter of an hour. How many hours do {days} such jobs take?", Fraction(days, 4))


def _thirds(rng: random.Random) -> Problem:
    bottom = rng.choice((3, 6, 7, 9))
    return number(
        f"A bag has 1 red ball and {bottom - 1} blue ones. How likely is it to draw the red one?", Fraction(1, bottom)
    )


def _money(rng: random.Random) -> Problem:
    price = f"{rng.randrange(1_001, 9_876)}.{rng.randrange(11, 99)}"
    plain = number(f"A boat costs {price} dollars. How much is that in dollars and cents?", Fraction(price), f"${price}")
    return _with(plain, spellings.right_money(price), spellings.wrong_money(price))


def _percentage(rng: random.Random) -> Problem:
    share = rng.choice((15, 24, 35, 45, 64, 85))
    prompt = f"Of 100 seats {share} are taken. What percentage is that?"
    right, wrong = spellings.right_percent(str(share)), spellings.wrong_percent(str(share))
    return Problem(prompt, f"{share}%", right, wrong + spellings.wrong_number(Fraction(share)))


def _distance(rng: random.Random) -> Problem:
    laps, length = rng.randrange(3, 9), rng.randrange(2, 9)
    plain = number(f"{laps} laps of {length} km each are how far?", Fraction(laps * length), f"{laps * length} km")
    others = [Spelling("another unit", f"{laps * length} {unit}") for unit in ("m", "miles", "meters", "hours", "kg")]
    return _with(plain, spellings.right_unit(str(laps * length), "km", "kilometers"), others)


def _two_solutions(rng: random.Random) -> Problem:
    a = rng.randrange(2, 9)
    b = a + rng.randrange(2, 9)
    prompt = f"For which x is (x - {a})(x - {b}) = 0?"
    return Problem(prompt, f"x={a} or x={b}", spellings.right_set([a, b]), spellings.wrong_set([a, b]))


def _weekday(rng: random.Random) -> Problem:
    days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    at = rng.randrange(7)
    right, wrong = spellings.right_word(days[(at + 1) % 7]), spellings.wrong_word(days[(at + 1) % 7], days[at])
    return Problem(f"Today is {days[at]}. Which day is tomorrow?", days[(at + 1) % 7], right, wrong)


_KINDS: tuple[Callable[[random.Random], Problem], ...] = (
    *(_counted, _thousands, _many, _millions, _below_zero, _average, _eighths, _quarters, _thirds, _money),
    *(_percentage, _distance, _two_solutions, _weekday),
)


def _with(problem: Problem, right: list[Spelling], wrong: list[Spelling] | None = None) -> Problem:
    return Problem(problem.prompt, problem.reference, problem.right + right, problem.wrong + (wrong or []))
