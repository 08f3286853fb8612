"""cosine, repetition and language against values worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parts import HOSTILE, completions, item, part

from grpo_exp.errors import ConfigError
from grpo_exp.rewards.base import RewardSum

# r_L + (r_0 - r_L) (1 + cos(pi y / 100)) / 2. At y = 0 the cosine is 1, at 100/3 it is 1/2, at 50 it is 0, at 200/3 it is -1/2.
# Right, 1 to 0.5: 0.5 + 0.5 * {1, 3/4, 1/2, 1/4}. Wrong, -1 to -0.5: -0.5 - 0.5 * {1, 3/4, 1/2, 1/4}.
COSINE = [
    (300, 0, 1.0, 1.0),
    (300, 100, 1.0, 0.875),
    (300, 150, 1.0, 0.75),
    (300, 200, 1.0, 0.625),
    (300, 0, 0.0, -1.0),
    (300, 100, 0.0, -0.875),
    (300, 150, 0.0, -0.75),
    (300, 200, 0.0, -0.625),
    (300, 300, 1.0, -1.0),
    (300, 300, 0.0, -1.0),
    (300, 1000, 1.0, -1.0),
    (300, 150, 0.5, -0.75),  # right is above 0.5
    (300, 150, 0.51, 0.75),
    (300, 150, -1.0, -0.75),
]


@pytest.mark.parametrize(("longest", "tokens", "outcome", "expected"), COSINE)
def test_cosine(longest: int, tokens: int, outcome: float, expected: float) -> None:
    reward = part("cosine", max_length=longest)
    assert reward.score(completions(["x"], token_ids=[[1] * tokens], outcome=[outcome])) == [pytest.approx(expected, abs=1e-12)]


def test_cosine_does_not_apply_where_the_outcome_does_not() -> None:
    assert part("cosine").score(completions(["x", "y"], outcome=[None, 1.0]))[0] is None
    assert part("cosine").score(completions(["x"])) == [None]


def test_cosine_is_the_whole_reward_where_the_outcome_weighs_nothing() -> None:
    parts = {"cosine": part("cosine", max_length=300), "math": part("math", weight=0.0)}
    texts = ["<answer>18</answer>", "<answer>17</answer>"]
    result = RewardSum(parts)(completions(texts, item("18"), token_ids=[[1] * 150, [1] * 150]))
    torch.testing.assert_close(result.total, torch.tensor([0.75, -0.75]))
    assert result.outcome.tolist() == [1.0, 0.0]


REPETITION = [
    # "a b a b a b" has five pairs, of which "a b" and "b a" are two: 3 of 5 again
    ({"n": 2, "free": 0.0}, "a b a b a b", -0.6),
    ({"n": 2, "free": 0.0}, "A b\na B  a b", -0.6),
    ({"n": 2, "free": 0.2}, "a b a b a b", -0.5),  # (0.6 - 0.2) / 0.8
    ({"n": 2, "free": 0.6}, "a b a b a b", 0.0),
    ({"n": 1, "free": 0.0}, "x x x x", -0.75),
    ({"n": 4, "free": 0.0}, "one two three", 0.0),
    ({"n": 4, "free": 0.0}, "", 0.0),
    ({"n": 3, "free": 0.0}, "a b c d e f", 0.0),
    ({"n": 2, "of": "tokens", "free": 0.0}, "哈哈哈哈哈", -0.75),  # four pairs of tokens, one of them new
    ({"n": 2, "of": "words", "free": 0.0}, "哈哈哈哈哈", 0.0),
]


@pytest.mark.parametrize(("options", "text", "expected"), REPETITION)
def test_repetition(options: dict[str, Any], text: str, expected: float) -> None:
    assert part("repetition", **options).score(completions([text])) == [pytest.approx(expected, abs=1e-12)]


LANGUAGE = [
    (["Latin"], "all of it", 1.0),
    (["Latin"], "ab 中文", 0.5),
    (["Han"], "ab 中文", 0.5),
    (["Han"], "<answer>中文</answer> \\frac", 1.0),
    (["Han", "Hiragana", "Katakana"], "日本語のテスト", 1.0),
    (["Cyrillic"], "да no", 0.5),
    (["Greek"], "𝑥 = α, 2", 1.0),  # letters of no script do not count
    (["Latin"], "中", 0.0),
    (["Latin"], "39", 0.4),
    (["Latin"], "", 0.4),
    (["Latin"], "é É ﬁ", 1.0),
]


@pytest.mark.parametrize(("scripts", "text", "expected"), LANGUAGE)
def test_language(scripts: list[str], text: str, expected: float) -> None:
    assert part("language", scripts=scripts, no_letters=0.4).score(completions([text])) == [expected]


@pytest.mark.parametrize("kind", ["cosine", "repetition", "language"])
def test_hostile_completions_have_values(kind: str) -> None:
    scored = part(kind).score(completions(HOSTILE, outcome=[0.0] * len(HOSTILE)))
    assert all(-1 <= one <= 1 for one in scored)


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        ("cosine", "a b", "0.75 if right and -0.75 if wrong, at 2 words for tokens"),
        ("repetition", "a b c d a b c d", "0: 20% of the 4-grams of its words occurred earlier in it"),
        ("repetition", "a a a a a a", "-0.583333: 67% of the 4-grams of its words occurred earlier in it"),
        ("language", "abc αβγ", "0.5: 3 of 6 letters are Latin"),
    ],
)
def test_the_line_for_people(kind: str, text: str, line: str) -> None:
    options = {"cosine": {"max_length": 4}}.get(kind, {})
    assert part(kind, **options).explain(text, item()) == line


@pytest.mark.parametrize("kind", ["cosine", "repetition", "language"])
def test_they_cannot_be_the_outcome(kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"reward\.parts\.{kind}\.role=outcome.*role=shaping"):
        part(kind, role="outcome")


@pytest.mark.parametrize("scripts", [[], ["Latn}(a"], ["Klingonese"], ["Latin", ""]])
def test_a_script_that_there_is_not_is_refused(scripts: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"reward\.parts\.language\.scripts="):
        part("language", scripts=scripts)
