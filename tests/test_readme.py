"""Every command that README.md and docs/ show composes, found by reading them."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
from command import ROOT

from grpo_exp.app import check
from grpo_exp.command_line import group_folders, options, read
from grpo_exp.compose import is_sweep
from grpo_exp.config import RootOptions
from grpo_exp.errors import DataError, GrpoError
from grpo_exp.verbs import VERBS

PAGES = [p for p in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))] if p.is_file()]
STARTS = ("python -m grpo_exp", "grpo-exp")


def commands(page: Path) -> list[list[str]]:
    """The words of the commands in a page's code blocks: continued lines joined, comments and what follows a pipe left off."""
    found = []
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```|((?:^(?: {4}|\t)[^\n]*\n)+)", page.read_text(encoding="utf-8"), re.M | re.S)
    for fenced, indented in blocks:
        for line in f"{fenced}{indented}".replace("\\\n", " ").splitlines():
            line = re.sub(r"^\s*(\$ )?([A-Z_]+=\S* )*", "", line)
            if line.startswith(STARTS) and "..." not in line and "…" not in line:
                words = shlex.split(re.split(r"\s[|>&]\s?|\s2>", line)[0], comments=True)
                found.append(words[1 if words[0] == "grpo-exp" else 3 :])
    return found


SHOWN = [(page.relative_to(ROOT).as_posix(), words) for page in PAGES for words in commands(page)]
COMMANDS = list({shlex.join(words): (page, words) for page, words in reversed(SHOWN)}.values())
"""Each once, with the first page that shows it."""


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[f"{page}: {shlex.join(words)}" for page, words in COMMANDS])
def test_a_command_composes(page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training command builds, up to files that only its reader has; a verb's name exists."""
    monkeypatch.chdir(tmp_path)
    Path("my_rewards.py").write_text("def score(completions, **columns):\n    return [0.0 for _ in completions]\n")
    if words and "=" not in words[0] and not words[0].startswith(("-", "+", "~")):
        assert words[0] in VERBS, f"{page}: there is no verb {words[0]}"
    elif "--help" not in words and "--version" not in words:
        try:
            check(read(words))
        except DataError:
            pass  # a file of the reader's
        except GrpoError as error:
            assert "no such folder" in str(error), f"{page}: {shlex.join(words)}: {error}"


def test_the_reader_of_commands(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "text `python -m grpo_exp inline`\n\n```bash\n"
        "$ python -m grpo_exp beta=1  # a comment\n"
        "python -m grpo_exp a=1 \\\n    b=2 | tee log\n"
        "grpo-exp help algo\n"
        "OMP_NUM_THREADS=1 python -m grpo_exp c='1 2' > out 2>&1\n"
        "pip install x\npython -m grpo_exp VERB ...\n```\n\n"
        "    python -m grpo_exp d=1\n    python -m grpo_exp\n"
    )
    assert commands(page) == [["beta=1"], ["a=1", "b=2"], ["help", "algo"], ["c=1 2"], ["d=1"], []]


def test_the_option_tables_are_complete() -> None:
    rows = [
        line.split("|")[1:4] for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    told = {name.strip(" `"): (second.strip(), third.strip()) for name, second, third in rows}
    for field in dataclasses.fields(RootOptions):
        assert told[field.name][1] == field.metadata["meaning"], field.name
    for group in group_folders():
        assert set(told[group][0].replace("*", "").split()) == set(options(group)), group


def test_the_readmes_own_options_work_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A YAML block after "`DIR/GROUP/NAME.yaml`, for `python -m grpo_exp ...`" does what that command says."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"`DIR/(\S+\.yaml)`, for `python -m grpo_exp ([^`]+)`[^`]*```yaml\n(.*?)```", text, re.S)
    assert {file for file, _, _ in shown} == {"algo/dr.yaml", "sweeps/lr.yaml"}
    for file, command, yaml in shown:
        Path("DIR", file).parent.mkdir(parents=True, exist_ok=True)
        Path("DIR", file).write_text(yaml)
        request = read(shlex.split(command))
        assert is_sweep(request) == file.startswith("sweeps/")
        built = check(request)
        assert built is None or built.algo.name == Path(file).stem


def test_a_sweep_file_that_asks_for_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("DIR/sweeps").mkdir(parents=True)
    Path("DIR/sweeps/odd.yaml").write_text("# a remark\n# @package _global_\nhydra:\n  mode: MULTIRUN\n")
    with pytest.raises(GrpoError, match=r"sweeps=odd: the file asks for no sweep.*first line"):
        check(read(["--config-dir", "DIR", "sweeps=odd"]))
