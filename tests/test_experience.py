"""Batches from stored examples and from samples, before any credit."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
import torch
from toy_policy import policy

from grpo_exp import config as configuration
from grpo_exp import run
from grpo_exp.batch import Completions, Example, Prompts, Rollout
from grpo_exp.compose import compose
from grpo_exp.errors import ConfigError
from grpo_exp.experience import Experience, ExperienceOptions, Offline, Online
from grpo_exp.memory import Rows
from grpo_exp.parts import Gate, Normalization
from grpo_exp.policy import Policy
from grpo_exp.prompt_order import PromptOrder
from grpo_exp.replay import ReplayOptions
from grpo_exp.rewards.base import Reward, RewardSum
from grpo_exp.rollout.base import Sampling
from grpo_exp.rollout.torch import TorchEngine

EXAMPLES = [Example("a", "1+1=?", "2", target="2"), Example("b", "what is 12+5", "17", target="2+5=7 <answer>17</answer>")]


def test_stored_targets_are_learned_with_their_end() -> None:
    model = policy()
    source = Offline(model, EXAMPLES, PromptOrder(EXAMPLES, 0, 0), rows_per_step=2, max_tokens=50)
    drawn = source.draw(1)
    order = [0, 1] if drawn.batch.mask.sum(-1).tolist()[0] == 2 else [1, 0]
    assert drawn.rewards is None
    for row, i in enumerate(order):
        ids = drawn.batch.tokens[row][drawn.batch.mask[row]].tolist()
        assert ids == [*model.tokenizer(EXAMPLES[i].target, add_special_tokens=False)["input_ids"], 2]
        asked = drawn.batch.prompt_tokens[drawn.batch.group[row]]
        assert model.decode([asked.tolist()]) == [EXAMPLES[i].prompt]
    assert torch.equal(drawn.batch.loss_mask, drawn.batch.mask)
    assert (drawn.batch.tokens[~drawn.batch.mask] == model.pad_id).all()
    assert drawn.tokens == 2 + 11 and drawn.metrics["length/mean"] == 6.5
    short = Offline(model, EXAMPLES, PromptOrder(EXAMPLES, 0, 0), rows_per_step=2, max_tokens=4).draw(1)
    assert sorted(short.batch.mask.sum(-1).tolist()) == [2, 4]


class Length(Reward):
    def score(self, completions: Completions) -> list[float | None]:
        return [float(len(ids)) for ids in completions.token_ids]


class Script(Reward):
    """Right (1) and wrong (0) as written down for the four samples of each prompt, by its id."""

    table: ClassVar[dict[str, list[float]]] = {}

    def score(self, completions: Completions) -> list[float | None]:
        seen: Counter[str] = Counter()
        values = []
        for example in completions.examples:
            values.append(self.table[example.id][seen[example.id] % 4])
            seen[example.id] += 1
        return list(values)


def experience(groups: int = 0, capacity: int = 8, **changes: Any) -> ExperienceOptions:
    values = {"max_tokens": 0, "dynamic_sampling": False, "max_rounds": 3, "skip_visits": 0} | changes
    return ExperienceOptions(**values, replay=ReplayOptions(groups, capacity, 2.0))


def online(
    examples: list[Example] = EXAMPLES, reward: Reward | None = None, engine: TorchEngine | None = None, **changes: Any
) -> Online:
    model = policy()
    model.eos_ids = list(range(2, 89, 4))
    length = Length("length", 1.0, "outcome" if reward is None else "shaping")
    rewards = RewardSum({"length": length} | ({} if reward is None else {"script": reward}))
    options = experience(**changes)
    order = PromptOrder(examples, 0, 0, options.skip_visits)
    engine = engine or TorchEngine("torch", 1.0, 0, 0.0, [])
    return Online(model, engine, rewards, examples, order, Sampling(1.0, 5, 4, (3, 0, 0)), 2, Rows(100), options)


def scripted(**table: str) -> Script:
    """`a="0110"`: the outcomes of the four samples of prompt a."""
    made = Script("script", 1.0, "outcome")
    made.table = {name: [float(c) for c in text] for name, text in table.items()}
    return made


def asks(*ids: str) -> list[Example]:
    return [Example(i, f"{n}+1=?", "2") for n, i in enumerate(ids)]


def ids(drawn: Experience) -> list[str]:
    """The prompts that were asked, in order."""
    return [row["id"] for row in drawn.samples][::4]


def learned(drawn: Experience) -> list[list[float]]:
    """Outcomes of the groups in the batch."""
    assert drawn.batch.outcome is not None
    return drawn.batch.outcome.reshape(-1, 4).tolist()


def test_samples_and_their_rewards_stay_together() -> None:
    drawn = online().draw(1)
    assert drawn.rewards is not None
    assert drawn.rewards.total.tolist() == drawn.batch.mask.sum(-1).tolist() == [row["length"] for row in drawn.samples]
    assert drawn.tokens == int(drawn.batch.mask.sum())
    assert [row["reference"] for row in drawn.samples] == [EXAMPLES["ab".index(row["id"])].answer for row in drawn.samples]
    assert torch.equal(drawn.batch.loss_mask, drawn.batch.mask)
    assert drawn.batch.reward is not None and drawn.batch.reward.tolist() == drawn.rewards.total.tolist()
    assert drawn.batch.finished is not None
    assert drawn.batch.finished.tolist() == [row["finished"] for row in drawn.samples]
    assert 0 < drawn.batch.finished.sum() < 8


def test_parts_are_normalised_in_their_group_and_travel_with_their_rows() -> None:
    """Over rounds, with filtering, and into the replayed groups; the reward keeps its meaning."""
    table = scripted(a="0110", b="0000", c="0011", d="0001")
    source = online(asks("a", "b", "c", "d"), table, dynamic_sampling=True, groups=1)
    source.rewards.normalization = Normalization("group", 1, 0.0)
    for step in (1, 2):
        drawn = source.draw(step)
        batch = drawn.batch
        assert batch.normalized is not None and batch.reward is not None and drawn.rewards is not None
        assert batch.credited is batch.normalized
        expected = torch.zeros(len(batch))
        parts = {"script": batch.outcome, "length": batch.mask.sum(-1).float()}  # which add up to the reward
        torch.testing.assert_close(batch.reward, sum(parts.values()))  # type: ignore[arg-type]
        for rows in (batch.group == group for group in batch.group.unique()):
            for values in parts.values():
                own = values[rows].tolist()  # type: ignore[index]
                spread = statistics.stdev(own)
                expected[rows] += torch.tensor([(v - statistics.mean(own)) / spread if spread else 0 for v in own])
        torch.testing.assert_close(batch.normalized, expected)
    assert batch.age is not None and batch.age.max() == 1, "the second step learns from a group of the first as well"


def test_replayed_groups_that_were_not_normalised_are_forgotten_by_a_run_that_does() -> None:
    table = scripted(a="0110", b="0011")
    before = online(asks("a", "b"), table, groups=1)
    before.draw(1)
    for normalization, kept in ((Normalization("group", 1, 0.0), 0), (Normalization("none", 1, 0.0), 2)):
        after = online(asks("a", "b"), table, groups=1)
        after.rewards.normalization = normalization
        after.load(before.state(), before.tensors())
        assert len(after.replay) == kept
        after.draw(2)


def test_closed_gates_are_counted_over_rounds() -> None:
    source = online(asks("a", "b", "c"), scripted(a="0110", b="0000", c="0011"), dynamic_sampling=True)
    source.rewards = RewardSum(
        {"script": source.rewards.parts["script"], "long": Length("length", 0.0, "gate")}, gate=Gate(2.0, 0.0)
    )
    drawn = source.draw(1)
    assert drawn.rewards is not None and drawn.rewards.closed is not None
    short = [row["length"] <= 2 for row in drawn.samples]
    assert drawn.rewards.closed.tolist() == short and 0 < sum(short) < len(short)
    assert drawn.metrics["reward/closed_frac"] == sum(short) / len(short)
    assert all(row["total"] == row["outcome"] == 0 for row, shut in zip(drawn.samples, short, strict=True) if shut)


def test_a_reward_is_told_how_many_steps_are_over() -> None:
    seen: list[int] = []
    source = online()
    score = source.rewards.parts["length"].score
    source.rewards.parts["length"].score = lambda completions: seen.append(completions.steps) or score(completions)  # type: ignore[method-assign,func-returns-value]
    source.draw(1)
    source.draw(7)
    assert seen == [0, 6]


def test_each_step_draws_other_numbers_and_repeats() -> None:
    same = online(EXAMPLES[:1])  # the prompt is always the same one
    assert [row["completion"] for row in same.draw(1).samples] != [row["completion"] for row in same.draw(2).samples]
    one = online()
    first, second = one.draw(1), one.draw(2)
    assert [row["completion"] for row in first.samples] != [row["completion"] for row in second.samples]
    again = online()
    assert [row["completion"] for row in again.draw(1).samples] == [row["completion"] for row in first.samples]
    # From a saved place in the data, step 2 is what it was.
    later = online()
    later.draw(1)
    resumed = online()
    resumed.load(later.state(), later.tensors())
    assert [row["completion"] for row in resumed.draw(2).samples] == [row["completion"] for row in second.samples]


# ---- dynamic sampling


NAMES = "abcdefgh"
ORDER = [NAMES[i] for i in PromptOrder(asks(*NAMES), 0, 0).take(8)]
"""The order in which the prompts a to h are asked, so that a test can say what the first one is worth."""


def in_order(*outcomes: str) -> Script:
    """Outcomes of the prompts in the order in which they are asked; those after the last are half right."""
    return scripted(**dict(zip(ORDER, [*outcomes, *["0101"] * (8 - len(outcomes))], strict=True)))


class Counting(TorchEngine):
    """Notes how it was asked to sample."""

    calls: list[tuple[int, Sampling]]

    def sample(self, policy: Policy, prompts: Prompts, sampling: Sampling, rows: int) -> Rollout:
        self.calls = [*getattr(self, "calls", []), (len(prompts), sampling)]
        return super().sample(policy, prompts, sampling, rows)


def test_groups_of_equal_outcomes_are_replaced_whatever_their_shaped_rewards() -> None:
    """The second prompt is all wrong, its rewards differ by length: a phantom gradient if it stayed. One more is asked."""
    engine = Counting("torch", 1.0, 0, 0.0, [])
    drawn = online(asks(*NAMES), in_order("0011", "0000", "1000"), engine, dynamic_sampling=True).draw(1)
    assert drawn.rewards is not None and drawn.rewards.total[4:8].std() > 0
    assert [count for count, _ in engine.calls] == [2, 1]
    assert ids(drawn) == ORDER[:3] and learned(drawn) == [[0, 0, 1, 1], [1, 0, 0, 0]]
    assert drawn.metrics["signal/rounds"] == 2 and drawn.metrics["signal/kept_frac"] == pytest.approx(2 / 3)
    asked = [drawn.batch.prompt_tokens[g][drawn.batch.prompt_mask[g]].tolist() for g in range(2)]
    model = policy()
    assert model.decode(asked) == [f"{NAMES.index(name)}+1=?" for name in (ORDER[0], ORDER[2])]
    # Rows, rewards and log-probs of the batch are those of the samples.
    assert drawn.batch.reward is not None and drawn.batch.behaviour_logp is not None
    assert drawn.batch.reward.tolist() == [row["total"] for i, row in enumerate(drawn.samples) if i // 4 in (0, 2)]
    assert drawn.batch.mask.sum(-1).tolist() == [row["length"] for i, row in enumerate(drawn.samples) if i // 4 in (0, 2)]
    assert torch.equal(drawn.batch.behaviour_logp != 0, drawn.batch.mask)


def test_what_is_measured_is_every_sample_and_what_is_counted_every_token() -> None:
    drawn = online(asks(*NAMES), in_order("1111", "0000", "1000", "0111"), dynamic_sampling=True).draw(1)
    assert len(drawn.samples) == 16 and len(drawn.batch) == 8
    assert drawn.tokens == sum(row["length"] for row in drawn.samples) > int(drawn.batch.mask.sum())
    assert drawn.metrics["reward/part/script"] == pytest.approx(8 / 16)
    assert drawn.metrics["reward/all_right_frac"] == drawn.metrics["reward/all_wrong_frac"] == 0.25
    assert drawn.metrics["length/mean"] == pytest.approx(drawn.tokens / 16)
    assert drawn.rewards is not None and drawn.rewards.outcome.tolist() == [row["outcome"] for row in drawn.samples]


@pytest.mark.parametrize(("most", "asked", "kept"), [(1, 2, 1), (2, 3, 1), (3, 4, 2)])
def test_rounds_end_at_the_cap_with_what_is_there(most: int, asked: int, kept: int) -> None:
    source = online(asks(*NAMES), in_order("0000", "0001", "1111"), dynamic_sampling=True, max_rounds=most)
    drawn = source.draw(1)
    assert (len(ids(drawn)), len(learned(drawn))) == (asked, kept)
    assert ids(source.draw(2))[0] == ORDER[asked]  # a step goes on where the last round ended


def test_where_no_group_has_contrast_the_first_round_is_learned_from() -> None:
    drawn = online(asks(*NAMES), in_order(*["0000"] * 2, *["1111"] * 6), dynamic_sampling=True).draw(1)
    assert len(ids(drawn)) == 6 and learned(drawn) == [[0] * 4] * 2
    assert drawn.metrics["signal/kept_frac"] == 0 and drawn.metrics["signal/rounds"] == 3


def test_rounds_of_a_step_share_no_random_numbers() -> None:
    """One prompt, asked again in each round: other completions, those that more prompts in one round would have had."""
    twins = [Example(name, "1+1=?", "2") for name in NAMES]
    rounds = online(twins, in_order(*["0000"] * 6), dynamic_sampling=True).draw(1)
    texts = [row["completion"] for row in rounds.samples]
    assert len(texts) == 24 and len(set(texts)) > 18
    at_once = online(twins, in_order())
    at_once.count = 6
    assert texts == [row["completion"] for row in at_once.draw(1).samples]


def test_where_every_group_has_contrast_dynamic_sampling_changes_nothing() -> None:
    plain, dynamic = (online(asks(*NAMES), in_order(), dynamic_sampling=on) for on in (False, True))
    for step in (1, 2):
        one, other = plain.draw(step), dynamic.draw(step)
        assert one.samples == other.samples and one.tokens == other.tokens
        for field in dataclasses.fields(one.batch):
            a, b = getattr(one.batch, field.name), getattr(other.batch, field.name)
            assert a is b is None or torch.equal(a, b), field.name


def test_rounds_join_where_sampling_keeps_a_part_of_the_vocabulary() -> None:
    engine = TorchEngine("torch", 0.8, 0, 0.0, [])
    drawn = online(asks(*NAMES), in_order("0000", "0001"), engine, dynamic_sampling=True).draw(1)
    said = policy().forward(drawn.batch, 1.0)
    assert drawn.batch.behaviour_logp is not None and drawn.batch.support is not None
    torch.testing.assert_close(said.logp, drawn.batch.behaviour_logp, rtol=0, atol=1e-4)


# ---- curriculum


def test_prompts_that_teach_nothing_rest() -> None:
    """Of four prompts one is always right: it is asked in the first pass over them, and not in the next two."""
    names = asks(*"abcd")
    source = online(names, scripted(a="1111", b="0101", c="0110", d="1000"), skip_visits=2)
    drawn = [source.draw(step) for step in range(1, 6)]
    assert sorted(ids(drawn[0]) + ids(drawn[1])) == list("abcd")
    assert "a" not in [name for one in drawn[2:] for name in ids(one)]
    assert [one.metrics["signal/resting_frac"] for one in drawn] == [0, 0, 0.25, 0.25, 0.25]


# ---- state


def test_a_source_goes_on_bit_for_bit_from_its_state() -> None:
    """Two draws, state, load and two draws are four draws: order, curriculum and replayed groups, through JSON and a file."""
    changes: dict[str, Any] = {"dynamic_sampling": True, "skip_visits": 1, "groups": 2, "capacity": 3}
    table = in_order("0000", "1111", "0001")
    whole, first, second = (online(asks(*NAMES), table, **changes) for _ in range(3))
    drawn = [whole.draw(step) for step in (1, 2, 3, 4)]
    for step in (1, 2):
        first.draw(step)
    second.load(json.loads(json.dumps(first.state())), {name: x.clone() for name, x in first.tensors().items()})
    for step in (3, 4):
        again, before = second.draw(step), drawn[step - 1]
        assert again.samples == before.samples
        assert before.batch.age is not None and before.batch.age.max() > 0
        for field in dataclasses.fields(before.batch):
            a, b = getattr(again.batch, field.name), getattr(before.batch, field.name)
            assert a is b is None or torch.equal(a, b), field.name


def test_an_older_checkpoint_that_counted_steps_without_contrast_still_loads() -> None:
    old, new = (online(asks(*NAMES), in_order("0000", "1111", "0001")) for _ in range(2))
    old.draw(1)
    state = old.state()
    assert "flat" not in state
    new.load(json.loads(json.dumps({**state, "flat": 7})), old.tensors())
    assert new.draw(2).samples == old.draw(2).samples


# ---- what is refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algo=sft", "experience.dynamic_sampling=true"], "experience.dynamic_sampling=true: .*stored examples"),
        (["algo=sft", "experience.skip_visits=1"], "experience.skip_visits=1: .*Use experience.skip_visits=0"),
        (["experience.replay.groups=3", "experience.replay.capacity=2"], "experience.replay.groups=3: .*Raise the capacity"),
        (["experience.max_rounds=0"], "experience.max_rounds=0"),
        (["experience.replay.weight_max=0"], "experience.replay.weight_max=0"),
        (["algo=ppo", "G=1", "experience.dynamic_sampling=true"], "G=1"),
    ],
)
def test_options_without_effect_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configuration.build(compose(["model=tiny_random", *words]))


@pytest.mark.parametrize(("pool", "fits"), [(24, False), (25, True)])
def test_a_pool_so_small_that_no_prompt_could_rest_is_refused(pool: int, fits: bool) -> None:
    words = ["model=tiny_random", "experience.skip_visits=1", "prompts_per_step=12", f"data.train={pool}"]
    config = configuration.build(compose(words))
    with nullcontext() if fits else pytest.raises(ConfigError, match="has 24, so that none could ever rest"):
        run.check_data(config, config.data.load())
