"""The options of a sweep: samplers and pruners by listing, and what is refused before anything is written."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import optuna
import pytest
import yaml

from grpo_exp.app import check
from grpo_exp.command_line import ROOT, options, read
from grpo_exp.compose import sweep_config
from grpo_exp.errors import ConfigError
from grpo_exp.sweep import choices
from grpo_exp.sweep.sweeper import is_grid, read_options

BASE = ["-m", "model=tiny_random", "beta=choice(0.01,0.1)", "hydra.sweeper.n_trials=2"]


def chosen(word: str) -> dict[str, dict[str, object]]:
    """What an option gives a sweep, once it is checked as that of a sweep is."""
    composed = sweep_config(read([*BASE, word]))
    read_options(composed, ["beta=choice(0.01,0.1)"])
    sweeper = composed.hydra.sweeper
    return {"sampler": dict(sweeper.sampler), "pruner": dict(sweeper.pruner)}


@pytest.mark.parametrize("name", options("hydra/sweeper/sampler"))
def test_every_sampler_samples(name: str) -> None:
    given = chosen(f"hydra/sweeper/sampler={name}")["sampler"]
    study = optuna.create_study()
    drawn = []
    for number in range(4):
        study.sampler = choices.sampler(given, number)
        trial = study.ask()
        drawn.append(trial.suggest_float("beta", 0.0, 1.0))
        study.tell(trial, drawn[-1])
    assert len(set(drawn)) == 4 or name in ("auto", "grid")  # a grid's points are queued, not drawn


@pytest.mark.parametrize("name", options("hydra/sweeper/pruner"))
def test_every_pruner_prunes(name: str) -> None:
    made = choices.pruner(chosen(f"hydra/sweeper/pruner={name}")["pruner"])
    assert isinstance(made, optuna.pruners.BasePruner)


@pytest.mark.parametrize("what", ["sampler", "pruner"])
def test_every_file_says_its_name(what: str) -> None:
    for file in (ROOT / "conf/hydra/sweeper" / what).glob("*.yaml"):
        assert yaml.safe_load(file.read_text())["name"] == file.stem


def test_sweep_files_of_hydras_own_plugin_carry_over() -> None:
    target = {"_target_": "optuna.samplers.TPESampler", "seed": 3, "n_startup_trials": 5}
    assert choices.check_sampler(target) == "tpe"
    assert isinstance(choices.sampler(target, 0), optuna.samplers.TPESampler)
    grid = {"_target_": "optuna.samplers.GridSampler", "_partial_": True}
    assert choices.check_sampler(grid) == "grid"


def test_a_missing_package_is_named_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install cmaes"):
        choices.check_sampler({"name": "cmaes"})


def test_a_list_is_a_grid_unless_trials_are_counted() -> None:
    composed = sweep_config(read(BASE[:-1]))
    _, search, space = read_options(composed, ["beta=choice(0.01,0.1)"])
    assert is_grid("auto", search, space)
    _, search, space = read_options(sweep_config(read(BASE)), ["beta=choice(0.01,0.1)"])
    assert not is_grid("auto", search, space)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["hydra/sweeper/sampler=tpee"], ["tpee", "Did you mean 'tpe'"]),
        (["hydra.sweeper.sampler.sed=1"], ["sed"]),
        (["+hydra.sweeper.sampler.x=1", "hydra/sweeper/sampler=tpe"], ["hydra.sweeper.sampler.x", "no such option"]),
        (["+hydra.sweeper.n_trails=3"], ["n_trails", "Did you mean 'n_trials'"]),
        (["hydra.sweeper.n_trials=0"], ["hydra.sweeper.n_trials=0", "at least 1"]),
        (["hydra.sweeper.n_trials=null", "lr=interval(1e-5,1e-3)"], ["hydra.sweeper.n_trials", "how many trials"]),
        (["hydra/sweeper/sampler=grid", "lr=interval(1e-5,1e-3)"], ["grid", "interval"]),
        (["G=interval(2,16)"], ["G=", "whole number"]),
        (["beta=interval(-1,1)"], ["beta=-1", "at least 0"]),
        (["hydra.sweeper.direction=up"], ["hydra.sweeper.direction='up'", "maximize"]),
        (["hydra.sweeper.metrics=[eval/pass@1,eval/length]"], ["one for each"]),
        (
            [
                "hydra.sweeper.metrics=[eval/pass@1,eval/length]",
                "hydra.sweeper.direction=[maximize,minimize]",
                "hydra/sweeper/pruner=median",
            ],
            ["several objectives", "pruner=none"],
        ),
        (
            ["hydra.sweeper.metrics=[eval/pass@1,eval/nevr]", "hydra.sweeper.direction=[maximize,minimize]"],
            ["eval/nevr", "does not measure it"],
        ),
        (["hydra.sweeper.conditions={lr: 'beta > 0'}"], ["hydra.sweeper.conditions.lr", "lr is not searched"]),
        (["hydra.sweeper.constraints=['kl/median < 0.5']"], ["METRIC <= NUMBER"]),
        (["hydra.sweeper.enqueue=[{betta: 0.1}]"], ["hydra.sweeper.enqueue[0]", "Did you mean 'beta'"]),
        (["hydra.sweeper.enqueue=[{beta: 0.5}]"], ["lies outside of choice(0.01, 0.1)"]),
        (["sweep.seeds=[0,0]"], ["sweep.seeds=[0, 0]", "different seeds"]),
        (["sweep.seeds=[0,1]", "seed=0,1"], ["seed is searched", "drop one"]),
        (["sweep.workers=0"], ["sweep.workers=0", "at least 1"]),
        (["sweep.worker=2"], ["sweep.worker", "Did you mean 'sweep.workers'"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_what_is_wrong_is_refused_before_anything_is_written(
    words: list[str], parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        check(read([*BASE, *words]))
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert not list(tmp_path.iterdir())
