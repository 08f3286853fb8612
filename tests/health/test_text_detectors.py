"""Detectors of what is written and what is earned: each finds its trouble at its step, and says nothing of a sound run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from courses import CONFIG, every, flat, jump, line, samples, standard, watch

from grpo_exp.compose import compose
from grpo_exp.health.base import Finding

Row = dict[str, Any]
Make = Callable[[int, int], Row]
OURS = (
    *("reward_zero", "no_contrast", "length_blowup", "truncation"),
    *("format_falling", "repetition", "same_completion", "heldout_falling"),
)


def kept(make: Make, then: Make | None = None, at: int = 0) -> Callable[[int], list[Row]]:
    """Samples as `make` says, from a step on as `then` says."""
    return lambda step: samples(step, then if then is not None and step >= at else make)


def outcomes(share: float, **more: Any) -> Make:
    """So large a share of each prompt's four samples is right, and earns 1."""
    return lambda p, g: {"outcome": float(g < 4 * share), "total": float(g < 4 * share), **more}


def wrong_but_read(p: int, g: int) -> Row:
    return {"completion": f"so it is {p + 100}" if g else "no idea", "reference": f"#### {p + 100}"}


def mostly_refuses(p: int, g: int) -> Row:
    return {"completion": "I cannot help with that." if g else f"{p}"}


def one_left(p: int, g: int) -> Row:
    """One completion for each prompt, half of them right; two of them for one prompt in ten."""
    return {"completion": f"is it {p}?" + "!" * (p == 9 and g == 3), "outcome": float(p % 2)}


ALL_WRONG = {"reward/mean": flat(0.0), "reward/std": flat(0.0), "reward/all_wrong_frac": flat(1.0)}
DEAD = {
    "reward/zero_std_frac": flat(1.0),
    "reward/all_right_frac": flat(0.0),
    "reward/all_wrong_frac": flat(1.0),
    "text/unique_frac": flat(0.9),
}
LONGER = {"length/mean": line(50, 350, 10, 40)}
PAID = {"reward/mean": line(0.5, 2.5, 10, 40), "reward/std": flat(0.5), "reward/part/pays": line(0, 2, 10, 40)}
FALLING = {
    "eval/pass@1": every(10, line(0.6, 0.2, 20, 50)),
    "eval/pass@1_low": every(10, line(0.5, 0.1, 20, 50)),
    "eval/pass@1_high": every(10, line(0.7, 0.3, 20, 50)),
}
PAYS = {
    **CONFIG,
    "reward": {"parts": {**CONFIG["reward"]["parts"], "pays": {"kind": "custom", "role": "shaping", "weight": 1}}},
}

STEADY = {name: every(10, flat(0.5)) for name in FALLING}
GAP = {**STEADY, "gap/train_minus_eval": every(10, line(-0.1, 0.5, 10, 60))}
UNPAID = kept(outcomes(0.5, **{"reward/part/pays": 0.0}), outcomes(0.5, **{"total": 3.0, "reward/part/pays": 2.0}), 16)

ILL: dict[str, dict[str, Any]] = {
    # trouble: the run, and the step at which it is found, and since when it has been
    "reward_zero": {"train": ALL_WRONG, "rows": kept(wrong_but_read), "found": (8, 1)},
    "no_contrast": {"train": DEAD, "found": (20, 1)},
    "length_blowup": {"train": LONGER, "rows": kept(outcomes(0.5)), "found": (22, 14)},
    "truncation": {"train": {"length/truncated_frac": jump(0.05, 0.8, 7)}, "found": (26, 7)},
    "format_falling": {"train": {"format/rate": line(0.9, 0.3, 20, 40)}, "found": (29, 24)},
    "repetition": {"train": {"text/repetition": jump(0.1, 0.7, 15)}, "found": (17, 15)},
    "same_completion": {
        "train": {"text/unique_frac": flat(0.25)},
        "rows": kept(outcomes(0.5), lambda p, g: {"completion": "I cannot help with that."}, 12),
        "found": (14, 12),
    },
    "heldout_falling": {"train": PAID, "evals": FALLING, "found": (40, 30)},
}
"""Where it is found follows from the thresholds. reward_zero: after 300 samples, of 40 a step. length_blowup: where 5 steps
have 3 x 50 tokens in the mean, beyond the root of 50 x 150 since step 14. repetition: where three of 5 steps loop; and so on.
"""


def run(name: str, change: dict[str, Any] | None = None, without: tuple[str, ...] = (), steps: int = 60) -> Finding | None:
    """The ill run of a detector, with some of it changed."""
    case = {key: value for key, value in ILL[name].items() if key != "found"}
    for key, value in (change or {}).items():
        case[key] = {**case.get(key, {}), **value} if key in ("train", "evals") else value
    return watch(name, steps, **case, without=without)


def told(name: str, change: dict[str, Any] | None = None, **more: Any) -> Finding:
    found = run(name, change, **more)
    assert found is not None
    return found


def test_each_is_tried() -> None:
    assert set(OURS) == set(ILL) == set(WELL) <= set(standard())


@pytest.mark.parametrize("name", OURS)
def test_the_trouble_is_found_at_its_step(name: str) -> None:
    found = told(name)
    assert (found.step, found.seen.since) == ILL[name]["found"]
    assert found.seen.text and not found.seen.text.endswith(".") and found.seen.why and found.seen.values


@pytest.mark.parametrize("name", OURS)
def test_without_a_metric_that_it_needs_it_says_nothing(name: str) -> None:
    needs = standard()[name].needs
    for metric in needs:
        assert run(name, without=(metric,)) is None


WELL: dict[str, list[dict[str, Any]]] = {
    "reward_zero": [
        {"train": {"reward/all_wrong_frac": flat(0.98)}},
        {"train": {"reward/all_wrong_frac": lambda step: float(step % 6 != 0)}},
        {"train": {"reward/all_wrong_frac": flat(0.0), "reward/mean": flat(1.0)}},  # all right: constant as well
    ],
    "no_contrast": [
        {"train": {"reward/zero_std_frac": flat(0.75)}},
        {  # from below to everything right
            "train": {
                "reward/zero_std_frac": line(0.1, 1.0, 5, 20),
                "reward/all_right_frac": line(0.0, 1.0, 5, 20),
                "reward/all_wrong_frac": flat(0.0),
            }
        },
        {"train": {"reward/zero_std_frac": lambda step: 0.4 if step % 2 else 1.0}},
        {  # most of them right, and so alike
            "train": {
                "reward/zero_std_frac": line(0.1, 0.9, 5, 20),
                "reward/all_right_frac": line(0.0, 0.75, 5, 20),
                "reward/all_wrong_frac": flat(0.1),
                "text/unique_frac": flat(0.15),
            }
        },
    ],
    "length_blowup": [
        {"train": {"length/mean": line(50, 140, 10, 40)}},
        {"train": {"length/mean": line(3, 18, 10, 40)}},  # short however much it grows
        {"rows": kept(outcomes(0.25), outcomes(0.75), 10)},  # more of them are right, and wrong ones earn nothing
    ],
    "truncation": [
        {"train": {"length/truncated_frac": jump(0.05, 0.18, 7)}},
        {"train": {"length/truncated_frac": line(0.9, 0.0, 1, 20)}},  # learns to end
        {"train": {"length/truncated_frac": lambda step: 0.8 if step % 9 else 0.1}},
    ],
    "format_falling": [
        {"train": {"format/rate": line(0.1, 0.9, 5, 40)}},
        {"train": {"format/rate": lambda step: 0.9 if step % 2 else 0.6}},
        {"train": {"format/rate": line(0.0, 0.9, 25, 60)}},
    ],
    "repetition": [
        {"train": {"text/repetition": flat(0.7)}},  # as it began
        {"train": {"text/repetition": jump(0.05, 0.3, 15)}},
        {"train": {"text/repetition": lambda step: 0.9 if step % 5 == 0 else 0.1}},
    ],
    "same_completion": [
        {"rows": kept(outcomes(0.5))},
        {"rows": kept(lambda p, g: {"completion": "yes", "reference": "yes" if p < 7 else "no", "outcome": float(p < 7)})},
        {"rows": kept(lambda p, g: {"completion": "7", "outcome": float(p % 2)})},  # of how few answers is not known
        {"rows": kept(outcomes(0.5), lambda p, g: {"completion": str(p), "outcome": 1.0}, 12)},  # one each, and right
        {"rows": lambda step: samples(step, lambda p, g: {"completion": "the same text for all"}, prompts=4)},
    ],
    "heldout_falling": [
        {"train": {name: flat(0.5) for name in PAID}},  # nothing has risen
        {"evals": {name: every(10, flat(0.6)) for name in FALLING}},
        {"evals": {"eval/pass@1_low": every(10, flat(0.1)), "eval/pass@1_high": every(10, flat(0.9))}},  # noise explains it
    ],
}
"""The same runs without the trouble."""


@pytest.mark.parametrize(("name", "change"), [(name, change) for name, changes in WELL.items() for change in changes])
def test_of_the_run_without_the_trouble_nothing_is_said(name: str, change: dict[str, Any]) -> None:
    assert run(name, change) is None


# ---- thresholds


THRESHOLDS: dict[str, list[tuple[dict[str, Any], dict[str, Any], bool]]] = {
    # thresholds, what of the ill run is changed, and whether it is found with them: without them it is the other way round
    "reward_zero": [
        ({"window": 70}, {}, False),
        ({"samples": 2500}, {}, False),
        ({"window": 2, "samples": 1}, {"train": {"reward/all_wrong_frac": lambda step: float(step % 6 != 0)}}, True),
    ],
    "no_contrast": [
        ({"window": 61}, {}, False),
        ({"flat": 0.7}, {"train": {"reward/zero_std_frac": flat(0.75)}}, True),
        ({"early": 20}, WELL["no_contrast"][1], True),
    ],
    "length_blowup": [
        ({"growth": 8, "near": 0.95}, {}, False),
        ({"near_growth": 8, "growth": 8}, {}, False),
        ({"near": 0.2, "growth": 8}, {"train": {"length/mean": line(50, 140, 10, 40)}}, True),
        ({"floor": 400}, {}, False),
        ({"floor": 10}, WELL["length_blowup"][1], True),
        ({"worth": 0.6}, WELL["length_blowup"][2], True),
        ({"window": 50}, {}, False),
    ],
    "truncation": [
        ({"window": 55}, {}, False),
        ({"frac": 0.1}, WELL["truncation"][0], True),
        ({"falling": 0.01, "window": 10}, WELL["truncation"][1], True),
    ],
    "format_falling": [
        ({"drop": 0.7}, {}, False),
        ({"window": 60}, {}, False),
        ({"floor": 0.01}, {"train": {"format/rate": flat(0.02)}}, False),
        ({"patience": 70}, {"train": {"format/rate": flat(0.02)}}, False),
    ],
    "repetition": [
        ({"level": 0.8}, {}, False),
        ({"level": 0.2}, WELL["repetition"][1], True),
        ({"rise": 0.7}, {}, False),
        ({"window": 60}, {}, False),
    ],
    "same_completion": [
        ({"prompts": 11}, {"rows": kept(mostly_refuses)}, False),
        ({"share": 0.8}, {"rows": kept(mostly_refuses)}, False),
        ({"margin": 0.2, "right": 0.8}, WELL["same_completion"][1], True),
        ({"window": 8}, {"rows": kept(outcomes(0.5), mostly_refuses, 57)}, False),
        ({"distinct": 1.05}, {"rows": kept(outcomes(0.5), one_left, 12)}, False),
        ({"right": 0.5}, {"rows": kept(outcomes(0.5), one_left, 12)}, False),
    ],
    "heldout_falling": [
        ({"drop": 0.5}, {"evals": {n: every(99, flat(0.0)) for n in FALLING if n != "eval/pass@1"}}, False),
        ({"rise": 5}, {}, False),
        ({"gap": 0.6}, {"evals": GAP}, False),
        ({"gap_growth": 0.7}, {"evals": GAP}, False),
        ({"patience": 70}, {"evals": STEADY, "rows": UNPAID}, False),
    ],
}


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in THRESHOLDS.items() for case in cases])
def test_a_threshold_decides(name: str, case: tuple[dict[str, Any], dict[str, Any], bool]) -> None:
    options, change, found = case
    assert (run(name, change) is None) == found, "it is the threshold that decides"
    assert (run(name, {**change, "options": options}) is not None) == found


# ---- what is to be tried


@pytest.mark.parametrize("name", OURS)
def test_what_is_to_be_tried_composes(name: str) -> None:
    found = told(name, {"config": PAYS})
    if name != "reward_zero":  # of which an answer that is not read asks for a parser
        assert found.seen.tries
    for word in found.seen.tries:
        compose(["+reward/part@reward.parts.pays=custom", "reward.parts.pays.role=shaping", "reward.path=my.py:f", word])


# ---- what each tells apart


def test_a_parser_that_reads_nothing_is_told_from_a_model_that_knows_nothing() -> None:
    found = told("reward_zero", {"explain": lambda row: f"nothing read in {row['completion']!r}"})
    assert "does not read right answers" in found.seen.why
    assert found.seen.values["held"] == 0.75
    assert found.seen.values["held_by_chance"] == 0
    assert found.seen.tries == ["reward.parts.math.extract=[tag,boxed,hash,answer_is,equation,whole,last_number]"]
    assert [row["said"] for row in found.seen.samples] == [f"nothing read in 'so it is {100 + p}'" for p in range(3)]

    def clueless(p: int, g: int) -> Row:
        return {"completion": "1 2 3 4 5 6 7 8 9 10", "reference": str(p)}  # which holds any reference by chance

    other = told("reward_zero", {"rows": kept(clueless)})
    assert "too hard for the model" in other.seen.why
    assert other.seen.values["held"] > 0.8
    assert "algo=sft" in other.seen.tries


def test_a_reward_that_was_there_before_is_said_to_be_lost() -> None:
    found = told("reward_zero", {"train": {"reward/all_wrong_frac": jump(0.2, 1.0, 21)}, "rows": kept(outcomes(0))})
    assert (found.step, found.seen.since) == (28, 21)
    assert "lost what it could do" in found.seen.why
    assert found.seen.tries == ["lr=3.33e-05", "beta=0.12"]


def test_a_constant_reward_is_seen_without_shares_of_groups() -> None:
    assert told("reward_zero", without=("reward/all_wrong_frac",)).step == 8
    right = {"reward/mean": flat(1.0)}
    assert run("reward_zero", {"train": right}, without=("reward/all_wrong_frac",)) is None


@pytest.mark.parametrize(
    ("change", "why", "word"),
    [
        ({}, "too hard", "G=8"),
        ({"reward/all_wrong_frac": flat(0.0), "reward/all_right_frac": flat(1.0)}, "too easy", "data.levels=[hard]"),
        ({"reward/all_wrong_frac": flat(0.5), "text/unique_frac": flat(0.15)}, "no diversity", "temperature=1.3"),
        (
            {"reward/all_wrong_frac": jump(0.0, 1.0, 30), "reward/zero_std_frac": jump(0.1, 1.0, 30)},
            "lost what it could",
            "beta=0.12",
        ),
    ],
)
def test_why_groups_have_no_contrast(change: dict[str, Any], why: str, word: str) -> None:
    found = told("no_contrast", {"train": change})
    assert why in found.seen.why
    assert word in found.seen.tries


def test_without_shares_of_right_groups_a_reward_that_rose_is_not_without_contrast() -> None:
    other = ("reward/all_right_frac", "reward/all_wrong_frac", "text/unique_frac")
    late = {"reward/zero_std_frac": line(0.1, 1.0, 5, 20)}
    assert run("no_contrast", {"train": late | {"reward/mean": line(0.1, 1.0, 5, 20)}}, without=other) is None
    found = told("no_contrast", {"train": late | {"reward/mean": line(0.1, 0.0, 5, 20)}}, without=other)
    assert "too easy or too hard" in found.seen.why


def test_length_that_is_paid_for_is_found_also_where_more_is_right() -> None:
    def paid(p: int, g: int) -> Row:
        return {"outcome": float(g > 1), "length": 100 * (p + 1), "total": p / 2 + (g > 1)}

    found = told("length_blowup", {"rows": kept(outcomes(0.25), paid, 10), "config": PAYS})
    assert "pays for length" in found.seen.why
    assert found.seen.values["correlation of wrong ones"] == pytest.approx(1.0)
    assert found.seen.tries[:2] == ["reward.parts.pays.weight=0.3", "+reward/part@reward.parts.length=length"]
    assert [row["length"] for row in found.seen.samples] == [1000, 1000, 1000]


def test_long_wrong_samples_point_at_the_loss() -> None:
    found = told("length_blowup", {"train": {"length/wrong": flat(300.0), "length/right": flat(100.0)}})
    assert "divides by each row's own length" in found.seen.why
    assert "algo.aggregation=constant_length" in found.seen.tries


def test_samples_that_loop_are_not_given_more_tokens() -> None:
    assert told("truncation").seen.tries == ["max_new_tokens=800", "algo.mask_truncated=true"]
    found = told("truncation", {"train": {"text/repetition": flat(0.9)}})
    assert "loops" in found.seen.why
    assert not [word for word in found.seen.tries if word.startswith("max_new_tokens")]


def test_a_format_that_is_never_found() -> None:
    found = told("format_falling", {"train": {"format/rate": flat(0.02)}})
    assert (found.step, found.seen.since) == (30, 1)
    assert "algo=sft" in found.seen.tries


def test_samples_that_repeat_themselves_are_shown_the_worst_first() -> None:
    def looping(p: int, g: int) -> Row:
        words = "so we add two and three and four and five" if p != 4 else "wait no " * 8
        return {"completion": words}

    found = told("repetition", {"rows": kept(looping)})
    assert {row["id"] for row in found.seen.samples} == {"p4"}


def test_one_answer_that_is_not_the_commonest_reference() -> None:
    def seven(p: int, g: int) -> Row:
        return {"completion": "7", "reference": str(p), "outcome": float(p == 7)}

    found = told("same_completion", {"rows": kept(seven)})
    assert (found.step, found.seen.since) == (4, 1)
    assert found.seen.values == {"share": 1.0, "commonest_reference": 0.1, "prompts": 10.0}
    assert "'7'" in found.seen.text


def test_one_completion_left_for_each_prompt_while_many_are_wrong() -> None:
    found = told("same_completion", {"rows": kept(outcomes(0.5), lambda p, g: {"completion": f"is it {p}?"}, 12)})
    assert "lost its entropy" in found.seen.why
    assert (found.step, found.seen.since) == (15, 12)
    assert found.seen.values["distinct"] == 1


def test_the_part_that_rose_is_named_with_the_items_that_earn_more() -> None:
    def padded(p: int, g: int) -> Row:
        return {"total": 2.0 + p, "outcome": float(g > 1), "completion": "very " * p}

    found = told("heldout_falling", {"rows": kept(outcomes(0.5), padded, 20), "config": PAYS})
    assert found.seen.values["reward/part/pays"] > 0
    assert [row["id"] for row in found.seen.samples] == ["p9", "p8", "p7"]
    assert found.seen.samples[0]["total_before"] == 0.5


def test_a_shaping_part_that_rises_is_to_weigh_less() -> None:
    alone = {"reward/mean": flat(0.5)}
    found = told("heldout_falling", {"train": alone, "config": PAYS})
    assert "reward/part/pays pays for something else" in found.seen.why
    assert found.seen.tries == ["reward.parts.pays.weight=0.3", "beta=0.12"]


def test_a_small_training_set_that_is_learned_by_heart() -> None:
    found = told("heldout_falling", {"evals": GAP})
    assert (found.step, found.seen.since) == (40, 30)
    assert "(data.train=512) are learned by heart" in found.seen.why
    assert "data.train=2048" in found.seen.tries
    large = {"gap/train_minus_eval": every(10, flat(0.4))}  # as it has been: training items are easier
    assert run("heldout_falling", {"evals": STEADY | large}) is None


@pytest.mark.parametrize(("then", "step"), [(0.0, 20), (0.5, 50), (0.75, None)])
def test_a_reward_that_rises_while_the_outcome_does_not(then: float, step: int | None) -> None:
    """A falling outcome is told as soon as it is no noise, one that stays after `patience` steps, one that rises never."""
    make = {"total": 3.0, "reward/part/pays": 2.0}
    change = {
        "rows": kept(outcomes(0.5, **{"reward/part/pays": 0.0}), outcomes(then, **make), 16),
        "config": PAYS,
        "evals": STEADY,
    }
    found = run("heldout_falling", change)
    assert (found and found.step) == step
    if found is not None:
        assert "reward/part/pays earns what the outcome does not" in found.seen.why
