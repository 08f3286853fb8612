"""Imports go one way, from higher levels to lower ones, and each large library has one owner. Nothing is run for it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "grpo_exp"

LEVELS: list[set[str]] = [
    {"errors", "options", "paths", "batch", "ops", "kernels", "worker", "pool", "frozen", "sharded"},
    {
        "losses",
        "advantages",
        "kl",
        "stats",
        "metrics",
        "critic",
        "preferences",
        "deadline",
        "patterns",
        "endpoint",
        "calls",
        "parts",
        "preflight.difficulty",
        "answers.*",
        "sandbox.*",
        "head",
        "trunk",
        "stream",
    },
    {"algos.*", "rewards.*", "scoring", "verifier", "styles", "user_code"},
    {
        *("data.*", "rows.*", "prompt_order", "replay"),
        *(
            "model",
            "tiny",
            "texts",
            "policy",
            "rollout.*",
            "track.*",
            "health.*",
            "classifier",
            "checkpoint",
            "hardware",
            "stop",
        ),
        *("memory", "optim", "bits", "footprint", "prompt_length", "lengths", "difficulty", "ranks", "several", "child"),
    },
    {
        *("schema", "command_line", "compose", "config", "sweep.options", "preflight.options"),
        *("experience", "evaluate", "pairs", "learner", "dump", "train", "placement", "overlap"),
    },
    {
        "run",
        "branch",
        "earlier",
        "record",
        "remedy",
        "flags",
        "explained",
        "card",
        "job",
        "processes",
        "subject",
        "app",
        "sweep.*",
        "preflight.*",
        "report.*",
        "laboratory.*",
        "verbs.*",
        "__main__",
    },
]
"""`name` is grpo_exp/name.py; `folder.*` is every file of a folder, its `__init__` included."""

OWNERS = {
    "wandb": {"track.*"},
    "optuna": {"sweep.*", "report.study"},
    "peft": {"policy"},
    "bitsandbytes": {"bits"},
    # classifier writes a model of transformers' own kind; rewards.model is a model that scores, loaded at its first use
    "transformers": {"policy", "model", "tiny", "classifier", "rewards.model", "rollout.*"},
    "tokenizers": {"tiny"},
    "datasets": {"data.hub"},
    "math_verify": {"answers.*"},
    "regex": {"patterns", "rewards.language"},
    "jsonschema": {"rewards.json"},
    "referencing": {"rewards.json"},
    "httpx": {"endpoint"},
    "reasoning_gym": {"rewards.reasoning_gym", "data.reasoning_gym"},
    "matplotlib": {"track.*", "report.plots"},
    "rich": {"track.*", "report.*"},
    "plotly": {"report.*"},
    "scipy": {"stats"},
    "hydra": {"command_line", "compose", "app", "run", "sweep.*"},
    "omegaconf": {"schema", "compose", "config", "app", "run", "job", "remedy", "subject", "verbs.*", "sweep.*"},
}
LIGHT = {"torch", "numpy", "scipy", "math_verify", "typing_extensions"}
"""What levels 0 to 2 may import besides Python's own, and besides what OWNERS names one of them for."""


@cache
def modules() -> dict[str, Path]:
    """Every file of the package by its dotted name; a folder's `__init__` stands as `folder.__init__`."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {".".join(f.relative_to(PACKAGE).with_suffix("").parts): f for f in files if f != PACKAGE / "__init__.py"}


def belongs(name: str, patterns: set[str]) -> bool:
    return name in patterns or any(p.endswith(".*") and name.startswith(p[:-1]) for p in patterns)


def level(name: str) -> int | None:
    return next((i for i, names in enumerate(LEVELS) if belongs(name, names)), None)


@cache
def imports(file: Path) -> list[tuple[str, int]]:
    """(module, line) of every import in a file, also those within functions and for type checking."""
    return list(_imports(file))


def _imports(file: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: write the import out, without leading dots"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def of_ours(imported: str, known: dict[str, Path]) -> str | None:
    """The module of the package that `grpo_exp.x.y` names; `grpo_exp.x.Class` is module x. None for the package itself."""
    name = imported.removeprefix("grpo_exp.")
    while name:
        for candidate in (name, f"{name}.__init__"):
            if candidate in known:
                return candidate
        name = name.rpartition(".")[0]
    return None


@pytest.mark.parametrize("name", modules())
def test_every_module_has_a_level(name: str) -> None:
    assert level(name) is not None, f"grpo_exp/{name.replace('.', '/')}.py is new: add '{name}' to LEVELS in {__file__}"


@pytest.mark.parametrize("name", modules())
def test_imports_go_down(name: str) -> None:
    known, own = modules(), level(name)
    assert own is not None
    for imported, line in imports(known[name]):
        target = of_ours(imported, known) if imported.startswith("grpo_exp.") else None
        if target is None:
            continue
        other = level(target)
        where = f"grpo_exp/{name.replace('.', '/')}.py:{line}: level {own} imports {target} of level {other}"
        assert other is not None
        assert other <= own, f"{where}; an import goes to the same or a lower level"
        assert not (own == 3 and other == 2), f"{where}; data, policy, rollout and track know no algorithm and no reward"


@pytest.mark.parametrize("name", modules())
def test_each_library_has_its_owner(name: str) -> None:
    own = level(name)
    assert own is not None
    for imported, line in imports(modules()[name]):
        library = imported.partition(".")[0]
        where = f"grpo_exp/{name.replace('.', '/')}.py:{line} imports {library}"
        if library in OWNERS:
            assert belongs(name, OWNERS[library]), f"{where}, which belongs to {', '.join(sorted(OWNERS[library]))}"
        if own <= 2 and library not in LIGHT | {"grpo_exp", "__future__"} and name not in OWNERS.get(library, set()):
            assert library in sys.stdlib_module_names, f"{where}; levels 0 to 2 need torch alone"


def test_the_levels_name_nothing_that_is_gone() -> None:
    known = modules()
    for names in LEVELS:
        for pattern in names:
            assert any(belongs(name, {pattern}) for name in known), f"'{pattern}' in LEVELS is no module of grpo_exp"
