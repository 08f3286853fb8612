"""Hydra's sweep syntax as a search space, and values as overrides again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from grpo_exp.command_line import parse
from grpo_exp.errors import ConfigError
from grpo_exp.sweep.space import Comparison, Space


def read(*words: str, conditions: dict[str, str] | None = None, **params: object) -> Space:
    return Space.read(words, params, conditions or {})


def test_each_kind_of_override_becomes_its_distribution() -> None:
    space = read("a=choice(1,2.5,x,true)", "b=1,2", "c=interval(0.001,1)", "d=int(interval(1,8))", "e=range(0,10,3)")
    assert space.distributions == {
        "a": CategoricalDistribution([1, 2.5, "x", True]),
        "b": CategoricalDistribution([1, 2]),
        "c": FloatDistribution(0.001, 1),
        "d": IntDistribution(1, 8),
        "e": IntDistribution(0, 9, step=3),
    }
    logs = read("lr=tag(log,interval(1e-5,1e-2))", "G=int(tag(log,interval(2,64)))", "t=range(0.5,1.0,0.25)").distributions
    assert logs["lr"] == FloatDistribution(1e-5, 1e-2, log=True)
    assert logs["G"] == IntDistribution(2, 64, log=True)
    assert logs["t"] == FloatDistribution(0.5, 0.75, step=0.25)  # as everywhere in Hydra, the end is left out


def test_what_is_not_searched_is_fixed_and_the_command_line_replaces_the_file() -> None:
    space = read("beta=0.1,0.2", "algo=grpo", beta="tag(log,interval(0.01,1))", lr=1e-4, G="4,8")
    assert space.distributions["beta"] == CategoricalDistribution([0.1, 0.2])
    assert space.fixed == ["lr=0.0001", "algo=grpo"]
    assert list(space.distributions) == ["beta", "G"]


def test_a_grid_goes_through_every_point_with_the_last_key_fastest() -> None:
    points = list(read("beta=0.1,0.2", "G=range(2,5)").points())
    assert points == [{"beta": b, "G": g} for b in (0.1, 0.2) for g in (2, 3, 4)]
    assert read("beta=interval(0,1)").size is None


@given(st.lists(st.one_of(st.integers(-1000, 1000), st.floats(-1e6, 1e6), st.booleans()), min_size=1, max_size=5))
def test_values_come_back_as_they_were_written(values: list[object]) -> None:
    written = [str(v).lower() for v in values]
    space = read(f"key={','.join(written)}") if len(written) > 1 else read(f"key=choice({written[0]})")
    for point in space.points():
        (word,) = space.words(point)
        assert parse(word).value() == point["key"]


def test_names_and_lists_keep_their_spelling() -> None:
    space = read("algo=grpo,dr_grpo", "+x='a b','c=d'", "y=[1,2],[3]")
    assert [space.words(point)[0] for point in read("algo=grpo,dr_grpo").points()] == ["algo=grpo", "algo=dr_grpo"]
    words = [word for point in space.points() for word in space.words(point)]
    assert {"+x='a b'", "+x='c=d'", "y=[1,2]", "y=[3]"} <= set(words)


def test_a_condition_leaves_a_key_out_and_a_grid_has_no_point_twice() -> None:
    space = read("beta=0,0.1", "k=k1,k2", conditions={"k": "beta > 0"})
    assert list(space.points()) == [{"beta": 0}, {"beta": 0.1, "k": "k1"}, {"beta": 0.1, "k": "k2"}]
    assert space.described()["k"] == "choice(k1, k2) where beta > 0"


@pytest.mark.parametrize(
    ("words", "conditions", "parts"),
    [
        (["beta=range(1,1)"], {}, ["beta=range(1,1)", "empty"]),
        (["beta=tag(log,interval(0,1))"], {}, ["beta=tag(log,interval(0,1))"]),
        (["beta=interval(1.5,0.5)"], {}, ["beta=interval(1.5,0.5)"]),
        (["beta=1,2"], {"beta": "G > 1"}, ["hydra.sweeper.conditions.beta", "G", "not searched"]),
        (["beta=1,2"], {"bta": "beta > 1"}, ["bta", "Did you mean 'beta'"]),
        (["beta=1,2", "G=1,2"], {"beta": "G > 1", "G": "beta > 1"}, ["circle"]),
        (["beta=1,2", "G=1,2"], {"beta": "G is 1"}, ["KEY OP VALUE"]),
    ],
)
def test_what_cannot_be_searched_is_refused(words: list[str], conditions: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        list(Space.read(words, {}, conditions).points())
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_points_given_by_hand_must_lie_inside() -> None:
    space = read("beta=interval(0.0,1.0)", "G=4,8")
    assert space.check({"beta": 0.5, "G": 8}, "x") == {"beta": 0.5, "G": 8}
    for point, part in (({"beta": 2.0}, "interval(0, 1)"), ({"G": 5}, "choice(4, 8)"), ({"bet": 1}, "Did you mean 'beta'")):
        with pytest.raises(ConfigError, match="x: ") as error:
            space.check(point, "x")
        assert part in str(error.value)


def test_comparisons() -> None:
    assert Comparison.read("kl/median <= 0.5", "x") == Comparison("kl/median", "<=", 0.5)
    assert Comparison.read("algo==ppo", "x").holds("ppo")
    assert not Comparison.read("beta > 0", "x").holds("text")
    assert not Comparison.read("beta > 0", "x").holds(None)
    assert Comparison.read("on == true", "x").holds(True)


def test_corners_have_every_value_and_both_ends() -> None:
    corners = read("beta=interval(0.1,0.9)", "G=2,4,8").corners()
    assert {0.1, 0.9} < {c["beta"] for c in corners} and {c["G"] for c in corners} == {2, 4, 8}
