"""Batches from stored examples and from samples, before any credit."""

from __future__ import annotations

import torch
from toy_policy import policy

from grpo_exp.batch import Completions, Example
from grpo_exp.experience import Offline, Online
from grpo_exp.prompt_order import PromptOrder
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


def online(examples: list[Example] = EXAMPLES) -> Online:
    model = policy()
    model.eos_ids = list(range(2, 89, 4))
    engine = TorchEngine("torch", 1.0, 0, [])
    rewards = RewardSum({"length": Length("length", 1.0, "outcome")})
    order = PromptOrder(examples, 0, 0)
    return Online(model, engine, rewards, examples, order, Sampling(1.0, 5, 4, (3, 0, 0)), 2, 100)


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
    resumed.load(later.state())
    assert [row["completion"] for row in resumed.draw(2).samples] == [row["completion"] for row in second.samples]
