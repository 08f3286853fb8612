"""Detectors of the optimisation, on made-up courses: what is wrong is found, where it is and since when; nothing else is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import yaml
from command import ROOT

from grpo_exp.app import check
from grpo_exp.command_line import read
from grpo_exp.health.base import Detector, Finding
from grpo_exp.health.monitor import Monitor
from grpo_exp.options import load_class

Metrics = dict[str, float]
Make = Callable[[int], Metrics]

CONFIG: dict[str, Any] = {
    "lr": 1e-4,
    "beta": 0.04,
    "G": 8,
    "temperature": 1.0,
    "prompts_per_step": 16,
    "model": {"lr_rl": 1e-4, "dtype": "auto"},
    "optim": {"warmup_steps": 5, "clip_grad": 1.0},
    "rollout": {"name": "torch", "weight_max": 0.0},
    "experience": {"dynamic_sampling": False},
    "algo": {
        "ratio": "token",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "entropy_coef": 0.0,
        "mask_truncated": False,
        "updates_per_rollout": 1,
        "minibatch_count": 1,
        "reference": {"update": "fixed"},
    },
}
PPO = {
    "algo": {"updates_per_rollout": 1, "minibatch_count": 4, "critic": {"trunk": "own", "lr_factor": 5.0, "warmup_steps": 0}}
}
DPO = {"algo": {"pairs": "mined", "loss_type": "sigmoid", "reference": {"update": "fixed"}}}
TEXTS = ("17+25=42 so <answer>42</answer>", "========================================")


def sound(step: int) -> Metrics:
    """A run that learns: from 40 % right to 80 % in 100 steps, with some noise that is the same each time."""
    right = min(0.8, 0.4 + 0.004 * step) + 0.02 * math.sin(step)
    return {
        "reward/mean": right,
        "reward/std": math.sqrt(right * (1 - right)),
        "reward/group_std": 0.4,
        "reward/zero_std_frac": 0.1,
        "reward/all_right_frac": 0.05,
        "grad/norm": 0.7 + 0.3 * math.sin(2.1 * step),
        "grad/skipped": 0,
        "lr": 1e-4 * min(1.0, step / 5),
        "kl/mean": 2e-5 * (step - 1),
        "clip/low": 0.01,
        "clip/high": 0.02,
        "ratio/max": 1.0,
        "mismatch/abs_mean": 1e-6,
        "mismatch/abs_max": 1e-5,
        "entropy/mean": 0.3 * 0.99**step,
        "loss/total": 0.001,
        "length/mean": 10.0,
        "length/p95": 30.0,
        "time/total": 5.0,
        "time/rollout": 2.0,
        "time/update": 2.0,
        "throughput/tokens_per_s": 256.0,
        "memory/peak_gib": 0.6 if step < 20 else 0.75,
    }


def pairs(step: int) -> Metrics:
    """Pairs that a sound DPO run mines: right answers are longer, they get likelier, and the reward rises."""
    lengths = {"length/chosen": 20 + math.sin(step), "length/rejected": 6.0, "length/mean": 9 + 0.1 * step}
    return {"logp/chosen": -20 + 0.1 * step, "logp/rejected": -12 - 0.1 * step, "dpo/margin": 0.02 * step, **lengths}


def critic(step: int) -> Metrics:
    return {"value/explained_var": min(0.5, 0.05 * step)}


@dataclass(frozen=True)
class Case:
    """A course of `steps` steps: `sound`, with what `base` adds, and from `since` on what `trouble` changes.

    Attributes:
        since: the step where it begins, and where the finding must say that it did.
        found: the step where it must be found.
        seen: words of what is said.
        right: share of right samples where the trouble is on.
        text: the index in TEXTS of what samples then say.
    """

    trouble: Make
    since: int
    found: int
    steps: int
    seen: str
    base: Make = lambda step: {}
    config: dict[str, Any] = field(default_factory=dict)
    algo: str = "grpo"
    right: float = 0.5
    text: int = 0


CASES = {
    # 20 steps after 5 of warm-up
    "not_moving": Case(lambda step: {"lr": 1e-9, "kl/mean": 1e-13 * step}, 1, 25, 30, "the learning rate is 1e-09"),
    # 5 of 10 steps at 0.45, the others at 0.03, have a mean above 0.2
    "clip_saturated": Case(
        lambda step: {"clip/low": 0.2, "clip/high": 0.25, "ratio/max": 30.0},
        *(20, 21, 40, "11% of tokens are clipped over the last 10 steps, with 8 optimizer steps a rollout"),
        config={"algo": CONFIG["algo"] | {"updates_per_rollout": 8}},
    ),
    # 3 of 5 make a median
    "mismatch": Case(lambda step: {"mismatch/abs_mean": 0.08, "mismatch/abs_max": 2.5}, 15, 17, 30, "differ by 0.08 nats"),
    # the third of the spikes in steps 20, 24, 28
    "gradient_spikes": Case(lambda step: {"grad/norm": 20.0 if step % 4 == 0 else 0.7}, 20, 28, 40, "3 norms of the last 20"),
    "not_finite": Case(
        lambda step: {"loss/total": math.nan, "grad/skipped": 1}, 12, 12, 14, "loss/total not finite and 1 optimizer steps not"
    ),
    # 6 of 10 make a median
    "entropy_collapse": Case(
        lambda step: {"entropy/mean": 0.001, "reward/mean": 0.4}, 15, 20, 50, "the entropy is 0.001 nats a token", right=0.4
    ),
    # three steps in which all is lost
    "learning_rate_high": Case(
        lambda step: {"reward/mean": 0.0, "reward/std": 0.0, "reward/zero_std_frac": 1.0},
        *(10, 12, 20, "to 0, and 100% of the newest samples repeat one token"),
        right=0.0,
        text=1,
    ),
    # 6 of 10 make a median
    "value_blind": Case(lambda step: {"value/explained_var": -0.1}, 30, 35, 50, "the critic explains -0.1", critic, PPO, "ppo"),
    "chosen_sinking": Case(
        lambda step: {"logp/chosen": -20 - 0.5 * step, "logp/rejected": -6 - 1.0 * step},
        *(1, 20, 30, "the log-prob of chosen ones fell from -", pairs, DPO, "dpo"),
    ),
    # the first 20 steps and the newest 20
    "length_bias": Case(
        lambda step: {"length/mean": 9 + 0.5 * max(0, step - 9), "reward/mean": 0.4},
        *(1, 40, 60, "times the tokens of rejected ones, and completions have 1.9 times", pairs, DPO, "dpo"),
    ),
    # 11 of 20 make a median
    "throughput_falling": Case(
        lambda step: {"time/total": 20.0, "time/rollout": 16.0, "throughput/tokens_per_s": 64.0},
        *(40, 45, 80, "64 tokens a second, at first 256; a step takes 4 times as long, most of it sampling, 8 times"),
    ),
    "memory_creeping": Case(lambda step: {"memory/peak_gib": 0.6 + 0.02 * step}, 1, 24, 60, "it rose from 0.86 to 1.08 GiB"),
}
NAMES = sorted(CASES)


def detectors(*names: str) -> dict[str, Detector]:
    """As conf/health/standard.yaml sets them."""
    own = yaml.safe_load((ROOT / "conf/health/standard.yaml").read_text())["detectors"]
    return {name: load_class("grpo_exp.health.detectors", name, Detector, name)(**own[name]) for name in names}


def samples(step: int, right: float, text: str) -> list[dict[str, Any]]:
    count = round(16 * right)
    return [
        {"step": step, "id": f"train-{i}", "prompt": "17+25=?", "completion": text, "outcome": float(i < count), "length": 10}
        for i in range(16)
    ]


def course(
    steps: int,
    make: Make,
    names: list[str] = NAMES,
    config: dict[str, Any] | None = None,
    without: str = "",
    says: Callable[[int], tuple[float, str]] = lambda step: (0.5, TEXTS[0]),
) -> list[Finding]:
    """What is found in a course of metrics `make(step)`, looked at after each step."""
    monitor = Monitor(detectors(*names))
    monitor.start({"steps": steps}, CONFIG | (config or {}))
    found = []
    for step in range(1, steps + 1):
        row = {name: value for name, value in make(step).items() if name != without}
        monitor.metrics({"step": step, "kind": "train", "tokens": step, "seconds": float(step), **row})
        if without != "samples":
            monitor.samples(samples(step, *says(step)))
        found += monitor.look()
    return found


def play(case: Case, names: list[str], ill: bool, without: str = "", config: dict[str, Any] | None = None) -> list[Finding]:
    def on(step: int) -> bool:
        return ill and step >= case.since

    return course(
        case.steps,
        lambda step: sound(step) | case.base(step) | (case.trouble(step) if on(step) else {}),
        names,
        case.config if config is None else config,
        without,
        lambda step: (case.right, TEXTS[case.text]) if on(step) else (0.5, TEXTS[0]),
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_trouble_is_found_where_it_is(name: str) -> None:
    case = CASES[name]
    (finding,) = play(case, [name], ill=True)
    assert (finding.detector, finding.step, finding.seen.since) == (name, case.found, case.since)
    assert case.seen in finding.seen.text
    assert finding.seen.why and not finding.seen.text.endswith(".")
    assert all(math.isfinite(value) for value in finding.seen.values.values())


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_without_the_trouble(name: str) -> None:
    """By no detector, in a course that is as long."""
    assert not play(CASES[name], NAMES, ill=False)


@pytest.mark.parametrize(("name", "need"), [(name, need) for name, one in detectors(*NAMES).items() for need in one.needs])
def test_nothing_is_found_without_what_is_needed(name: str, need: str) -> None:
    assert not play(CASES[name], [name], ill=True, without=need)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_is_found_in_a_run_of_another_program(name: str) -> None:
    """Whose configuration is not known: then what may be tried is said in words."""
    case = CASES[name]
    (finding,) = play(case, [name], ill=True, config=dict.fromkeys(CONFIG, None))
    assert finding.seen.since == case.since


@pytest.mark.parametrize("name", NAMES)
def test_what_may_be_tried_composes(name: str) -> None:
    (finding,) = play(CASES[name], [name], ill=True)
    assert finding.seen.tries
    for word in finding.seen.tries:
        checked(CASES[name].algo, word)


@cache
def checked(algo: str, word: str) -> None:
    """Several detectors give the same advice."""
    check(read([f"algo={algo}", "model=tiny_random", word]))


# ---- what looks like trouble and is none


def test_a_run_that_has_solved_its_task_may_stand_still_and_say_the_same() -> None:
    def solved(step: int) -> Metrics:
        still = {"reward/mean": 0.98, "reward/std": 0.1, "reward/zero_std_frac": 0.97, "reward/all_right_frac": 0.95}
        return sound(step) | still | {"grad/norm": 1e-9, "kl/mean": 0.0, "entropy/mean": 0.3 * 0.8**step}

    assert not course(60, solved, says=lambda step: (0.98, TEXTS[0]))
    found = course(60, solved, says=lambda step: (0.1, TEXTS[0]))
    assert {one.detector for one in found} == {"not_moving", "entropy_collapse"}


def test_samples_that_were_right_from_the_start_need_no_samples_to_be_known_as_such() -> None:
    """The share of groups that are all right tells it, or the evaluation."""
    still = {"reward/mean": 0.98, "reward/zero_std_frac": 1.0, "grad/norm": 0.0, "kl/mean": 0.0}
    assert not course(60, lambda step: sound(step) | still | {"reward/all_right_frac": 0.95}, without="samples")
    assert course(60, lambda step: sound(step) | still | {"reward/all_right_frac": 0.0}, without="samples")


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"optim": {"warmup_steps": 60}}, 80),
        ({"algo": {"critic": {"warmup_steps": 60}}}, 85),
    ],
    ids=["the rate", "the critic alone"],
)
def test_a_policy_need_not_move_while_it_warms_up(config: dict[str, Any], found: int) -> None:
    def make(step: int) -> Metrics:
        return sound(step) | {"kl/mean": 0.0}

    assert not course(50, make, ["not_moving"], config)
    assert course(100, make, ["not_moving"], config)[0].step == found


def test_a_reference_that_follows_the_policy_says_nothing_of_its_movement() -> None:
    config = {"algo": CONFIG["algo"] | {"reference": {"update": "sync"}}}
    assert not course(60, lambda step: sound(step) | {"kl/mean": 0.0}, ["not_moving"], config)


def test_groups_without_contrast_are_no_standstill_where_the_policy_moves_or_the_reward_does() -> None:
    flat = {"reward/zero_std_frac": 0.99}
    assert not course(60, lambda step: sound(step) | flat, ["not_moving"])
    assert not course(60, lambda step: sound(step) | flat | {"reward/mean": 0.02 * step}, ["not_moving"], without="kl/mean")
    (one,) = course(60, lambda step: sound(step) | flat | {"reward/mean": 0.1}, ["not_moving"], without="kl/mean")
    assert "experience.dynamic_sampling=true" in one.seen.tries
    ahead = {"hardware": {"overlap": 1}}  # which refuses that
    (one,) = course(60, lambda step: sound(step) | flat | {"reward/mean": 0.1}, ["not_moving"], ahead, without="kl/mean")
    assert one.seen.tries == ["G=16", "temperature=1.2"]


def test_one_ratio_for_a_sample_may_clip_more() -> None:
    def clipped(step: int) -> Metrics:
        return sound(step) | {"clip/low": 0.2, "clip/high": 0.2}

    assert course(20, clipped, ["clip_saturated"])
    assert not course(20, clipped, ["clip_saturated"], {"algo": CONFIG["algo"] | {"ratio": "sequence"}})


def test_a_ratio_far_from_1_is_wrong_with_one_update_alone() -> None:
    def make(step: int) -> Metrics:
        return sound(step) | {"ratio/max": 1.5}

    (one,) = course(20, make, ["mismatch"])
    assert "the largest ratio of the only update is 1.5 and should be 1" in one.seen.text
    assert not course(20, make, ["mismatch"], {"algo": CONFIG["algo"] | {"minibatch_count": 4}})
    assert not course(20, make, ["mismatch"], {"algo": {}})


def test_samples_of_an_older_policy_are_no_mismatch() -> None:
    """The ratio is to the policy as it is, and must be 1 all the same."""

    def make(step: int) -> Metrics:
        return sound(step) | {"mismatch/abs_mean": 0.08, "mismatch/abs_max": 7.0}

    ahead = {"hardware": {"overlap": 1}}
    assert course(20, make, ["mismatch"], {"hardware": {"overlap": 0}}) and not course(20, make, ["mismatch"], ahead)
    (one,) = course(20, lambda step: make(step) | {"ratio/max": 1.5}, ["mismatch"], ahead)
    assert "the largest ratio of the only update is 1.5 and should be 1" in one.seen.text


def test_two_spikes_and_small_gradients_at_the_end_of_a_run_are_common() -> None:
    """Of the last: a group that still has contrast stands out from gradients of nearly 0."""

    def make(step: int) -> Metrics:
        return sound(step) | {"grad/norm": 50.0 if step in (30, 35) else 1.0 if step < 60 or step % 5 == 0 else 1e-3}

    assert not course(100, make, ["gradient_spikes"])


def test_values_that_are_legitimately_none_are_no_trouble() -> None:
    """The mean of a part that applied to no row; a category of the evaluation without items; so too as null, from a file."""
    monitor = Monitor(detectors("not_finite"))
    monitor.start({}, CONFIG)
    for step in range(1, 20):
        none = math.nan if step % 2 else None
        monitor.metrics({"step": step, "kind": "train", **sound(step), "reward/part/style": none, "length/right": none})
        monitor.metrics(
            {"step": step, "kind": "eval", "eval/pass@1": 0.5, "eval/pass@1/hard": none, "gap/train_minus_eval": none}
        )
        assert not monitor.look()
    monitor.metrics({"step": 20, "kind": "train", **sound(20), "loss/total": None})
    assert [one.step for one in monitor.look()] == [20]


def test_a_reward_that_falls_while_samples_say_something_is_not_the_learning_rate() -> None:
    lost = {"reward/mean": 0.0, "reward/std": 0.0, "reward/zero_std_frac": 1.0}

    def make(step: int) -> Metrics:
        return sound(step) | (lost if step >= 15 else {})

    assert not course(30, make, ["learning_rate_high"], says=lambda step: (0.0, TEXTS[0]))
    (one,) = course(30, lambda step: make(step) | ({"grad/norm": 90.0} if step == 14 else {}), ["learning_rate_high"])
    assert "after a gradient of norm 90 in step 14" in one.seen.text and one.seen.since == 15


def test_a_model_that_never_said_more_than_one_token_has_not_lost_it() -> None:
    nothing = {"reward/mean": 0.0, "reward/std": 0.0}
    assert not course(30, lambda step: sound(step) | nothing, ["learning_rate_high"], says=lambda step: (0.0, TEXTS[1]))


def test_how_much_of_a_text_is_one_token() -> None:
    from grpo_exp.health.detectors.learning_rate_high import monotony

    assert monotony("=" * 40) == monotony("the " * 30) == monotony("Answer:" * 10) == 1.0
    assert monotony("6+4" + "6" * 37) > 0.9
    assert monotony("no") == monotony("") == 0.0
    for text in ("1000000", "17+25=42 so <answer>42</answer>", "First add 17 and 25, which gives 42, then halve it to get 21."):
        assert monotony(text) < 0.5 or len(text) < 8


def test_returns_that_hardly_vary_cannot_be_explained() -> None:
    blind = {"value/explained_var": -0.5}
    assert not course(60, lambda step: sound(step) | blind | {"reward/std": 0.01}, ["value_blind"], PPO)
    assert not course(60, lambda step: sound(step) | {"value/explained_var": 0.0}, ["value_blind"], PPO)
    assert not course(60, lambda step: sound(step) | blind, ["value_blind"], PPO, says=lambda step: (0.9, TEXTS[0]))


def test_chosen_completions_may_sink_with_their_lengths_or_while_rejected_ones_rise() -> None:
    def longer(step: int) -> Metrics:
        long = {"length/chosen": 20 + 2.0 * step, "length/rejected": 10 + 2.0 * step}
        return sound(step) | pairs(step) | long | {"logp/chosen": -20 - 2.0 * step, "logp/rejected": -30 - 6.0 * step}

    def apart(step: int) -> Metrics:
        return sound(step) | pairs(step) | {"logp/chosen": -20 - 0.5 * step, "logp/rejected": -60 + 0.5 * step}

    assert not course(40, longer, ["chosen_sinking"], DPO)
    assert not course(40, apart, ["chosen_sinking"], DPO)


def test_stored_pairs_that_differ_in_length_are_told_but_for_a_loss_of_means() -> None:
    def stored(step: int) -> Metrics:
        return {"logp/chosen": -20.0, "length/chosen": 30.0 if step > 5 else 10.0, "length/rejected": 10.0}

    (one,) = course(30, stored, ["length_bias"], {"algo": {"pairs": "stored", "loss_type": "sigmoid"}})
    assert one.seen.since == 6 and "3 times the tokens" in one.seen.text and "algo=simpo" in one.seen.tries
    assert not course(30, stored, ["length_bias"], {"algo": {"pairs": "stored", "loss_type": "simpo"}})


@pytest.mark.parametrize(
    "change",
    [
        lambda step: {"time/total": 40.0, "throughput/tokens_per_s": 32.0} if 50 <= step < 54 else {},
        lambda step: {"time/total": 10.0, "throughput/tokens_per_s": 128.0} if step >= 50 else {},
        lambda step: {"length/mean": 2.0, "throughput/tokens_per_s": 51.0} if step >= 50 else {},
        lambda step: {"length/mean": 80.0, "time/total": 160.0, "throughput/tokens_per_s": 64.0} if step >= 50 else {},
        lambda step: {"time/total": 0.05 if step < 50 else 0.2, "throughput/tokens_per_s": 64.0 if step < 50 else 16.0},
    ],
    ids=["a busy moment", "half as fast", "shorter completions", "longer completions", "too short to tell"],
)
def test_throughput_may_vary(change: Make) -> None:
    assert not course(90, lambda step: sound(step) | change(step), ["throughput_falling"])


@pytest.mark.parametrize(
    "change",
    [
        lambda step: {"memory/peak_gib": 0.6 + 0.2 * (step > 30) + 0.4 * (step > 50)},
        lambda step: {"memory/peak_gib": 0.6 + 0.02 * step, "length/p95": 30.0 + 3 * step},
        lambda step: {"memory/peak_gib": 0.6 + 0.02 * min(step, 20)},
        lambda step: {"memory/peak_gib": 80 + 0.01 * step},
    ],
    ids=["leaps", "longer completions", "the first steps", "little"],
)
def test_memory_may_grow(change: Make) -> None:
    assert not course(90, lambda step: sound(step) | change(step), ["memory_creeping"])


def test_a_course_looked_at_when_it_is_over_shows_the_same() -> None:
    """Nothing is kept between two looks: a detector that first looks late says what one says that has looked all the time."""
    case = CASES["mismatch"]
    (once,) = play(case, ["mismatch"], ill=True)
    monitor = Monitor(detectors("mismatch"))
    monitor.start({}, CONFIG)
    for step in range(1, case.found + 1):
        monitor.metrics({"step": step, "kind": "train", **sound(step), **(case.trouble(step) if step >= case.since else {})})
    (late,) = monitor.look()
    assert late == once
