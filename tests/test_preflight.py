"""What is found before a run: on made samples, made first steps, and real steps that are undone."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from command import SMALL, algo_values
from toy_policy import examples

from grpo_exp.app import check
from grpo_exp.command_line import options, read
from grpo_exp.compose import compose
from grpo_exp.config import Config, build
from grpo_exp.hardware import prepare
from grpo_exp.health.monitor import Monitor
from grpo_exp.policy import Policy
from grpo_exp.preflight import cost
from grpo_exp.preflight.base import Finding
from grpo_exp.preflight.contrast import Contrast
from grpo_exp.preflight.difficulty import Difficulty, alike
from grpo_exp.preflight.first_step import FirstStep
from grpo_exp.preflight.form import Form
from grpo_exp.preflight.gold import Gold
from grpo_exp.preflight.length import Length
from grpo_exp.preflight.options import PreflightOptions
from grpo_exp.preflight.pass_rate import PassRate
from grpo_exp.preflight.rehearsal import Notebook, Rehearsal, rehearse
from grpo_exp.preflight.samples import Samples
from grpo_exp.rows.marks import item_key
from grpo_exp.run import assemble, fit_prompts, rows_at_once
from grpo_exp.stop import StopSignals
from grpo_exp.train import Trainer

FOLDER = Path("outputs/preflight/x")


@functools.cache
def config(*words: str) -> Config:
    return build(compose(["model=tiny_random", "track=quiet", *words]))


def samples(right: list[int], each: int = 8, **changes: Any) -> Samples:
    """Prompts of which so many samples are right: right ones say the answer, wrong ones another number, all of 5 tokens."""
    items = [dataclasses.replace(e, answer="12", category="easy") for e in examples(*(f"{i}+1=?" for i in range(len(right))))]
    rows = [
        {"id": item.id, "prompt": f"{i}+1=?", "completion": f"x{n} = {12 if n < count else 100 + n}", "reference": "12"}
        | {"outcome": float(n < count), "total": float(n < count), "length": 5, "finished": True, "reward/part/format": 1.0}
        | changes
        for i, (item, count) in enumerate(zip(items, right, strict=True))
        for n in range(each)
    ]
    return Samples(items, each, 1.0, len(items), rows, unlike=float(len(rows)), ended=sum(row["finished"] for row in rows))


def found(config: Config, made: Samples) -> list[Finding]:
    """Findings of what the samples alone decide."""
    about = config.preflight
    assert about is not None
    sections = [
        PassRate.of(made, about, FOLDER),
        Contrast.of(made, config.root.G, about.flat),
        Length.of(made, config.root.max_new_tokens, about),
        Form.of(made, config),
        Gold.of(made, config),
    ]
    return [finding for section in sections for finding in section.findings(config)]


# ---- groups without contrast


def test_alike_is_the_share_of_all_subsets() -> None:
    for right, size in itertools.product(range(7), range(1, 7)):
        values = [1] * right + [0] * (6 - right)
        subsets = list(itertools.combinations(values, size))
        share = sum(len(set(subset)) == 1 for subset in subsets) / len(subsets)
        assert alike([right, 6 - right], size) == pytest.approx(share)


@pytest.mark.parametrize(("a", "b"), [(2.0, 3.0), (0.3, 0.5), (0.2, 4.0)])
def test_the_prediction_for_larger_groups(a: float, b: float) -> None:
    """From 8 samples of prompts whose chances have a Beta distribution: within its interval of what 64 samples would show."""
    torch.manual_seed(1)
    chance = torch.distributions.Beta(a, b).sample((400,))
    right = torch.binomial(torch.full((400,), 8.0), chance).long().tolist()
    belief = Difficulty(right, 8)
    for size in (2, 8, 32, 64):
        truth = (chance**size + (1 - chance) ** size).mean().item()
        value, low, high = belief.without_contrast(size)
        assert low <= value <= high
        assert value == pytest.approx(truth, abs=0.05)


def test_nothing_right_predicts_little_and_does_not_fail() -> None:
    value, low, high = Difficulty([0] * 30, 8).without_contrast(8)
    assert 0.9 < value <= 1 and low < high
    assert Difficulty([0] * 30, 8).without_contrast(64).value < value


# ---- findings on made samples


HALF = [0, 3, 4, 5, 8, 4, 2, 6]
MADE: dict[str, tuple[list[str], Samples, str, str]] = {
    "too easy": ([], samples([8] * 30 + [7]), "warn", "over 95 %"),
    "too hard": ([], samples([0] * 30 + [1]), "warn", "under 5 %"),
    "all wrong": ([], samples([0] * 30), "stop", "samples earn 0, so"),
    "all right": ([], samples([8] * 30), "stop", "samples earn 1, so"),
    "few groups with contrast": ([], samples([0] * 5 + [8] * 5 + [4] * 2), "warn", "have equal rewards and teach nothing"),
    "no group with contrast": ([], samples([0] * 5 + [8] * 5), "stop", "every advantage is 0"),
    "shaping alone": ([], samples([0] * 20 + [4]), "warn", "under 5 %"),
    "cut off": (
        [],
        dataclasses.replace(samples(HALF, finished=False), ended=0),
        "warn",
        "no sample ends within max_new_tokens",
    ),
    "far too long a limit": (["max_new_tokens=400"], samples(HALF), "note", "no sample needs half of max_new_tokens=400"),
    "two samples": (["G=2"], samples(HALF), "warn", "mostly noise; with two samples every advantage is +-0.71 or 0"),
    "no answer": ([], samples(HALF, completion="let me see"), "warn", "an answer is read in only 0.0 %"),
    "missed": ([], samples(HALF, completion="12 apples, I say"), "warn", "right answers may be in a form"),
    "alike": (["temperature=0.01"], dataclasses.replace(samples(HALF), unlike=8.0), "warn", "only 1.0 of 8 samples"),
}


@pytest.mark.parametrize("name", MADE)
def test_a_made_situation_is_found(name: str) -> None:
    words, made, level, text = MADE[name]
    told = found(config(*words), made)
    assert any(finding.level == level and text in finding.text for finding in told), told


@pytest.mark.slow
def test_what_is_to_be_tried_composes() -> None:
    tries = {word for words, made, _, _ in MADE.values() for finding in found(config(*words), made) for word in finding.tries}
    assert len(tries) >= 5
    for word in tries:
        check(read(["model=tiny_random", *word.split()]))


def test_what_a_run_refuses_is_not_to_be_tried() -> None:
    words, made, _, _ = MADE["few groups with contrast"]
    tries = [
        {word for finding in found(config(*words, f"hardware.overlap={overlap}"), made) for word in finding.tries}
        for overlap in (0, 1)
    ]
    assert tries[0] - tries[1] == {"experience.dynamic_sampling=true"} and tries[1] <= tries[0]


def test_a_fertile_start_has_no_findings() -> None:
    assert found(config("max_new_tokens=8"), samples(HALF)) == []


def test_what_is_no_group_has_no_finding_of_groups() -> None:
    made = samples([0] * 30 + [8] * 20)
    assert not any("group" in finding.text for finding in found(config("algo=ppo"), made))
    assert any("every advantage is 0" in finding.text for finding in found(config(), made))


def test_more_than_the_limit_is_proposed_only_where_too_many_are_cut() -> None:
    about = config().preflight
    assert about is not None
    some = samples(HALF)
    assert Length.of(some, 40, about).proposed == 8  # 5 tokens and a quarter, in eights
    for row in some.rows[:30]:
        row |= {"finished": False, "length": 40}
    assert Length.of(some, 40, about).proposed == 80


def test_pass_rates_name_items_by_what_they_say() -> None:
    made = samples([2, 0], 4)
    rows = made.rates()
    assert [row["outcome"] for row in rows] == [1, 1, 0, 0, 0, 0, 0, 0]
    assert [row["item"] for row in rows] == [item_key(e) for e in made.examples for _ in range(4)]
    renamed = dataclasses.replace(made.examples[0], id="other", category="", columns={"more": 1})
    assert item_key(renamed) == rows[0]["item"] != item_key(dataclasses.replace(renamed, answer="13"))


# ---- the first step


SOUND: dict[str, float] = {"kl/mean": 0.0, "ratio/max": 1.0, "mismatch/abs_mean": 1e-6, "grad/norm": 0.5, "loss/total": 1e-9}


def first(*words: str, **changes: float) -> list[Finding]:
    made = config(*words)
    row = SOUND | {name.replace("_", "/", 1): value for name, value in changes.items()}
    return list(FirstStep.of(Rehearsal([row], 0), made).findings(made))


def test_a_sound_first_step() -> None:
    assert first() == []
    lines = dict(FirstStep.of(Rehearsal([SOUND], 0), config()).lines())
    assert "KL 0, largest ratio 1, " in lines["first step"] and "near 0 by construction" in lines[""]


@pytest.mark.parametrize(
    ("changes", "level", "text"),
    [
        ({"kl_mean": 0.01}, "stop", "the reference is not the starting policy"),
        ({"kl_mean": float("nan")}, "stop", "the reference is not the starting policy"),
        ({"ratio_max": 1.1}, "stop", "policy ratio before the first update is 1.1"),
        ({"mismatch_abs_mean": 0.2}, "warn", "samples from another distribution"),
        ({"grad_norm": 0.0}, "warn", "taught nothing"),
        ({"grad_skipped": 1.0}, "stop", "not finite"),
    ],
)
def test_an_unsound_first_step(changes: dict[str, float], level: str, text: str) -> None:
    assert [(finding.level, text in finding.text) for finding in first(**changes)] == [(level, True)]


def test_dropout_explains_a_kl() -> None:
    told = first("model.adapter=lora", "model.lora_dropout=0.1", kl_mean=0.01)
    assert [(finding.level, finding.tries) for finding in told] == [("note", ["model.lora_dropout=0"])]


# ---- every option counts


def outcomes(**changes: float) -> list[Any]:
    """All that a configuration says of some samples and steps that are near every threshold."""
    made = config("G=4", "max_new_tokens=8")
    assert made.preflight is not None
    about = dataclasses.replace(made.preflight, **changes)
    made = dataclasses.replace(made, preflight=about)
    some = samples([0, 0, 1, 2, 8, 8, 3, 0, 0, 0, 3])
    for row in some.rows[3:5]:
        row |= {"completion": "12 apples, I say", "finished": False}
    some.unlike = 0.5 * len(some.rows)
    step = Rehearsal([SOUND | {"kl/mean": 1e-7, "time/total": 2.0, "tokens": 10}], 0)
    spent = cost.measure(made, some, step, 10, 1.0, cost.Memory(1.0, 4.0, {}))
    looked: list[Any] = found(made, some)
    for section in (PassRate.of(some, about, FOLDER), Length.of(some, 8, about), FirstStep.of(step, made), spent):
        looked += [*section.lines(), *section.findings(made)]
    return looked


EFFECT: dict[str, Any] = {
    "trials": 3,
    "price": 2.0,
    "hard": 0.5,
    "easy": 0.1,
    "fertile_low": 0.1,
    "fertile_high": 0.2,
    "flat": 0.0,
}
EFFECT |= {"truncated": 0.0, "length_margin": 9.0, "distinct": 0.9, "format": 1.0, "missed": 0.0, "mismatch": 0.0}
EFFECT |= {"kl": 0.0, "memory": 0.1}
OF_THE_VERB = {"notes", "prompts", "samples", "steps", "paper", "size", "prompt_tokens"}
"""Those that say how much is looked at are tried in tests/test_verb_preflight.py."""


def test_every_option_is_tried() -> None:
    assert {field.name for field in dataclasses.fields(PreflightOptions)} == set(EFFECT) | OF_THE_VERB


@pytest.mark.parametrize("name", EFFECT)
def test_an_option_changes_what_is_said(name: str) -> None:
    assert outcomes() != outcomes(**{name: EFFECT[name]})


# ---- steps that are undone


REWARD = "from zlib import crc32\n\ndef half(completions):\n    return [float(crc32(x.encode()) % 2) for x in completions]\n"


def trainer(name: str, reward: Path) -> tuple[Trainer, Notebook]:
    made = build(
        compose([f"algo={name}", *(w for w in SMALL if w != "G=2"), "seed=3", "reward=custom", f"reward.path={reward}:half"])
    )
    data, machine = made.data.load(), prepare(made.hardware, "float32")
    policy = Policy.load(made.model, machine.device, machine.dtype, 3)
    if made.algo.critic is not None:
        policy.attach_critic(made.algo.critic)
    data = fit_prompts(made, data, policy)
    notebook, rows = Notebook(), rows_at_once(made, policy, machine, data.train)
    return assemble(made, data, policy, notebook, None, rows, lambda *_: None, StopSignals(), Monitor({})), notebook  # type: ignore[arg-type]


def differ(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(x, other[name]) for name, x in one.items())


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    skip = ("time/", "throughput/", "memory/", "seconds")
    return {name: value for name, value in row.items() if not name.startswith(skip)}


WITHOUT_PAIRS = [name for name in options("algo") if algo_values(name)["kind"] != "reward_model" and name != "dpo_offline"]
KINDS = {algo_values(name)["kind"]: name for name in reversed(WITHOUT_PAIRS)}


SLOWLY = [pytest.param(name, marks=() if kind == "grpo" else pytest.mark.slow, id=name) for kind, name in KINDS.items()]


@pytest.mark.parametrize("name", SLOWLY)
def test_everything_is_as_before(name: str, tmp_path: Path) -> None:
    """To the bit; and the run that follows is the one that would have been without."""
    reward = tmp_path / "mine.py"
    reward.write_text(REWARD)
    looked, notebook = trainer(name, reward)
    weights = {key: x.clone() for key, x in looked.policy.state().items()}
    random, place = torch.get_rng_state(), looked.source.state()
    moved: list[bool] = []
    looked.algorithm.observe = lambda _: moved.append(differ(looked.policy.state(), weights))  # type: ignore[method-assign, func-returns-value]
    done = rehearse(looked, notebook, 2)
    del looked.algorithm.observe
    assert len(done.rows) == 2 and moved[-1] and done.held == sum(x.nbytes for x in weights.values())
    assert not differ(looked.policy.state(), weights)
    assert torch.equal(torch.get_rng_state(), random) and looked.source.state() == place
    assert looked.tokens == 0 and not looked.optimizer.state()["state"]
    assert all(parameter.grad is None for parameter in looked.policy.trainable())

    fresh, other = trainer(name, reward)
    if fresh.algorithm.keeps_reference:
        fresh.policy.freeze_reference(fresh.algorithm.moves_reference)
    for step in (1, 2):
        looked.step(step)
        fresh.step(step)
    assert [untimed(row) for row in notebook.rows[2:]] == [untimed(row) for row in other.rows]
    assert not differ(looked.policy.state(), fresh.policy.state())
