from __future__ import annotations

import pytest

from grpo_exp.errors import ConfigError


def test_prompts_in_two_languages(source):
    data = source("digits").load()
    assert len(data.train) == 10 and len(data.heldout) == 4
    assert {i.category for i in data.train} == {i.category for i in data.heldout} == {"english", "chinese"}
    assert all(i.answer is None and [m["role"] for m in i.prompt] == ["user"] for i in data.train + data.heldout)
    asked = [i.prompt[0]["content"] for i in data.train + data.heldout]
    assert len(set(asked)) == len({i.id for i in data.train + data.heldout}) == 14
    assert data == source("digits").load()


def test_a_prompt_cannot_be_held_out_and_trained_on(source):
    with pytest.raises(ConfigError, match=r"'只回答一个数字。' is also in data.train"):
        source("digits", heldout={"chinese": ["只回答一个数字。"]})
    with pytest.raises(ConfigError, match=r"data\.train"):
        source("digits", train={"english": [" "]})
