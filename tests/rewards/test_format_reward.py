"""The format reward, style by style."""

from __future__ import annotations

import time
from typing import Any

import pytest

from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError, RewardError
from grpo_exp.patterns import LONGEST
from grpo_exp.rewards.format import STYLES, FormatReward

CASES = [
    ("answer_tag", "<answer>5</answer>", 1.0),
    ("answer_tag", "3 + 2 is 5 <answer> 5 </answer>\n", 1.0),
    ("answer_tag", "<answer>5</answer>.", 0.0),
    ("answer_tag", "<answer> </answer>", 0.0),
    ("answer_tag", "<answer>5</answer><answer>5</answer>", 0.0),
    ("answer_tag", "<answer>5<answer>5</answer>", 0.0),
    ("answer_tag", "</answer>5<answer>", 0.0),
    ("answer_tag", "<answer>5", 0.0),
    ("answer_tag", "5", 0.0),
    ("answer_tag", "", 0.0),
    ("think_answer", "<think>3 + 2</think><answer>5</answer>", 1.0),
    ("think_answer", " <think>3\n+ 2</think>\n\n<answer>5</answer>\n", 1.0),
    ("think_answer", "<think></think><answer>5</answer>", 0.0),
    ("think_answer", "<think>a</think> so <answer>5</answer>", 0.0),
    ("think_answer", "well <think>a</think><answer>5</answer>", 0.0),
    ("think_answer", "<think>a<think>b</think><answer>5</answer>", 0.0),
    ("think_answer", "<think><answer>5</answer></think>", 0.0),
    ("think_answer", "<answer>5</answer>", 0.0),
    ("tags", "<plan>a</plan>\n<code>b</code> <answer>5</answer>\n", 1.0),
    ("tags", "<code>b</code><plan>a</plan><answer>5</answer>", 0.0),
    ("tags", "<plan>a</plan><answer>5</answer>", 0.0),
    ("tags", "<plan>a</plan><code>b</code><code>b</code><answer>5</answer>", 0.0),
    ("tags", "<plan>a<code>b</code></plan><answer>5</answer>", 0.0),
    ("tags", "<plan>a</plan><code> </code><answer>5</answer>", 0.0),
    ("tags", "<plan>a</plan><code>b</code><answer>5</answer>!", 0.0),
    ("tags", "so <plan>a</plan><code>b</code><answer>5</answer>", 0.0),
    ("tags", "", 0.0),
    ("boxed", "so $\\boxed{\\frac{1}{2}}$.", 1.0),
    ("boxed", "3 + 2\n\\boxed{5}\n", 1.0),
    ("boxed", "\\boxed{5}\nand more", 0.0),
    ("boxed", "\\boxed{5} or \\boxed{6}", 0.0),
    ("boxed", "\\boxed{5} or \\boxed{6", 0.0),
    ("boxed", "\\boxed{}", 0.0),
    ("boxed", "5", 0.0),
    ("equation", "114 / 57 = 2", 1.0),
    ("equation", "We divide.\n(114 - 2) / 56 = 2.0\n", 1.0),
    ("equation", "$9 * 2 = $18.", 1.0),
    ("equation", "9 \\times 2 = 18 dollars", 1.0),
    ("equation", "1 + 1 = 3", 1.0),
    ("equation", "114 / 57 = 2\nso 2", 0.0),
    ("equation", "x = 2", 0.0),
    ("equation", "2 = 2", 0.0),
    ("equation", "114 / 57", 0.0),
    ("equation", "114 / 57 = ", 0.0),
    ("equation", "= 2", 0.0),
    ("equation", "1" + "+" * 50_000, 0.0),
    ("equation", "1+" * 50_000 + "1=2", 1.0),
]


def part(style: str = "answer_tag", pattern: str | None = None, finished: bool = True) -> FormatReward:
    tags = ["plan", "code", "answer"] if style == "tags" else []
    return FormatReward(kind="format", weight=0.1, role="shaping", style=style, pattern=pattern, tags=tags, finished=finished)


def completions(texts: list[str], finished: list[bool] | None = None) -> Completions:
    n = len(texts)
    return Completions([Example("0", "q")] * n, ["q"] * n, texts, [[1]] * n, finished or [True] * n)


@pytest.mark.parametrize(("style", "text", "expected"), CASES)
def test_styles(style: str, text: str, expected: float) -> None:
    assert part(style).score(completions([text])) == [expected]


def test_every_style_has_cases() -> None:
    assert {case[0] for case in CASES} | {"regex"} == set(STYLES)


def test_a_cut_off_completion_counts_only_where_the_option_allows_it() -> None:
    texts = completions(["<answer>5</answer>"] * 2, [True, False])
    assert part().score(texts) == [1.0, 0.0]
    assert part(finished=False).score(texts) == [1.0, 1.0]


def test_a_regular_expression_matches_the_whole_stripped_completion() -> None:
    texts = completions(["42\n", "42 eggs", "", "4" * (LONGEST + 1)])
    assert part("regex", "[0-9]+").score(texts) == [1.0, 0.0, 0.0, 0.0]
    assert part("regex", "(?s)a.*b").score(completions(["a\nb"])) == [1.0]
    assert part("regex", "a.*b").score(completions(["a\nb"])) == [0.0]


def test_a_catastrophic_regular_expression_is_stopped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_exp.patterns.SECONDS", 0.2)
    start = time.perf_counter()
    stopped, right = part("regex", "(a|aa)+").score(completions(["a" * 5000 + "!", "aaa"]))
    assert time.perf_counter() - start < 20  # otherwise for ever
    assert isinstance(stopped, RewardError)
    assert right == 1.0
    assert "reward.parts.format.pattern='(a|aa)+'" in str(stopped)
    assert "0.2 s" in str(stopped)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"style": "regex"}, ["reward.parts.format.pattern=None", "needs a regular expression"]),
        ({"style": "regex", "pattern": "(a"}, ["reward.parts.format.pattern='(a'", "position 2"]),
        ({"style": "regex", "pattern": "a", "tags": ["a"]}, ["tags=['a']", "no other style takes any"]),
        ({"style": "tags", "tags": []}, ["tags=[]", "needs some"]),
        ({"style": "tags", "tags": ["a", "a"]}, ["tags=['a', 'a']", "different names"]),
        ({"style": "tags", "tags": ["<a>"]}, ["tags=['<a>']", "without < and >"]),
        ({"style": "boxed", "pattern": "a"}, ["no effect with style=boxed", "style=regex"]),
    ],
)
def test_options_are_checked_together(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        FormatReward(
            **{"kind": "format", "weight": 0.1, "role": "shaping", "pattern": None, "tags": [], "finished": True, **options}
        )
    assert all(word in str(error.value) for word in words)
