"""The math reward on a hand-made table of completions, on real data, and on completions made to break it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from grpo_exp.answers.forms import FORMS
from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError
from grpo_exp.rewards.math import MathReward

DEFAULT = ["tag", "boxed", "hash", "answer_is", "equation", "whole"]
DATA = Path(__file__).parents[2].parent / "shared" / "data"
R, W, M = 1.0, -1.0, -2.0  # right, wrong, missing

CASES = [
    # forms
    ("<answer>18</answer>", "18", R),
    ("so <answer>\n18\n</answer> indeed", "18", R),
    ("<answer>17</answer>", "18", W),
    ("Thus \\boxed{18}.", "18", R),
    ("$\\boxed{\\frac{3}{4}}$", "3/4", R),
    ("\\boxed{x = \\boxed{5}}", "5", R),
    ("\\fbox{5}", "5", R),
    ("9 * 2 = $18\n#### 18", "18", R),
    ("#### 18", "19", W),
    ("The answer is 18.", "18", R),
    ("The answer is: 18", "18", R),
    ("**Final answer:** 18", "18", R),
    ("**Answer:**\n18", "18", R),
    ("Answer = 18", "18", R),
    ("The answer is **18**.", "18", R),
    ("The final answer is $18$.", "18", R),
    ("The answer is 18 because 9 + 9 is 18.", "18", R),
    ("The answer is 3.5.", "3.5", R),
    ("The answer is 18!", "18", R),
    ("the answers are 2 and 3.", "3, 2", R),
    ("114 / 57 = 2", "2.0", R),
    ("First 3 + 4 = 7.\nThen 7 * 2 = 14", "14", R),
    ("First 3 + 4 = 7.\nThen 7 * 2 = 14", "7", W),
    ("x = 5", "5", R),
    ("x=2 or x=3", "2, 3", R),
    ("18", "18", R),
    (" $18.00 ", "18", R),
    ("18 eggs", "18", R),
    # which one counts
    ("<answer>1</answer> no, <answer>2</answer>", "2", R),
    ("<answer>1</answer> no, <answer>2</answer>", "1", W),
    ("\\boxed{1} \\boxed{2}", "1", W),
    ("The answer is 1. No, the answer is 2.", "1", W),
    ("<answer>1</answer>\nThe answer is 2.", "1", R),
    ("<answer>5</answer> and <answer>6", "5", R),
    ("<answer>5</answer></answer>", "5", R),
    ("#### 18\n#### Explanation\nIt is 19.", "18", M),
    ("#### 18\nthat is all", "18", R),
    # no answer
    ("", "18", M),
    ("There are 18 eggs and then 18 more of them.", "18", M),
    ("<answer>18", "18", M),
    ("<answer>9 + 9 = 18", "18", M),
    ("\\boxed{18", "18", M),
    ("\\boxed{\\frac{1}{2}", "1/2", M),
    ("<answer></answer>", "18", M),
    ("18 = x + 3 is what we know", "18", M),
    ("so x >= 18", "18", M),
    # copies and hedges
    ("<answer>17 18</answer>", "18", W),
    ("<answer>17, 18</answer>", "18", W),
    ("<answer>17 or 18</answer>", "18", W),
    ("<answer>17\n18</answer>", "18", W),
    ("<answer>18 (or 17)</answer>", "18", W),
    ("<answer>18 and 17</answer>", "18", W),
    ("<answer>17 = 18</answer>", "18", W),
    ("<answer>18; 17; 16</answer>", "18", W),
    ("The answer is 17 or 18.", "18", W),
    ("The answer is not 18.", "18", W),
    ("<answer>9+9</answer>", "18", W),
    ("<answer>114/57</answer>", "2", W),
    ("<answer>9 + 9 = 18</answer>", "18", R),
    ("<answer>2x+8=18</answer>", "18", W),
    ("<answer>118</answer>", "18", W),
    ("<answer>18.5</answer>", "18", W),
    ("<answer>18 and a half</answer>", "18", W),
    ("<answer>the number is 18 or something like 20</answer>", "18", W),
    ("<answer>18" + " 18" * 200 + "</answer>", "18", W),
    # numbers
    ("<answer>-7</answer>", "-7", R),
    ("<answer>−7</answer>", "-7", R),
    ("<answer>- 7</answer>", "-7", R),
    ("<answer>7</answer>", "-7", W),
    ("<answer>+7</answer>", "7", R),
    ("<answer>51</answer>", "51.0", R),
    ("<answer>51.0</answer>", "51", R),
    ("<answer>007</answer>", "7", R),
    ("<answer>.5</answer>", "1/2", R),
    ("<answer>0.3333333333</answer>", "1/3", W),
    ("<answer>0.1</answer>", "0.10000000000000001", W),
    ("<answer>3/4</answer>", "0.75", R),
    ("<answer>6/8</answer>", "3/4", R),
    ("<answer>2</answer>", "4/2", R),
    ("<answer>5/0</answer>", "5", W),
    ("\\boxed{\\dfrac{-3}{4}}", "-0.75", R),
    ("\\boxed{-\\frac34}", "-0.75", R),
    ("\\boxed{1\\frac{1}{2}}", "1.5", R),
    ("<answer>1 1/2</answer>", "3/2", R),
    ("<answer>2½</answer>", "5/2", R),
    ("<answer>1,234</answer>", "1234", R),
    ("<answer>1 234 567</answer>", "1234567", R),
    ("<answer>1.234.567</answer>", "1234567", R),
    ("<answer>1.234</answer>", "1234", W),
    ("<answer>1,23</answer>", "123", W),
    ("\\boxed{1{,}234}", "1,234", R),
    ("\\boxed{1,\\!234.5}", "1234.5", R),
    ("\\boxed{12\\,345}", "12345", R),
    ("<answer>1.5e3</answer>", "1500", R),
    ("\\boxed{1.5 \\times 10^{3}}", "1500", R),
    ("<answer>5 million</answer>", "5000000", R),
    ("<answer>１８</answer>", "18", R),
    ("<answer>1'234.50</answer>", "1234.5", R),
    ("<answer>1.5×10³</answer>", "1500", R),
    ("<answer>1.5 x 10^3</answer>", "1500", R),
    ("\\boxed{1.5 \\cdot 10^{3}}", "1500", R),
    ("<answer>18²</answer>", "18", W),
    ("<answer>⅝</answer>", "5/8", R),
    # decimal commas, where the reference is one number
    ("<answer>3,5</answer>", "3.5", R),
    ("<answer>-3,5 km</answer>", "-3.5", R),
    ("<answer>1.234,50 €</answer>", "1234.5", R),
    ("<answer>1 234,5</answer>", "1234.5", R),
    ("<answer>0,125</answer>", "1/8", R),
    ("<answer>3,5</answer>", "3, 5", R),
    ("<answer>3,5</answer>", "5", W),
    ("<answer>3,5</answer>", "35", W),
    ("<answer>1,234</answer>", "1.234", W),
    ("<answer>3,5 or 7</answer>", "3.5", W),
    ("<answer>3,5,7</answer>", "3.5", W),
    # numbers in words
    ("<answer>eighteen</answer>", "18", R),
    ("<answer>18</answer>", "eighteen", R),
    ("The answer is twenty-one eggs.", "21", R),
    ("<answer>minus seven</answer>", "-7", R),
    ("<answer>negative 7</answer>", "-7", R),
    ("<answer>minus 7</answer>", "7", W),
    ("<answer>one hundred and five</answer>", "105", R),
    ("<answer>one hundred and five</answer>", "100, 5", W),
    ("<answer>two and three</answer>", "2, 3", R),
    ("<answer>two and a half</answer>", "2.5", R),
    ("<answer>1 and 1/2</answer>", "3/2", R),
    ("<answer>1 and 1/2</answer>", "1, 1/2", R),
    ("<answer>three quarters</answer>", "3/4", R),
    ("<answer>fifty percent</answer>", "50%", R),
    ("<answer>eighteen thousand</answer>", "18", W),
    ("<answer>eighteen or nineteen</answer>", "18", W),
    ("<answer>half of 18</answer>", "1/2", W),
    ("eighteen", "18", M),
    # what is said of a number
    ("<answer>\\boxed{18}</answer>", "18", R),
    ("<answer>$\\boxed{18}$.</answer>", "18", R),
    ("<answer>The answer is 18</answer>", "18", R),
    ("<answer>The total is $18.</answer>", "18", R),
    ("<answer>Answer: 18</answer>", "18", R),
    ("<answer>It is not 18</answer>", "18", W),
    ("<answer>not x = 18</answer>", "18", W),
    ("<answer>x ≠ 18</answer>", "18", W),
    ("<answer>What is wrong is 18</answer>", "18", W),
    ("The sky is blue, so the answer is 18", "18", R),
    ("<answer>the sky is blue</answer>", "the grass is blue", W),
    ("The answer is 17, not 18.", "17", R),
    ("The answer is 17, not 18.", "18", W),
    ("So the answer would be 18.", "18", R),
    ("Answer: 18。", "18", R),
    # percent, currency, units
    ("<answer>USD 18.50</answer>", "18.5", R),
    ("<answer>US$18.50</answer>", "$18.50", R),
    ("<answer>EUR 18</answer>", "$18", W),
    ("<answer>£18</answer>", "$18", W),
    ("<answer>50%</answer>", "50%", R),
    ("<answer>50%</answer>", "50", R),
    ("<answer>50 percent</answer>", "0.5", R),
    ("\\boxed{50\\%}", "1/2", R),
    ("<answer>0.5</answer>", "50%", R),
    ("<answer>0.5</answer>", "50", W),
    ("<answer>$18</answer>", "18", R),
    ("<answer>18 dollars per day</answer>", "$18", R),
    ("<answer>-$5</answer>", "-5", R),
    ("\\boxed{\\$1{,}800}", "1800", R),
    ("<answer>18€</answer>", "18 euros", R),
    ("<answer>50 cents</answer>", "$50", W),
    ("<answer>5 km</answer>", "5 m", W),
    ("<answer>5 kilometres</answer>", "5km", R),
    ("\\boxed{5\\text{ cm}^2}", "5", R),
    ("<answer>5 cm²</answer>", "5 cm", W),
    ("\\boxed{20^\\circ}", "20", R),
    ("<answer>60 km/h</answer>", "60", R),
    # variables and several values
    ("<answer>5x</answer>", "5", W),
    ("<answer>5\\pi</answer>", "5", W),
    ("<answer>x = 5</answer>", "5", R),
    ("<answer>y = 5</answer>", "x = 5", W),
    ("<answer>Total cost = $18</answer>", "18", R),
    ("<answer>x=3 or x=2</answer>", "x=2 or x=3", R),
    ("<answer>x=3, y=2</answer>", "x=2, y=3", W),
    ("<answer>x = 3</answer>", "x=2 or x=3", W),
    ("\\boxed{\\{3, 2\\}}", "2, 3", R),
    ("\\boxed{\\pm 2}", "-2, 2", R),
    ("<answer>(2, 3)</answer>", "(2,3)", R),
    ("<answer>(3, 2)</answer>", "(2, 3)", W),
    ("<answer>[2, 3)</answer>", "(2, 3)", W),
    # text
    ("<answer>(B)</answer>", "B", R),
    ("\\boxed{\\text{Tuesday}}", "tuesday", R),
    ("<answer>Tuesday or Monday</answer>", "Tuesday", W),
    # algebra
    ("\\boxed{\\sqrt{8}}", "2\\sqrt{2}", R),
    ("\\boxed{2\\sqrt{3}}", "2\\sqrt{2}", W),
    ("\\boxed{1.414214}", "\\sqrt{2}", W),
    ("\\boxed{1 + 2x}", "2x+1", R),
    ("\\boxed{\\frac{\\pi}{2}}", "\\pi/2", R),
    ("\\boxed{(-\\infty, 3]}", "(-\\infty,3]", R),
    ("<answer>1024</answer>", "2^{10}", R),
    ("<answer>2^{10}</answer>", "1024", W),
    # a reference that is a worked solution
    ("<answer>18</answer>", "She makes 9 * 2 = 18.\n#### 18", R),
    ("<answer>1,080</answer>", "so it is $\\boxed{1080}$.", R),
]


def reward(extract: list[str] = DEFAULT, tolerance: float = 0.0) -> MathReward:
    return MathReward(
        kind="math", weight=1.0, role="outcome", extract=extract, right=R, wrong=W, missing=M, tolerance=tolerance
    )


def completions(texts: list[str], answers: list[str | None], finished: bool = True) -> Completions:
    return Completions(
        examples=[Example(str(i), "q", answer) for i, answer in enumerate(answers)],
        prompts=["q"] * len(texts),
        texts=texts,
        token_ids=[[1]] * len(texts),
        finished=[finished] * len(texts),
    )


def value(text: str, reference: str | None, finished: bool = True, **options: object) -> float | None:
    return reward(**options).score(completions([text], [reference], finished))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "reference", "expected"), CASES)
def test_table(text: str, reference: str, expected: float) -> None:
    assert value(text, reference) == expected


def test_the_table_is_large_and_has_no_case_twice() -> None:
    assert len(CASES) >= 80
    assert len({case[:2] for case in CASES}) == len(CASES)


def test_no_reference_means_the_part_does_not_apply() -> None:
    texts = ["<answer>1</answer>"] * 3
    assert reward().score(completions(texts, [None, "1", " "])) == [None, R, None]


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        ("114 / 57 = 2", "2", M),  # may have become 25
        ("The answer is 2", "2", M),
        ("2", "2", M),
        ("The answer is 2.\nLet me check", "2", R),
        ("114 / 57 = 2\n", "2", R),
        ("<answer>2</answer> and", "2", R),
        ("\\boxed{2} and", "2", R),
        ("The answer is 4. <answer>2", "4", R),
    ],
)
def test_of_a_cut_off_completion_the_last_line_does_not_count(text: str, reference: str, expected: float) -> None:
    assert value(text, reference, finished=False) == expected


def test_extract_chooses_and_orders_the_forms() -> None:
    text = "<answer>1</answer> \\boxed{2}"
    assert value(text, "1", extract=["tag", "boxed"]) == R
    assert value(text, "2", extract=["boxed", "tag"]) == R
    assert value(text, "1", extract=["boxed"]) == W
    assert value("some 3 and 5 eggs", "5", extract=["last_number"]) == R
    assert value("some 3 and 5 eggs", "3", extract=["last_number"]) == W


def test_tolerance_is_relative() -> None:
    assert value("<answer>3.14</answer>", "3.1416", tolerance=0.001) == R
    assert value("<answer>3.14</answer>", "3.1416", tolerance=0.0001) == W
    assert value("<answer>314</answer>", "314.16", tolerance=0.001) == R


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>0.75</answer>", "3/4"),
        ("\\boxed{\\frac{3}{4}}", "3/4"),
        ("The answer is $1,234.00.", "1234"),
        ("<answer>x=3 or x=2</answer>", "2, 3"),
        ("<answer>{3, 2}</answer>", "2, 3"),
        ("<answer>(3, 2)</answer>", "(3, 2)"),
        ("<answer>y=2, x=3</answer>", "x=3, y=2"),
        ("<answer>50%</answer>", "50"),
        ("<answer>(B)</answer>", "B"),
        ("<answer>Half a dozen</answer>", "Half a dozen"),
        ("<answer></answer>", None),
        ("no idea", None),
    ],
)
def test_answers_for_voting_are_canonical(text: str, expected: str | None) -> None:
    assert reward().answer(text) == expected


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("answer", ["18", "-3/4", "She has $18.\n#### 18"])
def test_a_written_answer_is_found_again(form: str, answer: str) -> None:
    part = reward(extract=[form])
    assert part.score(completions([part.written(answer)], [answer])) == [R]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"extract": ["boxd"]}, ["reward.parts.math.extract", "boxd", "Did you mean 'boxed'?", "last_number"]),
        ({"extract": []}, ["reward.parts.math.extract", "at least one"]),
        ({"right": -1.0}, ["reward.parts.math.right=-1", "greater than wrong=-1"]),
    ],
)
def test_options_are_checked(options: dict[str, object], words: list[str]) -> None:
    values = {"kind": "math", "weight": 1.0, "role": "outcome", "extract": DEFAULT, "right": R, "wrong": W, "missing": M}
    with pytest.raises(ConfigError) as error:
        MathReward(**{**values, "tolerance": 0.0, **options})  # type: ignore[arg-type]
    assert all(word in str(error.value) for word in words)


def test_gsm8k_solutions_are_right_for_their_own_question_alone() -> None:
    path = DATA / "gsm8k_test.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    solutions = [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").splitlines()]
    final = [solution.rpartition("#### ")[2].replace(",", "") for solution in solutions]
    assert reward().score(completions(solutions, list(final))) == [R] * len(final)
    shifted = final[1:] + final[:1]
    expected = [R if a == b else W for a, b in zip(final, shifted, strict=True)]
    assert reward().score(completions(solutions, list(shifted))) == expected
    assert reward().score(completions([s.partition("####")[0] for s in solutions], list(final))).count(R) < len(final) / 2


def test_svamp_answers_are_floats_and_equal_the_worked_equation() -> None:
    path = DATA / "svamp.json"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    rows = json.loads(path.read_text(encoding="utf-8"))
    texts = [f"{row['Equation'].strip('( )')} = {row['Answer']:g}" for row in rows if row["Answer"] < 1e6]
    answers: list[str | None] = [str(row["Answer"]) for row in rows if row["Answer"] < 1e6]
    assert reward().score(completions(texts, answers)) == [R] * len(texts)


def test_ordinary_completions_take_microseconds() -> None:
    text = "Janet has 16 eggs and eats 3.\nSo 16 - 3 - 4 = 9 are left.\n9 * 2 = 18 dollars.\n<answer>{}</answer>"
    batch = completions([text.format(i) for i in range(2000)], [str(i) for i in range(2000)])
    part = reward()
    start = time.process_time()
    assert part.score(batch) == [R] * 2000
    assert (time.process_time() - start) / 2000 < 200e-6  # about 10 us on a quiet machine
