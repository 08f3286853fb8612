"""`python -m grpo_exp workspace`: the W&B view as JSON, and the sweep that W&B leads."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from command import ROOT, call, finish, start

from grpo_exp.app import check
from grpo_exp.command_line import read


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))


def test_the_view_has_the_curves_grouped_by_beta_and_g() -> None:
    if importlib.util.find_spec("wandb_workspaces") is None:
        pytest.skip("needs wandb-workspaces")
    # In a process of its own: the package changes settings of wandb for good.
    answer = finish(start(Path.cwd(), "workspace", "--project", "mine", "--out", "here/view.json"))
    assert (answer.code, answer.err, answer.out) == (0, "", "here/view.json\n")
    text = Path("here/view.json").read_text()
    view = json.loads(text)
    assert view["project"] == "mine"
    for name in ("reward/mean", "kl/mean", "length/mean", "reward/std", "eval/pass@1"):
        assert f'"{name}"' in text
    sections = view["spec"]["section"]["panel_bank_config"]["sections"]
    grouped = [
        {panel["config"].get("group_by") for panel in section["panels"]} for section in sections if "grouped" in section["name"]
    ]
    assert grouped == [{"beta.value"}, {"G.value"}]  # as W&B stores a key of the config
    kinds = {panel["view_type"] for section in sections for panel in section["panels"]}
    assert {"Run History Line Plot", "Parallel Coordinates Plot", "Parameter Importance", "Scatter Plot"} <= kinds


def test_without_the_package_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    answer = call(capsys, "workspace")
    assert answer.code == 2 and "pip install wandb-workspaces" in answer.err


def test_wrong_words(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--entityy"], ["beta=1"], ["--out"]):
        answer = call(capsys, "workspace", *words)
        assert answer.code == 2 and answer.err.count("\n") == 1


@pytest.mark.parametrize("file", sorted((ROOT / "sweeps/wandb").glob("*.yaml")), ids=lambda f: f.name)
def test_a_sweep_led_by_wandb_composes(file: Path) -> None:
    """What its agent makes of `${args_no_hyphens}`: KEY=VALUE for each parameter."""
    sweep = yaml.safe_load(file.read_text())
    assert sweep["command"][-1] == "${args_no_hyphens}" and sweep["command"][1:4] == ["python", "-m", "grpo_exp"]
    ends = ("min", "max", "value")
    for which in range(3):
        words = []
        for key, given in sweep["parameters"].items():
            values = given.get("values") or [given[end] for end in ends if end in given]
            words.append(f"{key}={values[min(which, len(values) - 1)]}")
        check(read(shlex.split(" ".join(words))))
