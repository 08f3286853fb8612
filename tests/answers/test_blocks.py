"""Where longer answers stand, and what is said aloud."""

from __future__ import annotations

import re
import time

import pytest

from grpo_exp.answers import blocks, forms

BEGINS = re.compile("[{]")
CASES = [
    ("{1}", "{1}"),
    (" {1}\n", "{1}"),
    ("so {1}", None),
    ("<answer>x</answer>", "x"),
    ("<answer>a</answer><answer>b</answer>", "b"),
    ("<answer>```json\nx\n```</answer>", "x"),
    ("<answer>\n```json\nx\n```\n</answer>", "x"),
    ("```json\nx\n```", "x"),
    ("```JSON\nx\n```", "x"),
    ("```\nx\n```", "x"),
    ("```python\nx\n```", None),
    ("```json\nx\n```\n```python\ny\n```", "x"),
    ("````json\n```\nx\n```\n````", "```\nx\n```"),
    ("```json\nx", None),
    ("<think>{1}</think>", None),
    ("<think>{1}</think>{2}", "{2}"),
    ("<think>{1}", None),
    ("{1}<think>", "{1}"),
    ("```json\nx\n```\n<answer>y</answer>", "y"),
]


@pytest.mark.parametrize(("text", "found"), CASES)
def test_find(text: str, found: str | None) -> None:
    assert blocks.find(text, ("json",), BEGINS) == found


LONG = ["```\n" * 100_000, "<answer>" * 100_000, "<think>" * 100_000 + "</think>" * 100_000, "`" * 500_000]


@pytest.mark.parametrize("text", LONG, ids=lambda text: text[:8].strip())
def test_it_takes_linear_time(text: str) -> None:
    began = time.process_time()
    blocks.find(text, ("json",), BEGINS)
    forms.spoken(text)
    assert time.process_time() - began < 1.5
