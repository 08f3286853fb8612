"""What detectors are shown of a run, and what becomes of what they find."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from courses import standard

from grpo_exp.command_line import read
from grpo_exp.compose import compose
from grpo_exp.config import build
from grpo_exp.health.base import ACTIONS, Detector, Seen
from grpo_exp.health.course import FIRST, NEWEST, Course
from grpo_exp.health.monitor import Monitor
from grpo_exp.track.base import Row

ROOT = Path(__file__).parents[2]
NAMES = sorted(p.stem for p in (ROOT / "grpo_exp/health/detectors").glob("*.py") if p.stem != "__init__")
CHOICES = sorted(p.stem for p in (ROOT / "conf/health").glob("*.yaml"))


def row(step: int, kind: str = "train", **metrics: Any) -> Row:
    return {"step": step, "kind": kind, "tokens": 10 * step, "seconds": 1.0 * step, **metrics}


def course(values: list[float], name: str = "x") -> Course:
    made = Course({"lr": 0.01, "algo": {"beta": 2}, "G": 8, "on": True}, 100)
    for step, value in enumerate(values, 1):
        made.add_metrics(row(step, **{name: value}))
    return made


class Above(Detector):
    """Finds x above 5."""

    title, metric, needs = "x is high", "x", ("x",)

    def look(self, course: Course) -> Seen | None:
        value = course.train["x"][-1][1]
        return Seen(course.since("x", lambda x: x > 5), f"x is {value:g}", "it is", {"x": value}) if value > 5 else None


# ---- the course


def test_windows_are_of_the_newest_values_and_whole() -> None:
    made = course([1, 2, 3, 4])
    assert made.window("x", 3) == [2, 3, 4] and made.start("x", 3) == [1, 2, 3]
    assert made.window("x", 5) is None and made.start("x", 5) is None and made.window("y", 1) is None
    assert "y" not in made.train, "a question leaves no trace"


def test_within_counts_steps_and_not_values() -> None:
    made = course([1, 2])
    made.add_metrics(row(10, x=3))
    assert made.within("x", 5) == [3] and made.within("x", 9) == [2, 3] and made.within("x", 5, before=3) == []
    assert made.within("x", 5, before=5) == [1, 2] and made.within("x", 1, before=8) == [2] and made.within("y", 5) == []


def test_since_is_the_beginning_of_the_stretch_up_to_now() -> None:
    made = course([9, 1, 9, 9])
    assert made.since("x", lambda x: x > 5) == 3 and made.since("x", lambda x: x < 5) == 4
    assert made.since("y", lambda x: True) == 4


def test_what_is_not_finite_is_in_no_series() -> None:
    """The loop has NaN where the file has null."""
    for value in (math.nan, math.inf, None):
        made = course([1.0])
        made.add_metrics(row(2, x=value, name="text", flag=True))
        assert made.not_finite == [(2, "x")] and made.train["x"] == [(1, 1.0)] and set(made.train) == {"x"}


def test_evaluations_and_samples_are_kept_apart_and_few() -> None:
    made = course([1])
    made.add_metrics(row(1, "eval", x=7))
    assert made.evals["x"] == [(1, 7.0)] and made.train["x"] == [(1, 1.0)]
    for step in range(1, 40):
        made.add_samples([{"step": step, "completion": "a"}, {"step": step, "completion": "b"}])
        made.add_evaluation([{"step": step}])
    assert [s for s, _ in made.samples] == list(range(40 - NEWEST, 40))
    assert [s for s, _ in made.first_samples] == list(range(1, FIRST + 1))
    assert [s for s, _ in made.evaluated] == [1, 39]
    assert [r["step"] for r in made.newest_rows(2)] == [38, 38, 39, 39]


@pytest.mark.parametrize(
    ("key", "factor", "whole", "word"),
    [
        ("lr", 1 / 3, False, "lr=0.00333"),
        ("algo.beta", 2, False, "algo.beta=4"),
        ("G", 1.3, True, "G=10"),
        ("steps", 2, True, "steps times 2"),
        ("on", 2, False, "on times 2"),
        ("algo.no.way", 0.5, False, "algo.no.way times 0.5"),
    ],
)
def test_what_to_try_is_an_override_where_the_value_is_known(key: str, factor: float, whole: bool, word: str) -> None:
    assert course([]).scaled(key, factor, whole) == word


# ---- the monitor


def told(monitor: Monitor, values: list[float]) -> list[tuple[int, int]]:
    """(found, since) of what is found in a run of these values."""
    found = []
    for step, value in enumerate(values, 1):
        monitor.metrics(row(step, x=value))
        found += [(f.step, f.seen.since) for f in monitor.look()]
    return found


def test_a_finding_is_told_once_and_at_its_step() -> None:
    monitor = Monitor({"above": Above("warn")})
    monitor.start({"steps": 9}, {})
    assert told(monitor, [1, 6, 7, 1, 8]) == [(2, 2)]
    assert list(monitor.found) == ["above"] and json.loads(json.dumps(monitor.found["above"]))["text"] == "x is 6"
    assert not Monitor({"above": Above("off")}).detectors


def test_a_run_without_the_metric_is_not_looked_at() -> None:
    monitor = Monitor({"above": Above("warn")})
    monitor.start({}, {})
    monitor.metrics(row(1, y=9))
    assert monitor.look() == []


def test_a_run_that_goes_on_knows_its_course_and_what_was_told(tmp_path: Path) -> None:
    lines = [row(s, x=x) for s, x in enumerate([1, 6, 6], 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "samples.jsonl").write_text('{"step": 1, "completion": "a"}\n{"step": 1}\n{"step": 2}\n')
    monitor = Monitor({"above": Above("warn")}, tmp_path)
    monitor.start({"resumed_from": 3}, {})
    assert monitor.course.train["x"] == [(1, 1.0), (2, 6.0), (3, 6.0)]
    assert [(s, len(rows)) for s, rows in monitor.course.samples] == [(1, 2), (2, 1)]
    monitor.metrics(row(4, x=6))
    assert [(f.step, f.seen.since) for f in monitor.look()] == [(4, 2)]
    (tmp_path / "health.jsonl").write_text(json.dumps(monitor.found["above"]) + "\n")
    monitor.start({"resumed_from": 3}, {})
    monitor.metrics(row(4, x=6))
    assert monitor.look() == [] and "above" in monitor.found
    monitor.start({}, {})
    assert not monitor.course.train and not monitor.found, "a run that begins anew knows nothing"


# ---- by listing


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_of_the_group_is_of_every_detector(choice: str) -> None:
    health = build(compose(read([f"health={choice}"]))).health
    assert sorted(health.detectors) == NAMES
    assert health.looking(False) == (health.detectors if health.active else {})
    assert all(one.action in ACTIONS for one in health.detectors.values())


@pytest.mark.parametrize("name", NAMES)
def test_every_detector_says_what_it_is(name: str) -> None:
    detector = standard()[name]
    kind = type(detector)
    assert (kind.title and kind.title[0].islower()) or kind.title.split()[0].isupper(), "it stands in a sentence"
    assert isinstance(kind.needs, tuple) and (kind.metric in (ROOT / "docs/metrics.md").read_text())
    assert kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}("), "a docstring of its own"
    monitor = Monitor({name: detector})
    monitor.start({}, {})
    assert monitor.look() == [], "a run that has shown nothing is well"
    monitor.metrics(row(1))
    assert monitor.look() == []


def test_the_values_stand_once_under_a_comment_each() -> None:
    text = (ROOT / "conf/health/standard.yaml").read_text().splitlines()
    for number, line in enumerate(text):
        key = line.strip().partition(":")[0]
        if line.strip() and not line.strip().startswith("#") and key not in ("rollback", "detectors"):
            assert text[number - 1].strip().startswith("#"), line
    assert sorted(yaml.safe_load("\n".join(text))["detectors"]) == NAMES
