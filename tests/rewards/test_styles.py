"""Reward functions written for TRL and for verl, in the style of their documentation, run unchanged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_exp import calls
from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError, InputError, RewardError
from grpo_exp.rewards.base import RewardSum, check
from grpo_exp.rewards.custom import CustomReward
from grpo_exp.scoring import Failures


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    return tmp_path


def part(source: str, name: str, style: str = "auto", **kwargs: Any) -> CustomReward:
    Path("mine.py").write_text(source, encoding="utf-8")
    rest: dict[str, Any] = {"kind": "custom", "weight": 1.0, "role": "outcome", "kwargs": kwargs, "data_source": "sums"}
    return CustomReward(path=f"mine.py:{name}", style=style, **rest)


def completions(chat: bool = False, steps: int = 0, **columns: Any) -> Completions:
    """Two samples: 1+1 answered rightly, 2+2 wrongly."""
    asked = ["1+1?", "2+2?"]
    prompts: list[Any] = [[{"role": "user", "content": text}] for text in asked] if chat else asked
    examples = [
        Example(f"row-{i}", prompt, answer, columns={name: values[i] for name, values in columns.items()})
        for i, (prompt, answer) in enumerate(zip(prompts, "24", strict=True))
    ]
    return Completions(examples, [f"<s>{text}" for text in asked], ["so 2", "so 5"], [[7, 8], [7]], [True, False], steps)


def values(made: CustomReward, seen: Completions) -> list[float | None]:
    """What the run would see: NaN for None."""
    scored = RewardSum({"mine": made})(seen).parts["mine"]
    return [None if value != value else value for value in scored.tolist()]


# ---- TRL

TRL = """
import asyncio
import re


def reward_len(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def reward_ids(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def correct(completions, ground_truth, **kwargs):
    found = [re.search(r"so (.*)", completion) for completion in completions]
    return [1.0 if match and match.group(1) == truth else 0.0 for match, truth in zip(found, ground_truth)]


def chat_format(completions, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    assert all(completion[0]["role"] == "assistant" and len(completion) == 1 for completion in completions)
    return [1.0 if content.startswith("so") else 0.0 for content in contents]


def chat_prompts(prompts, completions, **kwargs):
    return [1.0 if prompt[-1]["content"] == "1+1?" else 0.5 for prompt in prompts]


def math_only(prompts, completions, task, **kwargs):
    return [1.0 if kind == "math" else None for kind in task]


def scheduled(prompts, completions, trainer_state=None, **kwargs):
    return [float(trainer_state.global_step) + 0.1 * (prompt == "1+1?") for prompt in prompts]


def logging(completions, log_extra=None, log_metric=None, **kwargs):
    log_extra("length", [len(completion) for completion in completions])
    log_metric("accuracy", 0.5)
    return [0.0] * len(completions)


async def judged(prompts, completions, **kwargs):
    async def one(completion):
        await asyncio.sleep(0)
        return float(completion == "so 2")
    return await asyncio.gather(*(one(completion) for completion in completions))


def lookahead(prompts, completions, **kwargs):
    prompts.clear()
    completions[0][0]["content"] = ""
    return [1.0, 1.0]
"""


@pytest.mark.parametrize(
    ("name", "seen", "expected"),
    [
        ("reward_len", completions(), [4.0, 4.0]),
        ("reward_ids", completions(), [2.0, 1.0]),
        ("correct", completions(), [1.0, 0.0]),
        ("correct", completions(ground_truth=["2", "5"]), [1.0, 1.0]),
        ("chat_format", completions(chat=True), [1.0, 1.0]),
        ("chat_prompts", completions(chat=True), [1.0, 0.5]),
        ("math_only", completions(task=["math", "code"]), [1.0, None]),
        ("scheduled", completions(steps=6), [pytest.approx(6.1), 6.0]),
        ("logging", completions(), [0.0, 0.0]),
        ("judged", completions(), [1.0, 0.0]),
    ],
)
def test_functions_written_for_trl(name: str, seen: Completions, expected: list[float | None]) -> None:
    assert values(part(TRL, name, style="trl"), seen) == expected
    made = part(TRL, name)
    assert made.about() == {"style": "grpo_exp" if name == "reward_ids" else "trl"}, "the one that reads the same in both"
    assert values(made, seen) == expected


def test_what_a_trl_function_does_to_its_lists_is_its_own_matter() -> None:
    seen = completions(chat=True)
    assert values(part(TRL, "lookahead"), seen) == [1.0, 1.0]
    assert seen == completions(chat=True)


def test_the_field_that_the_answer_was_taken_from_has_its_own_name() -> None:
    seen = completions()
    examples = [Example(e.id, e.prompt, e.answer, held={"label": int(str(e.answer))}) for e in seen.examples]
    seen = Completions(examples, seen.prompts, seen.texts, seen.token_ids, seen.finished)
    source = "def f(completions, label, **kwargs):\n  return [float(text == f'so {n}') for text, n in zip(completions, label)]"
    assert values(part(source, "f"), seen) == [1.0, 0.0]


# ---- verl

VERL = """
import asyncio


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    answer = solution_str.rpartition(" ")[2]
    return 1.0 if answer == ground_truth else 0.0


def with_details(data_source, solution_str, ground_truth, extra_info=None):
    right = solution_str.endswith(ground_truth)
    return {"score": 1.0 if right else -1.0, "acc": right}


def by_source(data_source, solution_str, ground_truth, extra_info=None):
    if data_source == "sums":
        return extra_info.get("level", 7)
    raise NotImplementedError(data_source)


def scaled(data_source, solution_str, ground_truth, extra_info=None, factor=1.0, **kwargs):
    return factor * solution_str.endswith(ground_truth) + kwargs.get("bonus", 0)


async def remote(data_source, solution_str, ground_truth, extra_info):
    await asyncio.sleep(0.2)
    return {"score": float(solution_str.endswith(ground_truth))}


def batched(data_sources, solution_strs, ground_truths, extra_infos):
    return [{"score": float(text.endswith(truth))} for text, truth in zip(solution_strs, ground_truths)]


def no_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"acc": 1.0}


def picky(data_source, solution_str, ground_truth, extra_info=None):
    return {"so 2": 1.0}[solution_str]


async def picky_remote(data_source, solution_str, ground_truth, extra_info=None):
    await asyncio.sleep(0)
    return {"so 2": 1.0}[solution_str]
"""


@pytest.mark.parametrize(
    ("name", "columns", "kwargs", "expected"),
    [
        ("compute_score", {}, {}, [1.0, 0.0]),
        ("compute_score", {"ground_truth": ["2", "5"]}, {}, [1.0, 1.0]),
        ("compute_score", {"reward_model": [{"style": "rule", "ground_truth": g} for g in "35"]}, {}, [0.0, 1.0]),
        ("with_details", {}, {}, [1.0, -1.0]),
        ("by_source", {}, {}, [7.0, 7.0]),
        ("by_source", {"data_source": ["sums", "sums"], "extra_info": [{"level": 3}, None]}, {}, [3.0, 7.0]),
        ("scaled", {}, {"factor": 2.0, "bonus": 0.5}, [2.5, 0.5]),
        ("remote", {}, {}, [1.0, 0.0]),
        ("batched", {}, {}, [1.0, 0.0]),
    ],
)
def test_functions_written_for_verl(name: str, columns: dict[str, Any], kwargs: dict[str, Any], expected: list[float]) -> None:
    for style in ("auto", "verl"):
        made = part(VERL, name, style, **kwargs)
        assert made.about() == {"style": "verl"}
        assert values(made, completions(**columns)) == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_score", "returned a dict without 'score': {'acc': 1.0}"),
        ("picky", r"raised KeyError in line LINE: 'so 5'.*alone it fails on sample 1 of item row-1 \('so 5'\)"),
        ("picky_remote", r"raised KeyError in line LINE: 'so 5'.*alone it fails on sample 1 of item row-1 \('so 5'\)"),
        ("by_source", "NotImplementedError in line .*: other"),
    ],
)
def test_what_goes_wrong_names_line_and_row(name: str, said: str) -> None:
    columns = {"data_source": ["other", "other"]} if name == "by_source" else {}
    lines = VERL[: VERL.index("{", VERL.index(f"def {name}("))].count("\n") + 1
    with pytest.raises(RewardError, match=said.replace("LINE", str(lines))):
        values(part(VERL, name), completions(**columns))


@pytest.mark.parametrize("name", ["picky", "picky_remote"])
def test_a_row_may_fail_where_that_is_let_pass(name: str) -> None:
    result = RewardSum({"mine": part(VERL, name)}, Failures("zero", 0.5))(completions())
    assert result.total.tolist() == [1, 0]
    assert result.failed is not None and result.failed.tolist() == [False, True]


def test_where_one_row_fails_the_others_do_not_go_on_behind_the_back() -> None:
    source = """
import asyncio
ended = []

async def compute_score(data_source, solution_str, ground_truth, extra_info):
    if solution_str == "so 2":
        raise KeyError("first")
    await asyncio.sleep(0.05)
    ended.append(solution_str)

async def wait(completions):
    await asyncio.sleep(0.15)
    return [float(len(ended))] * len(completions)
"""
    made = part(source, "compute_score")
    failing, later = made.score(completions()), part(source, "wait")
    ended = sys.modules["grpo_exp_custom_mine"].ended
    done = calls.run({"fails": lambda: failing, "waits": lambda: later.score(completions())}, 1.0, 1.0)
    assert isinstance(done["fails"].error, RewardError) and done["waits"].value == [0.0, 0.0]
    assert ended == [] and made._function.__globals__["ended"] == []


# ---- which convention


@pytest.mark.parametrize(
    ("signature", "style"),
    [
        ("completions", "grpo_exp"),
        ("prompts, completions", "grpo_exp"),
        ("completions, answers, **columns", "grpo_exp"),
        ("prompts, completions, finished, **kwargs", "grpo_exp"),
        ("**everything", "grpo_exp"),
        ("completions, level", "grpo_exp"),
        ("completions, **kwargs", "trl"),
        ("prompts, **kwargs", "trl"),
        ("prompts, completions, completion_ids, solution, **kwargs", "trl"),
        ("completions, trainer_state", "trl"),
        ("data_source, solution_str, ground_truth, extra_info=None", "verl"),
        ("solution_str, ground_truth, **kwargs", "verl"),
        ("data_sources, solution_strs, ground_truths, extra_infos", "verl"),
    ],
)
def test_the_signature_tells(signature: str, style: str) -> None:
    assert part(f"def f({signature}): ...", "f").about() == {"style": style}
    for told in ("grpo_exp", "trl", "verl"):
        assert part(f"def f({signature}): ...", "f", style=told).about() == {"style": told}


def test_chat_prompts_come_in_the_form_of_the_convention() -> None:
    source = "def f(prompts, completions, **kwargs): return [float(isinstance(prompts[0], list)), len(completions[0])]"
    assert values(part(source, "f", style="trl"), completions(chat=True)) == [1.0, 1.0]
    assert values(part(source, "f", style="grpo_exp"), completions(chat=True)) == [0.0, 4.0]


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        ("compute_score", {"factr": 1}, "reward.kwargs.factr: .* takes no 'factr'. It takes data_source, extra_info"),
        ("scaled", {"solution_str": "x"}, "reward.kwargs.solution_str: the function gets 'solution_str' of the samples"),
    ],
)
def test_arguments_that_cannot_be_given_are_refused(name: str, kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        part(VERL, name, **kwargs)


def test_an_argument_may_be_given_by_configuration() -> None:
    source = (
        "def f(completions, word, level):\n  return [float(text.endswith(word)) + n for text, n in zip(completions, level)]"
    )
    assert values(part(source, "f", word="2"), completions(level=[1, 2])) == [2.0, 2.0]
    with pytest.raises(ConfigError, match=r"requires 'word'.*\+reward.kwargs.NAME=VALUE"):
        values(part(source, "f"), completions(level=[1, 2]))


@pytest.mark.parametrize(("source", "name"), [(TRL, "correct"), (TRL, "judged"), (VERL, "compute_score"), (VERL, "remote")])
def test_the_check_before_training_tries_them(source: str, name: str) -> None:
    seen = dict(check(RewardSum({"mine": part(source, name)}), Example("7", "1+1?", "2", target="so 2")))
    assert seen["worked target"] == {"mine": 1, "total": 1}
    assert seen["empty completion"]["mine"] == 0
    with pytest.raises(InputError, match="KeyError"):
        check(RewardSum({"mine": part(VERL, "picky")}), Example("7", "1+1?", "2"))
