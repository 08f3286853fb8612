"""The code reward: where the program is, kinds of tests, values, and what is refused before a model loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import call

from grpo_exp import pool
from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError, DataError
from grpo_exp.rewards.base import RewardSum
from grpo_exp.rewards.code import CodeReward, program
from grpo_exp.sandbox import bubblewrap, cases

REFUSAL = bubblewrap.refusal()
pytestmark = pytest.mark.xdist_group("sandbox")
sandboxed = pytest.mark.skipif(REFUSAL is not None, reason=f"no sandbox here: {REFUSAL}")
EITHER = pytest.mark.parametrize(
    "sandbox", [pytest.param("none", marks=pytest.mark.slow), pytest.param("bubblewrap", marks=sandboxed)]
)


def reward(**options: object) -> CodeReward:
    values = {"kind": "code", "weight": 1.0, "role": "outcome", "tests": "tests", "entry_point": "entry", "setup": "setup"}
    values |= {"partial": "all", "right": 1.0, "wrong": -0.5, "missing": -1.0, "seconds": 2.0, "row_seconds": 5.0}
    values |= {"budget": 60.0, "memory": 512, "disk": 8, "processes": 8, "sandbox": "none" if REFUSAL else "bubblewrap"}
    return CodeReward(**{**values, **options})  # type: ignore[arg-type]


def completions(texts: list[str], **columns: Any) -> Completions:
    rows = len(texts)
    return Completions([Example("task", "?", columns=columns)] * rows, ["?"] * rows, texts, [[0]] * rows, [True] * rows)


def value(source: str, tests: Any, part: CodeReward | None = None, **columns: Any) -> float | None:
    return (part or reward()).score(completions([f"```python\n{source}\n```"], tests=tests, **columns))[0]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("So:\n```py\nx = 1\n```\nor rather\n```\nx = 2\n```\nas said.", "x = 2"),
        ("x = 1", "x = 1"),
        ("```python\nx = 1", None),
        ("```python\nx = 1\n```\n```python\nx = 2", None),
        ("```python\n```", None),
        ("", None),
        (" \n", None),
        ("  ```python\n  x = 1\n  ```", "  x = 1"),
    ],
)
def test_the_last_whole_block_is_the_program(text: str, found: str | None) -> None:
    assert program(text) == found


MBPP = ["assert add([1], 2) == {3}", "assert add([2, 2], 5) == set([7])", "assert add([], 1) == set()"]
ADD = "def add(items, n):\n    return {item + n for item in items}"
RIGHT = {
    "mbpp": (ADD, MBPP),
    "mbpp in JSON": (ADD, json.dumps(MBPP)),
    "humaneval": (
        "import math\ndef root(x: float) -> float:\n    return math.sqrt(x)",
        "METADATA = {}\ndef check(candidate):\n    assert abs(candidate(2.0) - 1.414214) < 1e-6 and candidate(9) == 3\n",
    ),
    "apps, written": ("print(sum(map(int, input().split())))\n", {"inputs": ["3 4\n", "5 6"], "outputs": ["7\n", "11"]}),
    "apps, called": ("def add(a, b): return a + b", {"inputs": [[1, 2], ["a", "b"]], "outputs": [3, "ab"], "fn_name": "add"}),
    "apps, method": (
        "class Solution:\n    def pairs(self, n):\n        return [(i, i) for i in range(n)]",
        {"inputs": [[2]], "outputs": [[[0, 0], [1, 1]]], "fn_name": "Solution.pairs"},
    ),
    "methods": (
        "class Bank:\n    def __init__(self): self.balance = 0\n    def put(self, n): self.balance += n; return self\n"
        "    def __len__(self): return 3\n    def __getitem__(self, i): return i * 2",
        ["b = Bank()\nassert b.put(3).put(4).balance == 7 and len(b) == 3 and b[4] == 8"],
    ),
    "raises": ("def f(x):\n    if x < 0: raise ValueError(f'no {x}')\n    return x", [
        "try:\n    f(-1)\nexcept ValueError as error:\n    assert str(error) == 'no -1'\nelse:\n    assert False",
    ]),
    "in place": ("def f(a, d): a.sort(); d['x'] = 1", ["a, d = [3, 1], {}\nf(a, d)\nassert a == [1, 3] and d == {'x': 1}"]),
    "yields": ("def f(n): yield from range(n)", ["assert list(f(3)) == [0, 1, 2] and sum(f(4)) == 6"]),
    "large numbers": ("def f(n): return 7 ** n", ["assert f(9000) == 7 ** 9000"]),
    "kinds of data": (
        "def f(x): return x",
        ["for x in (1.5, 2, True, None, 'é', b'\\x00', 1j, (1, [2]), {1: {2}}, frozenset([1]), float('inf')):\n"
         "    assert f(x) == x and type(f(x)) is type(x)"],
    ),
    "modules of the tests": ("math = None\ndef f(x): return x / 3", ["import math\nassert math.isclose(f(1), 1 / 3)"]),
    "named as a module": ("def calendar(n): return n + 1", ["assert calendar(1) == 2"]),
    "subclasses": (
        "from collections import Counter as f, namedtuple\nP = namedtuple('P', 'x y')\ndef g(): return P(1, 2)",
        ["assert f('aab') == {'a': 2, 'b': 1} and g() == (1, 2)"],
    ),
    "threads": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\n"
        "def main(): print(depth(5000))\ndef depth(n): return 0 if n == 0 else 1 + depth(n - 1)\n"
        "t = threading.Thread(target=main); t.start(); t.join()",
        [{"input": "", "output": "5000"}],
    ),
    "files of its own": ("open('x', 'w').write(input()); print(open('x').read())", [{"input": "a\n", "output": "a"}]),
}  # fmt: skip


@EITHER
def test_right_programs_are_right(sandbox: str) -> None:
    part = reward(sandbox=sandbox)
    items = [Example(name, "?", columns={"tests": tests, "entry": "root"}) for name, (_, tests) in RIGHT.items()]
    texts = [f"```python\n{source}\n```" for source, _ in RIGHT.values()]
    rows = len(texts)
    values = part.score(Completions(items, ["?"] * rows, texts, [[0]] * rows, [True] * rows))
    assert dict(zip(RIGHT, values, strict=True)) == dict.fromkeys(RIGHT, 1.0)


@EITHER
def test_wrong_programs_are_wrong(sandbox: str) -> None:
    wrong = [
        "def add(items, n): return set()",
        "def add(items): pass",
        "def sub(): pass",
        "syntax error",
        "raise SystemExit(0)",
    ]
    texts = [*wrong, "while True: pass", f"```\n{ADD}\n```", "```python\nunfinished", ""]
    pool.stops()
    values = reward(sandbox=sandbox, seconds=1.0).score(completions(texts, tests=MBPP))
    assert values == [-0.5] * 6 + [1.0, -1.0, -1.0]
    assert pool.stops() == 1  # the endless one


def test_partial_credit_is_the_share_of_the_weight() -> None:
    tests = [
        {"code": "assert f(1) == 1", "weight": 3},
        {"code": "assert f(2) == 4"},
        {"input": "", "output": "hello", "weight": 4},
    ]
    share = reward(partial="share")
    assert value("def f(n): return n * n\nprint('hello')", tests, share) == 1.0
    assert value("def f(n): return n\nprint('hello')", tests, share) == pytest.approx(-0.5 + 1.5 * 7 / 8)
    assert value("def f(n): return 0", tests, share) == -0.5
    assert value("def f(n): return n\nprint('hello')", tests) == -0.5  # partial=all


def test_setup_runs_with_the_tests_alone() -> None:
    tests = ["assert f(2) == double(2)"]
    assert value("def f(n): return n * 2", tests, setup="def double(n): return 2 * n") == 1.0
    assert value("def f(n): return double(n)", tests, setup=["def double(n): return 2 * n"]) == -0.5


def test_a_row_without_tests_does_not_count() -> None:
    assert value("x = 1", None) is None and value("x = 1", []) is None and value("x = 1", " ") is None


def test_equal_programs_run_once() -> None:
    part, jobs = reward(), []
    run = part._verdicts
    part._verdicts = lambda rows: jobs.extend(rows) or run(rows)  # type: ignore[method-assign,func-returns-value]
    assert part.score(completions([ADD, "x = 1", ADD, ADD], tests=MBPP)) == [1.0, -0.5, 1.0, 1.0]
    assert len(jobs) == 2


def test_stopped_programs_are_counted_by_the_reward() -> None:
    made = RewardSum({"code": reward(seconds=0.5)})(completions(["while True: pass", "while 1: pass", ADD], tests=MBPP))
    assert made.timeouts == 2 and made.outcome.tolist() == [-0.5, -0.5, 1.0]


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        (5, "are int"),
        ([{"input": "1"}], "have one with input; expected"),
        ([{}], "nothing"),
        ([7], "no text: 7"),
        ([{"code": "x", "weight": -1}], "weight of -1"),
        ({"inputs": [1], "outputs": []}, "not two lists of one length"),
    ],
)
def test_tests_of_no_known_form_are_told_with_their_item(tests: Any, said: str) -> None:
    with pytest.raises(DataError, match="item task: field 'tests'") as error:
        value("x = 1", tests)
    assert said in str(error.value)


def test_forms_of_tests_become_cases() -> None:
    assert cases.read('{"inputs": [["1", "2"]], "outputs": [3]}') == [{"input": "1\n2", "output": "3", "weight": 1.0}]
    assert cases.read("[1, 2] == f()") == [{"code": "[1, 2] == f()", "weight": 1.0}]
    assert cases.read(None) == [] == cases.read("")


def test_without_bubblewrap_it_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "_bwrap", lambda: None)
    with pytest.raises(ConfigError) as error:
        reward(sandbox="bubblewrap")
    for part in ("reward.sandbox=bubblewrap", "apt-get install bubblewrap", "reward.sandbox=none", "run card"):
        assert part in str(error.value)
    assert reward(sandbox="none").about() == {"sandbox": "none"}


def test_where_bubblewrap_fails_it_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A bwrap that may not make namespaces, as in a container."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: Creating new namespace failed: Operation not permitted' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "_bwrap", lambda: str(fake))
    bubblewrap._failure.cache_clear()
    with pytest.raises(ConfigError, match=r"Creating new namespace failed.*seccomp=unconfined.*reward.sandbox=none"):
        reward(sandbox="bubblewrap")
    bubblewrap._failure.cache_clear()


@EITHER
def test_it_explains_which_tests_passed_and_why_not(sandbox: str) -> None:
    part = reward(sandbox=sandbox, seconds=1.0)
    tests = ["assert f(1) == 1", "assert f(2) == 4", "assert f(0) == 0"]
    item = Example("task", "?", columns={"tests": tests})
    said = {
        "def f(n): return n * n": "right, 1: passes 3 of 3 tests; read 'def f(n): return n * n'",
        "def f(n): return n": "wrong, -0.5: passes 2 of 3 tests; test 2: AssertionError; read ",
        "def f(n):\n    while n > 1: pass\n    return n": "1 of 3 tests; test 2: the program took too long; test 3: not",
        "import nothing_of_the_kind": "passes 0 of 3 tests; test 1: ModuleNotFoundError: No module",
        "": "missing, -1: no program",
        "```python\ndef f(n): return n": "missing, -1: no program, or a fence that is not closed",
        "x" * 70_000: "wrong, -0.5: a program of more than 65,536 characters is not run",
    }
    for text, expected in said.items():
        assert expected in part.explain(text, item), part.explain(text, item)
    assert part.explain("x = 1", Example("bare", "?")) == "does not apply: the item has no tests"
    half = reward(sandbox=sandbox, partial="share").explain("def f(n): return 0", item)
    assert half.startswith("partly right, 0: passes 1 of 3 tests; test 1: AssertionError; test 2: AssertionError; read")


def test_data_without_tests_is_refused_before_a_model_loads() -> None:
    part, bare = reward(), Example("bare", "?", columns={"test": ["assert True"], "text": "x"})
    with pytest.raises(DataError, match=r"tests='tests'.*no item has any\. Did you mean 'test'\? There are: test, text"):
        part.check_data([bare])
    some = Example("some", "?", columns={"tests": ["assert True"]})
    part.check_data([bare, some])
    with pytest.raises(DataError, match="item odd: field 'tests'"):
        part.check_data([some, Example("odd", "?", columns={"tests": 5})])


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"reward\.parts\.code\.right=-1"):
        reward(right=-1.0)


@pytest.mark.slow
def test_a_run_trains_on_it_and_its_card_says_how_programs_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": f"write f{i}", "tests": [f"assert f() == {i}"]} for i in range(12)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    words = [
        *("reward=code", "reward.sandbox=none", "data=file", f"data.path={tmp_path / 'tasks.jsonl'}", "data.answer=null"),
        *("model=tiny_random", "steps=1", "prompts_per_step=2", "G=2", "max_new_tokens=4", "track=quiet", "track.wandb=off"),
        f"hydra.run.dir={tmp_path / 'run'}",
    ]
    done = call(capsys, *words)
    assert done.code == 0, done.err
    card = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert card["reward"]["parts"]["code"]["sandbox"] == "none"
    lines = (tmp_path / "run" / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["reward/part/code"] for line in lines} == {0.0}
