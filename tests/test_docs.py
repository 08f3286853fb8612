"""What docs/reliability.md promises is held by tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from command import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/.]+)::(\w+)`", PAGE)))


@cache
def functions(file: str) -> dict[str, ast.FunctionDef]:
    """The functions of a file of tests by their names."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[f"{file}::{name}" for file, name in NAMED])
def test_a_test_that_is_named_exists(file: str, name: str) -> None:
    assert name in functions(file)


def test_every_promise_names_its_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "| promise |" not in line and "state |" not in line]
    promises = [row for row in rows if not row.startswith(("| `tiny`", "| random"))]
    assert len(promises) > 40
    assert not [row for row in promises if "`tests/" not in row.split(" | ")[-1]]


@pytest.mark.parametrize(("file", "name", "marked"), sorted(set(re.findall(r"`(tests/[\w/.]+)::(\w+)`( \*slow\*)?", PAGE))))
def test_the_page_says_which_are_slow(file: str, name: str, marked: str) -> None:
    assert ("pytest.mark.slow" in map(ast.unparse, functions(file)[name].decorator_list)) == bool(marked)
