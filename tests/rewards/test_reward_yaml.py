"""Every YAML of the reward group: composes, has the class's options and no others, and builds the class."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from grpo_exp.batch import Completions, Example
from grpo_exp.options import load_class
from grpo_exp.rewards.base import Reward, RewardSum

CONF = Path(__file__).parents[2] / "conf"
PARTS = sorted(path.stem for path in (CONF / "reward" / "part").glob("*.yaml"))
OPTIONS = sorted(path.stem for path in (CONF / "reward").glob("*.yaml"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a root configuration that uses the reward group, and a reward function."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def score(completions): return [1.0 for _ in completions]", encoding="utf-8")
    (tmp_path / "config.yaml").write_text(
        "defaults:\n  - reward: math\n  - _self_\nmax_new_tokens: 64\ndata: {name: mine}\n"
        f"hardware: {{reward_model: same}}\nreward: {{style: auto, kwargs: {{}}, sandbox: none}}\nhydra:\n  searchpath:\n    - file://{CONF}\n",
        encoding="utf-8",
    )
    return tmp_path


def composed(root: Path, *overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(root), version_base="1.3"):
        reward = OmegaConf.to_container(compose("config", list(overrides)), resolve=True)["reward"]  # type: ignore[index,call-overload]
    return dict(reward)


def build(parts: dict[str, dict[str, Any]]) -> dict[str, Reward]:
    """As config.py does it: the values are merged onto the dataclass, which checks their types."""
    built = {}
    for name, values in parts.items():
        cls = load_class("grpo_exp.rewards", values["kind"], Reward, f"reward.parts.{name}.kind")
        assert set(values) == {f.name for f in dataclasses.fields(cls)}
        built[name] = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(cls), values))
        assert isinstance(built[name], cls)
    return built  # type: ignore[return-value]


def test_there_is_a_yaml_for_every_reward_and_a_reward_for_every_yaml() -> None:
    modules = {path.stem for path in (CONF.parent / "grpo_exp" / "rewards").glob("*.py")} - {"__init__", "base"}
    assert set(PARTS) == modules
    assert {"math", "format", "length", "digit", "custom"} <= set(OPTIONS)


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_file_gives_every_option_of_its_class_in_its_type(kind: str) -> None:
    text = (CONF / "reward" / "part" / f"{kind}.yaml").read_text(encoding="utf-8")
    root = OmegaConf.create(
        {
            "max_new_tokens": 64,
            "data": {"name": "mine"},
            "hardware": {"reward_model": "same"},
            "reward": {"path": "mine.py:score", "style": "auto", "kwargs": {}, "sandbox": "none"},
            "part": OmegaConf.create(text),
        }
    )
    values: dict[str, Any] = OmegaConf.to_container(root, resolve=True)["part"]  # type: ignore[index,call-overload,assignment]
    cls = load_class("grpo_exp.rewards", kind, Reward, "kind")
    hints = get_type_hints(cls)
    assert values["kind"] == kind
    assert list(values) == [f.name for f in dataclasses.fields(cls)], "the same keys in the same order"
    for name, value in values.items():
        if hints[name] in (int, float, str, bool):
            assert type(value) is hints[name], f"{name}: {value!r} is not of type {hints[name].__name__}"
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if line[:1].isalpha():
            assert lines[i - 1].startswith("# "), f"{kind}.yaml: no comment above {line!r}"


@pytest.mark.parametrize("option", OPTIONS)
def test_every_reward_composes_builds_and_scores(option: str, root: Path) -> None:
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text('{"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "a"}}')
    extra = {
        "custom": ["reward.path=mine.py:score"],
        "model": ["reward.path=model"],
        "json": ["reward.parts.json.field=wanted"],
        "judge": ["reward.parts.judge.base_url=http://127.0.0.1:1/v1", "reward.parts.judge.model=some"],
        "choice": ["reward.parts.choice.options=options"],
        "tool_call": ["reward.parts.tool_call.field=calls"],
    }.get(option, [])
    reward = composed(root, f"reward={option}", *extra)
    assert reward["name"] == option
    rewards = RewardSum(build(reward["parts"]))
    if option in ("model", "judge", "sql", "reasoning_gym"):
        return  # these have tests of their own, with a model, a server, a database and its data
    columns = {"wanted": 4, "calls": [], "options": {"A": "5", "B": "4"}, "tests": ["assert True"]}
    text = "2+2=4 \\boxed{B}" if option == "choice" else "2+2=4 <answer>4</answer>"
    text = "2+2=4, no tool is needed" if option == "tool_call" else text
    sample = Completions([Example("a", "2+2?", "4", columns=columns)], ["2+2?"], [text], [[1] * 9], [True])
    outcome = rewards(sample).outcome.item()
    assert outcome == (0.0 if option in ("digit", "code") else 1.0)  # it is neither a digit nor a program


def test_a_custom_reward_needs_its_path(root: Path) -> None:
    with initialize_config_dir(str(root), version_base="1.3"):
        cfg = compose("config", ["reward=custom"])
    assert OmegaConf.is_missing(cfg.reward, "path")


def test_parts_are_added_exchanged_and_removed_on_the_command_line(root: Path) -> None:
    added = composed(root, "+reward/part@reward.parts.length=length", "reward.parts.length.buffer=0.5")["parts"]
    assert list(added) == ["math", "format", "length"]
    assert (added["length"]["max_length"], added["length"]["buffer"]) == (64, 0.5)
    custom = composed(
        root, "+reward/part@reward.parts.mine=custom", "reward.path=mine.py:score", "reward.parts.mine.role=shaping"
    )["parts"]
    assert custom["mine"]["path"] == "mine.py:score"
    assert RewardSum(build(custom)).outcome_name == "math"
    assert composed(root, "reward/part@reward.parts.math=digit")["parts"]["math"]["kind"] == "digit"
    assert list(composed(root, "~reward/part@reward.parts.format")["parts"]) == ["math"]
