"""What docs/rewards.md shows of the laboratory happens as it is written there, command by command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import ROOT, SMALL, call

PAGE = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
TIMED = re.compile(r"^time |the slowest took|math-verify, as|where they differ")
"""Lines that depend on the machine: math-verify has two seconds for a response."""


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, content) of each fenced block."""
    yield from re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)


def words(command: str) -> list[str]:
    return shlex.split(command, comments=True)[3:]


def untimed(text: str) -> list[str]:
    """The lines that do not depend on time."""
    return [line.rstrip() for line in text.splitlines() if not TIMED.search(line)]


def assert_shown(shown: str, printed: str) -> None:
    """Each line of the page is one of the output's, in their order; `...` stands for what is left out."""
    rest = iter(untimed(printed))
    for line in untimed(shown):
        if line.strip() not in ("...", ""):
            assert line in rest, f"docs/rewards.md shows {line!r}, which is not printed there:\n{printed}"


@pytest.mark.slow
def test_the_five_minutes_go_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    codes, printed, trained = [], "", False
    for language, content in blocks(section("Five minutes")):
        if language == "python":
            Path("my_rewards.py").write_text(content)
        elif language == "bash" and " reward " in content:
            answer = call(capsys, *words(content))
            codes.append(answer.code)
            printed = answer.out
        elif language == "text":
            assert_shown(content, printed)
        elif language == "bash":
            answer = call(capsys, *words(content), *SMALL)
            assert answer.code == 0, answer.err
            trained = True
    assert codes == [3, 0] and trained


@pytest.mark.slow
def test_what_it_shows_of_math_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    *_, shown = (content for language, content in blocks(section("The laboratory")) if language == "text")
    command, _, output = shown.partition("\n")
    assert command.startswith("$ python -m grpo_exp reward ")
    answer = call(capsys, *words(command.removeprefix("$ ")))
    assert answer.code == 0
    assert_shown(output, answer.out)
