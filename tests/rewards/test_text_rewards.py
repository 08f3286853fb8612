"""regex, contains and choice on tables of completions, the values expected by hand."""

from __future__ import annotations

import time
from typing import Any

import pytest
from parts import NEAR, STEPS, completions, item, part, value

from grpo_exp.errors import ConfigError, DataError, RewardError

R, N, W, M = 1.0, 0.3, 0.0, -1.0

REGEX = [
    ({"pattern": "[0-9]{4}"}, "<answer>2024</answer>", R),
    ({"pattern": "[0-9]{4}"}, "in the year \\boxed{2024}", R),
    ({"pattern": "[0-9]{4}"}, "<answer>in 2024</answer>", W),
    ({"pattern": "[0-9]{4}", "whole": False}, "<answer>in 2024</answer>", R),
    ({"pattern": "[0-9]{4}"}, "2024", M),
    ({"pattern": "[0-9]{4}", "where": "completion"}, "2024", R),
    ({"pattern": "[0-9]{4}", "where": "completion"}, "<think>2023</think>\n2024", R),
    ({"pattern": "[0-9]{4}", "where": "completion", "whole": False}, "<think>2024", M),
    ({"pattern": "[0-9]{4}", "where": "completion"}, " ", M),
    ({"pattern": "a.b", "where": "completion"}, "a\nb", W),
    ({"pattern": r"\p{Lu}\w+"}, "<answer>Ärger</answer>", R),
    ({"pattern": "x"}, "<answer></answer>", M),
    ({"pattern": "a*", "where": "completion"}, "a" * 20_001, W),
]


@pytest.mark.parametrize(("options", "text", "expected"), REGEX)
def test_regex(options: dict[str, Any], text: str, expected: float) -> None:
    assert value(part("regex", **STEPS, **options), text, item()) == expected


def test_each_item_may_have_its_own_expression() -> None:
    reward = part("regex", field="wanted", **STEPS)
    assert value(reward, "<answer>ab</answer>", item(wanted="a.")) == R
    assert value(reward, "<answer>ab</answer>", item(wanted="b.")) == W
    assert value(reward, "<answer>ab</answer>", item()) is None
    assert value(part("regex", **STEPS), "<answer>ab</answer>", item("a.")) == R
    with pytest.raises(ConfigError, match=r"'\(b' is not a regular expression"):
        reward.check_data([item(wanted="a"), item(wanted="(b")])


def test_an_expression_that_takes_for_ever_fails_on_that_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_exp.patterns.SECONDS", 0.2)
    reward = part("regex", pattern="(a|aa)+", where="completion")
    began = time.perf_counter()
    stopped, right = reward.score(completions(["a" * 5000 + "!", "aaa"]))
    assert time.perf_counter() - began < 20  # otherwise for ever
    assert isinstance(stopped, RewardError) and right == R
    assert "reward.parts.regex.pattern='(a|aa)+' took longer than 0.2 s" in str(stopped)


CONTAINS = [
    ({}, "Paris", "<answer>Paris</answer>", R),
    ({}, "Paris", "<answer>it is PARIS, of course</answer>", R),
    ({"case": True}, "Paris", "<answer>paris</answer>", W),
    ({}, "Paris", "<answer>Parisian</answer>", W),
    ({"words": False}, "Paris", "<answer>Parisian</answer>", R),
    ({}, "Paris", "Paris", M),
    ({"where": "completion"}, "Paris", "Paris", R),
    ({}, "Paris", "<answer>London</answer>", W),
    ({}, "3", "<answer>13</answer>", W),
    ({}, "3", "<answer>3.5</answer>", W),
    ({}, "3", "<answer>2.3</answer>", W),
    ({}, "3", "<answer>-3</answer>", W),
    ({}, "3", "<answer>It is 3.</answer>", R),
    ({}, "3", "<answer>3, I think</answer>", R),
    ({}, "New York", "<answer>new\n  york</answer>", R),
    ({}, "ﬁne", "<answer>fine</answer>", R),
    ({}, "C++", "<answer>C++</answer>", R),
    ({}, "7", "<answer>" + " ".join(map(str, range(100))) + "</answer>", W),  # it names everything
    ({"longest": None}, "7", "<answer>" + " ".join(map(str, range(100))) + "</answer>", R),
    ({"texts": ["red", "blue"]}, None, "<answer>blue and red</answer>", R),
    ({"texts": ["red", "blue"]}, None, "<answer>red</answer>", N),
    ({"texts": ["red", "blue"]}, None, "<answer>green</answer>", W),
    ({"texts": ["red", "blue"], "enough": "any"}, None, "<answer>red</answer>", R),
    ({"texts": ["red", "blue"], "enough": "any"}, None, "<answer>green</answer>", W),
]


@pytest.mark.parametrize(("options", "answer", "text", "expected"), CONTAINS)
def test_contains(options: dict[str, Any], answer: str | None, text: str, expected: float) -> None:
    assert value(part("contains", **NEAR, **options), text, item(answer)) == expected


def test_the_texts_may_stand_in_a_field() -> None:
    reward = part("contains", field="names", **NEAR)
    assert value(reward, "<answer>a b</answer>", item(names=["a", "b"])) == R
    assert value(reward, "<answer>a b</answer>", item(names="b")) == R
    assert value(reward, "<answer>a b</answer>", item(names=[])) is None


def test_many_occurrences_within_words_cost_linear_time() -> None:
    began = time.process_time()
    reward = part("contains", where="completion", longest=None)
    assert value(reward, "ab" * 200_000, item("b")) == W
    assert time.process_time() - began < 2


OPTIONS = ["London", "Paris", "Rome", "It is 3.5"]
CHOICE = [
    ("<answer>B</answer>", R),
    ("<answer>b</answer>", R),
    ("<answer>(B)</answer>", R),
    ("<answer>B.</answer>", R),
    ("<answer>B. Paris</answer>", R),
    ("<answer>B: paris.</answer>", R),
    ("<answer>B Paris</answer>", R),
    ("<answer>(B) - Paris</answer>", R),
    ("<answer>Paris</answer>", R),
    ("<answer>paris.</answer>", R),
    ("\\boxed{B}", R),
    ("\\boxed{\\text{B}}", R),
    ("The answer is B.", R),
    ("The answer is (B).", R),
    ("The correct answer is **B**", R),
    ("The answer is Paris, since I was there.", R),
    ("Answer: B", R),
    ("I think of the Seine.\n\nB", R),
    ("I think of the Seine.\n**(B) Paris**", R),
    ("<think>A? \\boxed{A}</think>B", R),
    ("Option B", R),
    ("<answer>A</answer>", W),
    ("<answer>B. London</answer>", W),
    ("<answer>A or B</answer>", W),
    ("<answer>A, B</answer>", W),
    ("<answer>AB</answer>", W),
    ("<answer>London Paris Rome</answer>", W),
    ("<answer>not B</answer>", W),
    ("<answer>E</answer>", W),
    ("<answer>Berlin</answer>", W),
    ("<answer>A</answer><answer>B</answer><answer>C</answer>", W),
    ("A B C D", M),
    ("It could be B.", M),
    ("<answer>B", M),
    ("<think>B", M),
    ("B" * 5000, M),
]


@pytest.mark.parametrize(("text", "expected"), CHOICE)
def test_choice(text: str, expected: float) -> None:
    reward = part("choice", options="options", **STEPS)
    assert value(reward, text, item("B", options=OPTIONS)) == expected


def test_a_completion_that_was_cut_off_names_no_option_in_its_last_line() -> None:
    reward = part("choice", **STEPS)
    assert value(reward, "Let us see.\nA", item("A"), finished=False) == M
    assert value(reward, "<answer>A</answer>", item("A"), finished=False) == R


@pytest.mark.parametrize(
    ("options", "columns", "answer", "right"),
    [
        ({}, {}, "c", "C"),
        ({"options": "o"}, {"o": OPTIONS}, "Rome", "C"),
        ({"options": "o"}, {"o": {"text": OPTIONS, "label": ["1", "2", "3", "4"]}}, "3", "3"),  # as in ARC
        ({"options": "o"}, {"o": {"A": "x", "C": "y"}}, "C", "C"),
        ({"options": "o", "first": 0}, {"o": OPTIONS}, "2", "C"),  # as in MMLU
        ({"options": "o", "first": 1}, {"o": OPTIONS}, "2", "B"),
        ({"first": 0}, {}, "3", "D"),
        ({"options": "o", "field": "label", "first": 0}, {"o": OPTIONS, "label": 1}, None, "B"),
    ],
)
def test_the_right_option_is_given_in_several_ways(options: Any, columns: Any, answer: str | None, right: str) -> None:
    reward, example = part("choice", **STEPS, **options), item(answer, **columns)
    reward.check_data([example])
    assert value(reward, f"<answer>{right}</answer>", example) == R
    assert value(reward, f"<answer>{'A' if right != 'A' else 'B'}</answer>", example) == W


@pytest.mark.parametrize(
    ("options", "columns", "answer", "words"),
    [
        ({"options": "o"}, {"o": OPTIONS}, "Berlin", "'Berlin', is neither a letter (A, B, C, D) nor an option's text"),
        ({"options": "o"}, {"o": OPTIONS}, "2", "set reward.parts.choice.first to 0 or 1"),
        ({"options": "o", "first": 1}, {"o": OPTIONS}, "0", "is no number of an option"),
        ({"options": "o"}, {"o": "A) x B) y"}, "A", "no list of at most 26 options"),
        ({"options": "o"}, {"o": ["x"]}, "A", "at least two options"),
        ({}, {}, "Paris", "neither a letter"),
    ],
)
def test_data_that_does_not_say_which_option_is_right_is_refused(options: Any, columns: Any, answer: str, words: str) -> None:
    with pytest.raises(DataError, match="item 7") as error:
        part("choice", **options).check_data([item(answer, **columns)])
    assert words in str(error.value)


def test_votes_count_letters() -> None:
    reward = part("choice")
    assert [reward.answer(text) for text in ("<answer>(b)</answer>", "The answer is B.", "B")] == ["B"] * 3
    assert reward.answer("<answer> Paris </answer>") == "paris"
    assert reward.answer("who knows") is None


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("regex", {"pattern": "(a"}, "reward.parts.regex.pattern='(a' is not a regular expression"),
        ("regex", {"pattern": "a", "field": "x"}, "has no effect with a pattern"),
        ("contains", {"texts": ["a", " "]}, "an empty text is in every completion"),
        ("contains", {"texts": ["a"], "field": "x"}, "has no effect with texts"),
    ],
)
def test_options_are_checked_together(kind: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        part(kind, **options)
    assert words in str(error.value)
