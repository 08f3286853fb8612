"""Every option of every group composes and builds; every key of a YAML file is an option with a comment. Found by listing."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import ROOT, SMALL, algo_values, call
from declared import plain_values, same
from omegaconf import OmegaConf

from grpo_exp.app import sweep_jobs
from grpo_exp.command_line import group_folders, options, read
from grpo_exp.compose import compose, is_sweep
from grpo_exp.config import ObjectiveOptions, RootOptions, build, option_class

NEEDS = {
    "model=tiny": ["model.source=random"],  # its weights are checked by the tests of the model
    "model=hf": ["model.path=some/model"],
    "reward=custom": ["reward.path=rewards.py:score"],
    "reward=model": ["reward.path=model"],
    "reward=json": ["reward.parts.json.field=wanted"],
    "reward=judge": ["reward.parts.judge.base_url=http://127.0.0.1:1/v1", "reward.parts.judge.model=some"],
    "reward=code": [] if shutil.which("bwrap") else ["reward.parts.code.sandbox=none"],
    "data=hub": ["data.path=some/data", "model=tiny_random"],
}
"""What an option cannot be without, besides its own name."""

ELSEWHERE = ("sweeps", "reward/part", "hardware")
"""Groups with tests of their own: here, and in tests/test_hardware_profiles.py."""
OPTIONS = [
    (group, name)
    for group in group_folders()
    if not group.startswith("hydra/") and group not in ELSEWHERE
    for name in options(group)
]
FILES = sorted([*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "sweeps").glob("*.yaml")])


@pytest.fixture(autouse=True)
def in_a_folder_with_a_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rewards.py").write_text("def score(completions):\n    return [0.0 for _ in completions]\n")
    Path("model").mkdir()  # as far as it is looked at before it is used
    Path("model/config.json").write_text('{"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}')


@pytest.mark.parametrize(("group", "name"), OPTIONS, ids=lambda value: value)
def test_every_option_composes_builds_and_is_declared(group: str, name: str) -> None:
    """What is composed has the options of its dataclass, neither more nor fewer."""
    words = [f"{group}={name}", *NEEDS.get(f"{group}={name}", [])]
    words += [] if any(word.startswith("model") for word in words) else ["model=tiny_random"]
    request = read(words)
    assert not is_sweep(request)
    composed = compose(request)
    if group == "algo":
        assert composed.algo.kind == algo_values(name)["kind"], "as other tests list it"
    made = build(composed)
    assert getattr(made, {"reward": "reward_name"}.get(group, group)) is not None
    node = composed[group]
    same(option_class(group, plain_values(node)), plain_values(node), group)


def test_every_part_of_a_reward_composes_builds_and_is_declared() -> None:
    """Each beside the math reward, all of them together: an error names the one."""
    names = options("reward/part")
    words = ["model=tiny_random", "reward.path=rewards.py:score"]
    for name in names:
        words += [f"+reward/part@reward.parts.more_{name}={name}", f"reward.parts.more_{name}.role=shaping"]
        own = [word for word in NEEDS.get(f"reward={name}", []) if ".parts." in word]
        words += [word.replace(f"parts.{name}.", f"parts.more_{name}.") for word in own]
    words += ["reward.parts.more_model.path=model"]
    composed = compose(words)
    parts = build(composed).reward.parts
    for name in names:
        values = plain_values(composed.reward.parts[f"more_{name}"])
        assert values["kind"] == parts[f"more_{name}"].kind
        same(option_class("reward/part", values), values, name)


@pytest.mark.parametrize("name", options("sweeps"))
def test_every_sweep_sweeps(name: str) -> None:
    request = read([f"sweeps={name}", "model=tiny_random"])
    assert is_sweep(request)
    jobs = sweep_jobs(request)
    assert len(jobs) > 1
    for job in jobs:
        composed = compose(job)
        build(composed)
    assert composed.steps <= 50 or 0 < composed.experience.max_tokens <= 50_000, "short enough to try on the embedded model"


def test_groups_of_different_sizes_cost_the_same() -> None:
    for samples in (4, 8, 16):
        composed = compose(["sweeps=beta_g_grid", f"G={samples}"])
        assert composed.prompts_per_step * samples == 64


@pytest.mark.slow
def test_one_sweep_really_runs(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "sweeps=kl_placement", *SMALL, "steps=1", "algo.kl.estimator=k1,k3", "eval.start=false")
    assert answer.code == 0, answer.err
    runs = sorted(Path("outputs/sweeps/kl_placement").glob("*/config.yaml"))
    seen = [yaml.safe_load(run.read_text())["algo"]["kl"] for run in runs]
    assert [(kl["place"], kl["estimator"]) for kl in seen] == [(p, e) for p in ("loss", "reward") for e in ("k1", "k3")]


# ---- YAML files


def lines_of_keys(file: Path) -> Iterator[tuple[str, int, int]]:
    """(dotted key, line number, indent) of every key; the texts of a key's value are no keys."""

    def walk(node: yaml.Node, prefix: str) -> Iterator[tuple[str, int, int]]:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                name = f"{prefix}{key.value}"
                yield name, key.start_mark.line, key.start_mark.column
                yield from walk(value, f"{name}.")

    root = yaml.compose(file.read_text(encoding="utf-8"))
    assert root is not None
    yield from walk(root, "")


def plain(file: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")) or {})


def inherited(file: Path) -> set[str]:
    """Keys of the files of the same group that a file builds on: their comments stand there."""
    found: set[str] = set()
    for entry in plain(file).get("defaults", []):
        if isinstance(entry, str) and (parent := file.with_name(f"{entry}.yaml")).is_file() and parent != file:
            found |= {key for key, _, _ in lines_of_keys(parent)} | inherited(parent)
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_every_key_has_a_comment(file: Path) -> None:
    """A comment stands right above each key, or above a run of at most three keys that it speaks of together.

    What needs none: `defaults`, Hydra's own keys, names of groups and of mappings that have none of their own meaning, and
    what a file changes of another one of its group, where the comment stands.
    """
    lines = file.read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("# ") for line in lines[:2]), f"{file} begins with a line that says what it is"
    known = inherited(file)
    keys = list(lines_of_keys(file))
    values = plain(file)
    for key, line, _ in keys:
        top = key.partition(".")[0]
        if top in ("defaults", "hydra") or key in known or free_form(key) or is_mapping(values, key):
            continue
        run = 1
        while run <= 3 and not lines[line - run].lstrip().startswith("#"):
            run += 1
        above = lines[line - run + 1 : line]
        assert run <= 3 and all(text.strip() for text in above), f"{file}:{line + 1}: no comment above '{key}'"


def is_mapping(values: dict[str, Any], key: str) -> bool:
    node: Any = values
    for name in key.split("."):
        node = node[name] if isinstance(node, dict) else None
    return isinstance(node, dict) and bool(node)


def free_form(key: str) -> bool:
    """Names that a user of the option makes up: languages of data=digits, fields of data.replace."""
    return key.partition(".")[0] in ("train", "heldout", "replace") and "." in key


def test_the_root_has_the_same_options() -> None:
    values = OmegaConf.to_container(compose([]), resolve=False)
    assert isinstance(values, dict)
    groups = {"algo", "model", "data", "reward", "rollout", "hardware", "eval", "track", "health"}
    sections = {"sweep", "preflight", "experience", "optim", "checkpoint", "objective"}
    assert {f.name for f in dataclasses.fields(RootOptions)} == set(values) - groups - sections
    for name in sections:
        same(option_class(name, {}), values[name], name)
    assert option_class("objective", {}) is ObjectiveOptions
