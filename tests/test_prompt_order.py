from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_exp.batch import Example
from grpo_exp.errors import CheckpointError, DataError
from grpo_exp.prompt_order import PromptOrder, shuffled


def pool(*sizes: int) -> list[Example]:
    """Examples of len(sizes) categories."""
    return [Example(id=f"{c}-{i}", prompt="p", category=str(c)) for c, size in enumerate(sizes) for i in range(size)]


pools = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(lambda sizes: pool(*sizes))
seeds = st.integers(0, 2**32)
few = settings(max_examples=40, deadline=None)


@few
@given(pools, seeds, st.integers(0, 40), st.lists(st.integers(1, 30), min_size=1, max_size=12))
def test_each_prompt_once_an_epoch_and_none_back_too_soon(examples, seed, memory, steps):
    order = PromptOrder(examples, seed, memory)
    taken = [i for count in steps for i in order.take(count)]
    assert len(taken) == sum(steps)
    n = len(examples)
    for start in range(0, len(taken), n):
        epoch = taken[start : start + n]
        assert len(set(epoch)) == len(epoch)
    apart = min(memory, n // 2)
    last: dict[int, int] = {}
    for place, index in enumerate(taken):
        assert place - last.get(index, -(10**9)) > apart
        last[index] = place


@few
@given(pools, seeds, st.integers(1, 40))
def test_every_start_of_an_epoch_is_close_to_proportional(examples, seed, memory):
    n = len(examples)
    share = {c: k / n for c, k in Counter(e.category for e in examples).items()}
    epoch = PromptOrder(examples, seed, memory).take(n)
    counts: Counter[str] = Counter()
    for length, index in enumerate(epoch, 1):
        counts[examples[index].category] += 1
        for category, part in share.items():
            assert abs(counts[category] - part * length) <= 0.5 + part * len(share) / 2 + 1e-9


@few
@given(pools, seeds, st.integers(0, 10), st.integers(0, 60), st.integers(1, 9))
def test_goes_on_where_its_state_was_taken(examples, seed, memory, before, step):
    order = PromptOrder(examples, seed, memory)
    order.take(before)
    state = json.loads(json.dumps(order.state()))
    resumed = PromptOrder(examples, seed, memory)
    resumed.load(state)
    assert [resumed.take(step) for _ in range(20)] == [order.take(step) for _ in range(20)]


@pytest.mark.parametrize("sizes", [(30, 10, 20), (8, 8, 8), (100, 100, 3)])
def test_memory_leaves_later_epochs_proportional(sizes):
    examples = pool(*sizes)
    order = PromptOrder(examples, 0, memory=len(examples) // 2)
    for _ in range(10):
        counts = [0] * len(sizes)
        for length, index in enumerate(order.take(len(examples)), 1):
            counts[int(examples[index].category)] += 1
            assert all(abs(count - size / len(examples) * length) < 1 for count, size in zip(counts, sizes, strict=True))


# ---- prompts that rest


def epochs(order: PromptOrder, count: int, wrong: set[int]) -> list[list[int]]:
    """The prompts of some epochs, those of `wrong` recorded without contrast after each."""
    found = []
    for _ in range(count):
        taken = [order.take(1)[0]]
        while order.state()["position"] < len(order._order):
            taken += order.take(1)
        order.record(taken, [index not in wrong for index in taken])
        found.append(taken)
    return found


def test_a_prompt_without_contrast_misses_its_next_visits():
    """Recorded in epoch 0, left out of epochs 1 and 2, back in 3; one with contrast never misses any."""
    order = PromptOrder(pool(6, 4), 0, 2, skip_visits=2)
    taken = epochs(order, 7, wrong={1, 8})
    assert [{1, 8} <= set(epoch) for epoch in taken] == [True, False, False, True, False, False, True]
    assert all(set(epoch) >= set(range(10)) - {1, 8} and len(set(epoch)) == len(epoch) for epoch in taken)
    assert order.resting_frac == 0
    order.take(1)
    assert order.resting_frac == 0.2


def test_contrast_ends_a_rest():
    order = PromptOrder(pool(10), 0, 2, skip_visits=3)
    order.record([4, 5], [False, False])
    order.record([5], [True])
    assert [4 in epoch for epoch in epochs(order, 5, set())] == [True, True, True, True, True]  # 4 had contrast in epoch 0
    order.record([4], [False])
    assert [4 in epoch for epoch in epochs(order, 5, set())] == [False, False, False, True, True]


def test_without_visits_to_skip_nothing_rests():
    plain, told = PromptOrder(pool(7, 3), 5, 3), PromptOrder(pool(7, 3), 5, 3)
    told.record(range(10), [False] * 10)
    assert [plain.take(7) for _ in range(9)] == [told.take(7) for _ in range(9)]


def test_if_all_would_rest_those_nearest_to_return_come_back():
    """Prompts 0 to 3 rest until epoch 5, the others until epoch 9: four (2 x memory) must be in every epoch."""
    order = PromptOrder(pool(10), 0, 2, skip_visits=5)
    order.record(range(4), [False] * 4)
    state = order.state()
    state["rests"] = [[i, 5 if i < 4 else 9] for i in range(10)]
    order.load(state)
    order.take(10)
    assert set(order.take(4)) == {0, 1, 2, 3} and order.resting_frac == 0.6
    assert PromptOrder(pool(1), 0, 0, skip_visits=1).take(3) == [0, 0, 0]


@few
@given(pools, seeds, st.integers(0, 12), st.integers(0, 4), st.lists(st.integers(1, 20), min_size=1, max_size=12), st.data())
def test_rest_keeps_the_order_an_order(examples, seed, memory, skip, steps, data):
    """No early return, and from a state on the same prompts, whatever was recorded before and after it."""
    order = PromptOrder(examples, seed, memory, skip)
    apart = min(memory, len(examples) // 2)
    place, last = 0, {}
    for count in steps:
        for index in order.take(count):
            assert place - last.get(index, -(10**9)) > apart
            last[index], place = place, place + 1
        asked = data.draw(st.lists(st.sampled_from(sorted(last)), max_size=count, unique=True))
        order.record(asked, data.draw(st.lists(st.booleans(), min_size=len(asked), max_size=len(asked))))
    resumed = PromptOrder(examples, seed, memory, skip)
    resumed.load(json.loads(json.dumps(order.state())))
    for count in steps:
        assert resumed.take(count) == order.take(count)
        for one in (resumed, order):
            one.record([0], [False])
    assert 0 <= order.resting_frac < 1


def test_what_is_left_stays_proportional():
    """Two categories of 40, half of one resting: every stretch has twice as many of the other."""
    examples = pool(40, 40)
    order = PromptOrder(examples, 0, 5, skip_visits=1)
    order.record(range(20), [False] * 20)
    order.take(80)
    counts = [0, 0]
    for length, index in enumerate(order.take(60), 1):
        assert index >= 20
        counts[int(examples[index].category)] += 1
        assert abs(counts[0] - length / 3) < 1


def test_seeds_and_epochs_differ():
    first, second = PromptOrder(pool(50), 1, 8), PromptOrder(pool(50), 2, 8)
    epochs = [tuple(first.take(50)), tuple(first.take(50)), tuple(second.take(50))]
    assert len(set(epochs)) == 3


def test_order_is_the_same_on_every_platform():
    """Written down: sha256 of `salt/name`, sorted; computed with sha256sum and sort."""
    assert list(shuffled(["a", "b", "c", "d"], "s")) == [3, 0, 2, 1]


def test_more_prompts_than_the_pool_repeats_only_after_it_is_used_up():
    taken = PromptOrder(pool(2, 1), 0, memory=100).take(8)
    assert sorted(taken[:3]) == sorted(taken[3:6]) == [0, 1, 2] and taken[2] != taken[3]
    assert PromptOrder(pool(1), 0, memory=5).take(3) == [0, 0, 0]


def test_a_state_of_another_run_is_refused():
    state = PromptOrder(pool(5), 1, 2).state()
    others = (PromptOrder(pool(6), 1, 2), PromptOrder(pool(5), 2, 2), PromptOrder(pool(5), 1, 1), PromptOrder(pool(5), 1, 2, 3))
    for other in others:
        with pytest.raises(CheckpointError, match="resume with the data and the seed"):
            other.load(state)


def test_no_prompts():
    with pytest.raises(DataError, match="no training prompts"):
        PromptOrder([], 0, 4)
