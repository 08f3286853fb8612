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


def test_seeds_and_epochs_differ():
    first, second = PromptOrder(pool(50), 1, 8), PromptOrder(pool(50), 2, 8)
    epochs = [tuple(first.take(50)), tuple(first.take(50)), tuple(second.take(50))]
    assert len(set(epochs)) == 3


def test_order_is_the_same_on_every_platform():
    """Written down: sha256 of `salt/name`, sorted; computed with sha256sum and sort."""
    assert shuffled(["a", "b", "c", "d"], "s") == [3, 0, 2, 1]


def test_more_prompts_than_the_pool_repeats_only_after_it_is_used_up():
    taken = PromptOrder(pool(2, 1), 0, memory=100).take(8)
    assert sorted(taken[:3]) == sorted(taken[3:6]) == [0, 1, 2] and taken[2] != taken[3]
    assert PromptOrder(pool(1), 0, memory=5).take(3) == [0, 0, 0]


def test_a_state_of_another_run_is_refused():
    state = PromptOrder(pool(5), 1, 2).state()
    for other in (PromptOrder(pool(6), 1, 2), PromptOrder(pool(5), 2, 2), PromptOrder(pool(5), 1, 1)):
        with pytest.raises(CheckpointError, match="resume with the data and the seed"):
            other.load(state)


def test_no_prompts():
    with pytest.raises(DataError, match="no training prompts"):
        PromptOrder([], 0, 4)
