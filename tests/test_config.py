"""Values against the declared options: what is refused, what is let through, and that one message comes out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_exp import config as configuration
from grpo_exp.app import check, sweep_jobs
from grpo_exp.command_line import group_folders, options, read
from grpo_exp.compose import compose, is_sweep, known_keys
from grpo_exp.config import Config, build
from grpo_exp.errors import ConfigError, GrpoError
from grpo_exp.options import option
from grpo_exp.schema import make, takes

BASE = ["model=tiny_random"]


@dataclass
class Inner:
    kind: str = option("a kind", choices=("one", "two"))
    share: float = option("a share", low=0, high=1)


@dataclass
class Outer:
    count: int = option("a count", low=1)
    rate: float = option("a rate", above=0)
    sign: float = option("any number")
    flag: bool = option("a switch")
    word: str | None = option("a word")
    words: list[str] = option("some words")
    mode: str = option("a mode", choices=("auto", "off"))
    inner: Inner = option("something within")
    table: dict[str, Any] = option("anything by name")


GOOD: dict[str, Any] = {
    "count": 3,
    "rate": 0.5,
    "sign": -2,
    "flag": True,
    "word": None,
    "words": ["a"],
    "mode": "off",
    "inner": {"kind": "one", "share": 0.5},
    "table": {"x": {"y": [1]}},
}


def test_good_values_become_an_object() -> None:
    made = make(Outer, GOOD, "outer")
    assert isinstance(made, Outer)
    assert isinstance(made.inner, Inner)
    assert (made.count, made.rate, made.sign, made.word, made.words) == (3, 0.5, -2.0, None, ["a"])
    assert made.table == {"x": {"y": [1]}}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", 3.0, 3),
        ("count", "7", 7),
        ("rate", 1, 1.0),
        ("rate", "1e-3", 1e-3),
        ("flag", "true", True),
        ("flag", "no", False),
        ("word", 5, "5"),
        ("words", [], []),
    ],
)
def test_values_that_mean_the_same(name: str, value: Any, expected: Any) -> None:
    made = getattr(make(Outer, {**GOOD, name: value}, "outer"), name)
    assert made == expected
    assert type(made) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", 2.5, "outer.count=2.5: expected a whole number at least 1 (a count)"),
        ("count", 0, "outer.count=0: expected a whole number at least 1 (a count)"),
        ("count", True, "outer.count=true: expected a whole number"),
        ("count", None, "outer.count=null: expected a whole number"),
        ("count", "many", "outer.count='many': expected a whole number"),
        ("count", 2**63, "outer.count=9223372036854775808: expected a whole number"),
        ("count", 10**4000, "outer.count=a number of more than 30 digits"),
        ("count", float("inf"), "outer.count=inf: expected a whole number"),
        ("count", float("nan"), "outer.count=nan: expected a whole number"),
        ("count", "???", "outer.count must be given: a count"),
        ("rate", 0, "outer.rate=0: expected a number greater than 0 (a rate)"),
        ("rate", float("nan"), "outer.rate=nan: expected a number"),
        ("rate", float("inf"), "outer.rate=inf: expected a number"),
        ("rate", 10**400, "outer.rate=a number of more than 30 digits"),
        ("rate", True, "outer.rate=true: expected a number"),
        ("rate", [1], "outer.rate=[1]: expected a number"),
        ("sign", float("-inf"), "outer.sign=-inf: expected a number (any number)"),
        ("flag", 1, "outer.flag=1: expected true or false (a switch)"),
        ("flag", "perhaps", "outer.flag='perhaps': expected true or false"),
        ("word", ["a"], "outer.word=['a']: expected text or null (a word)"),
        ("word", {"a": 1}, "outer.word={'a': 1}: expected text or null"),
        ("words", "a", "outer.words='a': expected a list of texts"),
        ("words", None, "outer.words=null: expected a list of texts"),
        ("words", [["a"]], "expected a list of texts"),
        ("words", [None], "outer.words=[None]: expected a list of texts"),
        (
            "mode",
            False,
            "outer.mode='False': expected auto, off; YAML reads an unquoted off as false, so write \"off\" in quotes",
        ),
        ("mode", "of", "outer.mode='of': expected auto, off. Did you mean 'off'?"),
        ("inner", None, "outer.inner=null"),
        ("inner", 3, "outer.inner=3"),
        ("inner", {"kind": "three", "share": 0}, "outer.inner.kind='three': expected one, two"),
        ("inner", {"kind": "one", "share": 2}, "outer.inner.share=2: expected a number from 0 to 1 (a share)"),
        ("inner", {"kind": "one", "share": "x"}, "outer.inner.share='x': expected a number from 0 to 1"),
        ("inner", {"kind": "one"}, "outer.inner.share"),
        (
            "inner",
            {"kind": "one", "share": 0, "sare": 1},
            "outer.inner.sare: no such option. Valid: kind, share. Did you mean 'share'?",
        ),
        ("table", 3, "outer.table=3"),
        ("table", [1], "outer.table=[1]"),
        ("cuont", 3, "outer.cuont: no such option. Valid: count"),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, int) or value < 2**70 else "huge",
)
def test_what_is_refused(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(Outer, {**GOOD, name: value}, "outer")
    assert expected in str(error.value)


def test_an_option_left_out_or_no_options_at_all() -> None:
    with pytest.raises(ConfigError, match=r"outer.count has no value; its YAML file must give one"):
        make(Outer, {k: v for k, v in GOOD.items() if k != "count"}, "outer")
    with pytest.raises(ConfigError, match=r"outer=3: expected a group of options: count, rate"):
        make(Outer, 3, "outer")


def test_what_a_field_takes_in_words() -> None:
    fields = {f.name: takes(f) for f in Outer.__dataclass_fields__.values()}
    assert fields["count"] == "a whole number at least 1"
    assert fields["rate"] == "a number greater than 0"
    assert fields["word"] == "text or null"
    assert fields["mode"] == "auto, off"
    assert takes(Inner.__dataclass_fields__["share"]) == "a number from 0 to 1"


# ---- composing and building


def test_defaults_of_algorithm_and_model_reach_the_root() -> None:
    config = build(compose(BASE))
    assert (config.root.beta, config.root.lr, config.root.max_new_tokens) == (
        0.04,
        config.model.lr_rl,
        config.model.max_new_tokens,
    )
    config = build(compose([*BASE, "algo=sft"]))
    assert config.root.lr == config.model.lr_sft
    config = build(compose([*BASE, "beta=0.5", "lr=0.1"]))
    assert (config.root.beta, config.algo.beta, config.root.lr) == (0.5, 0.5, 0.1)  # type: ignore[attr-defined]


def test_a_reward_part_can_be_added_and_taken_away() -> None:
    added = build(compose([*BASE, "+reward/part@reward.parts.short=length", "reward.parts.short.weight=0.5"]))
    assert list(added.reward.parts) == ["math", "format", "short"]
    assert added.reward.parts["short"].weight == 0.5
    assert list(build(compose([*BASE, "~reward/part@reward.parts.format"])).reward.parts) == ["math"]


def test_which_metrics_a_run_can_be_judged_by() -> None:
    assert "eval/format" not in configuration.measured(build(compose([*BASE, "~reward/part@reward.parts.format"])))
    assert "eval/maj@k" not in configuration.measured(build(compose([*BASE, "eval=greedy"])))
    for metric in configuration.measured(build(compose(BASE))):
        assert build(compose([*BASE, f"objective.metric={metric}"])).objective.metric == metric


def test_secrets_are_known_by_where_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOP_SECRET", "hunter2hunter2")
    composed = compose([*BASE, "track.entity=${oc.env:TOP_SECRET}", "track.tags=[a,'${oc.env:TOP_SECRET}']"])
    assert configuration.secret_values(composed) == {"hunter2hunter2"}
    assert configuration.resolved(composed)["track"]["entity"] == "hunter2hunter2"


def test_differences_are_named_by_key() -> None:
    one = {"a": 1, "b": {"c": 2, "d": 3}, "e": [1]}
    assert configuration.difference(one, {"a": 1, "b": {"c": 5, "d": 3}, "e": [1], "f": 0}) == ["b.c", "f"]
    assert configuration.difference(one, one) == []


def test_composing_leaves_hydra_as_it_was() -> None:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from grpo_exp.command_line import ROOT

    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        outer = GlobalHydra.instance().hydra
        compose(BASE)
        assert GlobalHydra.instance().hydra is outer
    assert not GlobalHydra.instance().is_initialized()


# ---- sweeps


def test_what_is_a_sweep() -> None:
    assert is_sweep(read(["-m", "beta=0.1,0.2"]))
    assert is_sweep(read(["sweeps=beta_grid"]))
    assert is_sweep(read(["hydra.mode=MULTIRUN"]))
    assert not is_sweep(read(["beta=0.1"]))
    assert not is_sweep(read(["hydra.run.dir=x"]))


def test_every_value_of_a_sweep_is_checked_once() -> None:
    jobs = sweep_jobs(read(["-m", "beta=0.1,0.2", "G=2,4,8", "lr=range(1,4)", "algo=grpo", "hydra.run.dir=x"]))
    assert len(jobs) < 2 * 3 * 3
    words = {word for job in jobs for word in job.overrides}
    assert {"beta=0.1", "beta=0.2", "G=2", "G=4", "G=8", "lr=1", "lr=2", "lr=3"} <= words
    with pytest.raises(ConfigError, match="G=1"):
        check(read(["-m", *BASE, "beta=0.1,0.2", "G=2,1"]))


# ---- anything at all

ODD_KEYS = ["betta", "a.b", "hydra.run.dir", "hydra.job.num", "data.path", "x", "", "@", "a@b"]
KEYS = st.deferred(lambda: st.sampled_from([*known_keys(read(BASE)), *ODD_KEYS]))
ODD = """null ??? {} [] [1,2] {a:1} a,b 1,2 '' 0 -1 2.5 nan inf 1e999 off ${beta} ${nope} ${oc.env:HOME} ${now:%Y} range(1,3)
choice(a,b) interval(0,1) glob(*) \\ ' " ( ../x"""
VALUES = st.one_of(
    st.sampled_from(ODD.split()),
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=3).map(str),
)
WORDS = st.builds(lambda sign, key, value: f"{sign}{key}={value}", st.sampled_from(["", "", "", "+", "++", "~"]), KEYS, VALUES)
GROUP_WORDS = st.sampled_from([f"{group}={name}" for group in group_folders() for name in options(group)])


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(words=st.lists(st.one_of(WORDS, GROUP_WORDS), min_size=1, max_size=2), sweep=st.sampled_from([False] * 5 + [True]))
def test_any_overrides_give_a_configuration_or_one_message(
    words: list[str], sweep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        found = check(read([*(["-m"] if sweep else []), *BASE, *words]))
    except GrpoError as error:
        assert error.exit_code == 2
        assert "\n" not in str(error).strip()
    else:
        assert found is None or isinstance(found, Config)
