"""Finding and reading answers in hostile text: linear time, no exception, and laws that hold for any text."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_exp.answers import forms, quantities

HOSTILE = {
    "open tags": "<answer>" * 12_500,
    "closing tags": "</answer>" * 11_000,
    "empty tags": "<answer></answer>" * 6_000,
    "open boxes": "\\boxed{" * 14_000,
    "empty boxes": "\\boxed{}" * 12_500,
    "braces": "{" * 100_000,
    "nested": "{" * 50_000 + "}" * 50_000,
    "backslashes": "\\" * 100_000,
    "hashes": "#" * 100_000,
    "hash answers": "#### 1\n" * 14_000,
    "answer is": "answer is " * 10_000,
    "answer is and stars": "answer is" + "*" * 100_000,
    "answer and spaces": "answer" + " " * 100_000,
    "equals": "=" * 100_000,
    "equations": "1=" * 50_000,
    "digits": "1" * 100_000,
    "groups": "1,000" * 20_000,
    "slashes": "1/" * 50_000,
    "points": "1." * 50_000,
    "newlines": "\n" * 100_000,
    "spaces": "x" + " " * 100_000 + "x",
    "sentences": "answer is " + "a so " * 20_000,
    "tag of digits": "<answer>" + "9" * 100_000 + "</answer>",
    "tag of items": "<answer>" + "1, " * 33_000 + "</answer>",
    "short list": "<answer>" + "1," * 140 + "</answer>",
    "short brackets": "<answer>" + "(" * 290 + "</answer>",
    "short units": "<answer>5 " + "a/" * 140 + "!</answer>",
    "short words": "<answer>" + "a " * 140 + "= 5</answer>",
    "short power tower": "<answer>" + "9^{" * 70 + "9" + "}" * 70 + "</answer>",
    "short exponent": "<answer>1e99</answer>",
    "short long exponent": "<answer>1e999999999</answer>",
    "short signs": "<answer>" + "-" * 290 + "1</answer>",
    "short spaces": "<answer>1" + " 1" * 140 + "</answer>",
    "short unicode": "<answer>" + "²½٣๓" * 70 + "</answer>",
    "zero bytes": "<answer>\0</answer>" * 5_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_read_in_well_under_a_second(name: str) -> None:
    start = time.process_time()
    for wanted in (forms.FORMS, *([form] for form in forms.FORMS)):
        for finished in (True, False):
            found = forms.find(HOSTILE[name], wanted, finished)
            if found:
                quantities.canonical(found)
                assert not quantities.equal(found, "18")
                assert not quantities.equal(found, "2\\sqrt{2}")
    assert time.process_time() - start < 6  # 16 searches: well under a second each


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ("a <answer> 5 </answer> b", "tag", "5"),
        ("<answer><answer>5</answer></answer>", "tag", "5"),
        ("<Answer>5</Answer>", "tag", None),
        ("set {1, 2 and \\boxed{5}", "boxed", "5"),
        ("\\boxed{\\{1\\}}", "boxed", "\\{1\\}"),
        ("\\boxed{5 } {", "boxed", "5"),
        ("#### Step 1\nWe add.\n#### 7", "hash", "7"),
        ("##### 7", "hash", None),
        ("The answer isn't 7", "answer_is", None),
        ("An answer: 3.5, since 7/2", "answer_is", "3.5"),
        ("a := 5", "equation", None),
        ("a == 5", "equation", None),
        ("so it is 7 = n apples", "equation", None),
        ("7 apples", "whole", "7 apples"),
        ("I ate 7 apples", "whole", None),
        ("between 3 and -7.5%", "last_number", "-7.5%"),
    ],
)
def test_each_form(text: str, form: str, expected: str | None) -> None:
    assert forms.find(text, [form]) == expected


@given(st.text(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_text_can_be_read(text: str) -> None:
    for form in forms.FORMS:
        found = forms.find(text, [form])
        assert found is None or found in text
    assert isinstance(quantities.canonical(text), str)
    assert forms.find(f"x <answer>{text.replace('<', '')}</answer> y", ["tag"]) == text.replace("<", "").strip()


@given(st.text(alphabet="0123456789-+./,%$ xy=()[]{}\\fracsqtor^", max_size=30))
@settings(max_examples=200, deadline=None)
def test_reading_is_idempotent(text: str) -> None:
    canonical = quantities.canonical(text)
    if quantities.is_number(text):
        assert quantities.is_number(canonical)
        assert quantities.canonical(canonical) == canonical


numbers = st.fractions(max_denominator=999).filter(lambda f: abs(f) < 10**12)


@given(numbers, numbers)
@settings(max_examples=200, deadline=None)
def test_numbers_are_equal_exactly_when_their_values_are(a: Fraction, b: Fraction) -> None:
    assert quantities.equal(str(a), str(b)) == (a == b)
    latex = f"\\boxed{{{'-' if a < 0 else ''}\\frac{{{abs(a.numerator)}}}{{{a.denominator}}}}}"
    found = forms.find(latex, ["boxed"])
    assert found is not None
    assert quantities.equal(found, str(a)) == (a.denominator != 1)  # n/1 is a quotient not carried out
    assert (quantities.canonical(str(a)) == quantities.canonical(str(b))) == (a == b)


@given(
    st.integers(-(10**15), 10**15),
    st.sampled_from(["{:,}", "${}", "{} eggs", "{}.0", "x = {}", "\\text{{{}}}", "**{}**", "{}."]),
)
@settings(max_examples=200, deadline=None)
def test_an_integer_is_the_same_in_every_dress(n: int, dress: str) -> None:
    assert quantities.equal(dress.format(n), str(n))
    assert quantities.canonical(dress.format(n)) == str(n)
    assert not quantities.equal(dress.format(n), str(n + 1))


@given(st.lists(st.integers(-99, 99), min_size=1, max_size=6, unique=True), st.randoms())
@settings(max_examples=100, deadline=None)
def test_a_set_has_no_order(items: list[int], random: object) -> None:
    shuffled = list(items)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    a, b = ", ".join(map(str, items)), " or ".join(f"x = {i}" for i in shuffled)
    assert quantities.equal(a, b)
    assert quantities.canonical(a) == quantities.canonical(b)
    assert not quantities.equal(a + ", 100", b)
