"""The user's own reward function: what it is called with, what it may return, and what goes wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError, RewardError
from grpo_exp.rewards.base import RewardSum
from grpo_exp.rewards.custom import CustomReward


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    return tmp_path


def part(source: str, name: str = "score", file: str = "mine.py") -> CustomReward:
    Path(file).write_text(source, encoding="utf-8")
    return made(f"{file}:{name}")


def made(path: str | None) -> CustomReward:
    rest: dict[str, Any] = {"kind": "custom", "weight": 1.0, "role": "outcome", "style": "grpo_exp", "kwargs": {}}
    return CustomReward(path=path, data_source="mine", **rest)


def completions(columns: dict[str, object] | None = None) -> Completions:
    examples = [Example("a", "one?", "1", columns=columns or {}), Example("b", "two?", None)]
    return Completions(examples, ["P1", "P2"], ["one", "two!"], [[5, 6], [7]], [True, False])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def score(completions): return [len(c) for c in completions]", [3.0, 4.0]),
        ("def score(prompts): return [float(p[1]) for p in prompts]", [1.0, 2.0]),
        ("def score(token_ids): return [sum(t) for t in token_ids]", [11.0, 7.0]),
        ("def score(completion_ids, token_ids): return [float(completion_ids == token_ids)] * 2", [1.0, 1.0]),
        ("def score(finished): return finished", [1.0, 0.0]),
        ("def score(answers): return [None if a is None else float(a) for a in answers]", [1.0, None]),
        ("def score(examples): return [ord(e.id) for e in examples]", [97.0, 98.0]),
        ("def score(level): return level", [3.0, None]),
        ("def score(*, level, completions): return level", [3.0, None]),
        ("def score(completions, scale=2, level=9): return [scale, level[0]]", [2.0, 3.0]),
        ("def score(completions, *more): return [len(more)] * 2", [0.0, 0.0]),
        ("def score(**all): return [len(all), float('level' in all)]", [8.0, 1.0]),
        ("def score(prompts, **rest): return [float('prompts' in rest), len(rest)]", [0.0, 7.0]),
        ("score = lambda completions: (1, 0)", [1.0, 0.0]),
        ("class Judge:\n  def __call__(self, completions): return [1, 2]\nscore = Judge()", [1.0, 2.0]),
        ("import functools\ndef f(k, completions): return [k] * 2\nscore = functools.partial(f, 4)", [4.0, 4.0]),
        ("import numpy as np\ndef score(finished): return [np.float32(0.5), np.bool_(True)]", [0.5, 1.0]),
        ("import numpy as np\ndef score(finished): return np.array([0.5, 1])", [0.5, 1.0]),
        ("import torch\ndef score(finished): return [torch.tensor(0.5), torch.tensor(2)]", [0.5, 2.0]),
        ("import torch\ndef score(finished): return torch.tensor([0.5, 2])", [0.5, 2.0]),
        (
            "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n  x: int\n"
            "def score(completions): return [A(1).x, A(2).x]",
            [1.0, 2.0],
        ),
    ],
)
def test_functions(body: str, expected: list[float | None]) -> None:
    assert part(body).score(completions({"level": 3})) == expected


def test_a_column_does_not_hide_a_fixed_name() -> None:
    assert part("def score(answers): return [float(answers[0] == '1')] * 2").score(completions({"answers": "other"})) == [
        1.0,
        1.0,
    ]


def test_the_function_may_import_its_neighbours_and_a_path_may_be_absolute(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "neighbour_of_mine.py").write_text("VALUE = 7", encoding="utf-8")
    source = "from neighbour_of_mine import VALUE\ndef score(completions): return [VALUE] * 2"
    assert part(source, file=str(folder / "sub" / "mine.py")).score(completions()) == [7.0, 7.0]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (None, ["reward.path=null", "reward.path=my_rewards.py:score"]),
        ("mine.py", ["reward.path='mine.py'", "file.py:function"]),
        (":score", ["file.py:function"]),
        ("mine.py:", ["file.py:function"]),
        ("mien.py:score", ["no file", "mien.py", "Did you mean 'mine.py'?", "A relative path starts at"]),
        ("nofolder/x.py:score", ["no file", "nofolder"]),
        ("mine.py:scor", ["has no 'scor'", "Did you mean 'score'?", "other"]),
        ("mine.py:LIMIT", ["has a int, not a function", "score, other"]),
        ("mine.txt:score", ["must end in .py"]),
        ("positional.py:score", ["'a' is positional-only", "by name"]),
        ("raises.py:score", ["raises.py", "ZeroDivisionError in line 3"]),
        ("syntax.py:score", ["syntax.py", "SyntaxError in line 2"]),
        ("exits.py:score", ["exits.py", "SystemExit in line 1"]),
        ("imports.py:score", ["imports.py", "ModuleNotFoundError in line 1", "no_such_module"]),
    ],
)
def test_mistakes_are_told_before_the_run(path: str | None, words: list[str]) -> None:
    files = {
        "mine.py": "LIMIT = 3\ndef score(completions): ...\ndef other(completions): ...\ndef _hidden(): ...",
        "mine.txt": "",
        "positional.py": "def score(a, /): ...",
        "raises.py": "x = 1\ndef f():\n    return x / 0\nf()",
        "syntax.py": "x = 1\ndef f(:\n",
        "exits.py": "raise SystemExit('no arguments')",
        "imports.py": "import no_such_module",
    }
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        made(path)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_an_argument_that_nothing_offers_is_named_with_what_there_is() -> None:
    rewards = RewardSum({"mine": part("def score(completions, levle): return [1, 1]")})
    with pytest.raises(ConfigError) as error:
        rewards(completions({"level": 3}))
    for word in ("reward.path='mine.py:score'", "'levle'", "Did you mean 'level'?", "prompts", "examples"):
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def score(completions):\n  return [1 / 0]", ["ZeroDivisionError in line 2", "mine.py:score"]),
        ("import json\ndef score(completions):\n  return json.loads('{')", ["JSONDecodeError in line 3"]),
        ("def score(completions): return [1.0]", ["'mine' returned 1 values for 2 samples"]),
        ("def score(completions): return 1.0", ["'mine' returned float"]),
        ("def score(completions): return None", ["'mine' returned NoneType"]),
        ("def score(completions): return [float('nan'), 1]", ["'mine' returned nan for sample 0", "'one'"]),
        ("def score(completions): return [1, 'x']", ["'mine' returned 'x' for sample 1", "'two!'"]),
        ("import torch\ndef score(completions): return torch.ones(2, 2)", ["returned [1.0, 1.0] for sample 0"]),
    ],
)
def test_failures_at_run_time_name_line_and_sample(body: str, words: list[str]) -> None:
    with pytest.raises(RewardError) as error:
        RewardSum({"mine": part(body)})(completions())
    assert all(word in str(error.value) for word in words), str(error.value)


def test_the_values_reach_the_sum() -> None:
    result = RewardSum({"mine": part("def score(answers): return [a and 0.5 for a in answers]")})(completions())
    torch.testing.assert_close(result.total, torch.tensor([0.5, 0.0]))
    assert result.parts["mine"].isnan().tolist() == [False, True]


@pytest.mark.parametrize("body", ["raise SystemExit(0)", "import sys; sys.exit(0)"])
def test_a_function_that_exits_does_not_end_the_run_as_done(body: str) -> None:
    with pytest.raises(RewardError, match="SystemExit"):
        RewardSum({"mine": part(f"def score(completions):\n    {body}\n")})(completions())


def test_a_function_may_change_the_lists_it_is_given() -> None:
    source = "def score(completions, token_ids):\n    completions.clear()\n    token_ids[0].clear()\n    return [1.0, 2.0]\n"
    seen = completions()
    assert RewardSum({"mine": part(source)})(seen).total.tolist() == [1.0, 2.0]
    assert seen == completions()


# ---- a class that remembers

COUNTS = """
class Counts:
    def __init__(self):
        self.calls = {"n": 0}

    def __call__(self, completions):
        self.calls["n"] += 1
        return [float(self.calls["n"])] * len(completions)

    def state_dict(self):
        return self.calls

    def load_state_dict(self, state):
        self.calls = state
"""


def test_a_class_remembers_between_calls_and_gives_its_memory_back() -> None:
    rewards = RewardSum({"custom": part(COUNTS, "Counts")})
    assert [rewards(completions()).total.tolist() for _ in range(2)] == [[1, 1], [2, 2]]
    kept = rewards.state()
    assert kept == {"custom": {"n": 2}}
    rewards(completions())
    assert kept == {"custom": {"n": 2}}, "what was kept moves on with the object"
    rewards.load(kept)
    rewards(completions())
    assert rewards.state() == {"custom": {"n": 3}} and kept == {"custom": {"n": 2}}


def test_what_is_scored_in_an_evaluation_is_forgotten() -> None:
    rewards = RewardSum({"custom": part(COUNTS, "Counts")})
    rewards(completions())
    with pytest.raises(ZeroDivisionError), rewards.unmoved():
        assert rewards(completions()).total.tolist() == [2, 2]
        raise ZeroDivisionError
    assert rewards(completions()).total.tolist() == [2, 2]


def test_a_function_has_nothing_to_remember() -> None:
    assert RewardSum({"custom": part("def score(completions): return [0, 0]")}).state() == {}


@pytest.mark.parametrize("state", ["[1]", "{1: 2}", "{'a': (1,)}", "{'a': float('nan')}", "{'a': {1}}", "None"])
def test_a_memory_that_would_come_back_as_something_else_is_refused(state: str) -> None:
    counts = part(COUNTS.replace("return self.calls\n", f"return {state}\n"), "Counts")
    with pytest.raises(RewardError, match=r"state_dict\(\) returned .*without tuples or NaN"):
        counts.state()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (COUNTS.replace("load_state_dict", "load"), "it needs both"),
        (COUNTS.replace("__call__", "score"), "give it a __call__"),
        (COUNTS.replace("(self):\n        self.calls =", "(self, x):\n        self.calls ="), r"Counts\(\) raised TypeError"),
    ],
)
def test_a_class_that_cannot_serve_is_refused(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        part(source, "Counts")
