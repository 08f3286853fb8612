"""The profiles of published data on the real files."""

from __future__ import annotations

import re

import pytest


@pytest.fixture
def svamp(source, shared):
    return source("svamp_file", path=str(shared / "svamp.json")).load()


def test_svamp_equations_read_naturally_and_evaluate_to_the_answer(svamp):
    items = {item.id: item for item in svamp.train + svamp.heldout}
    assert (len(svamp.train), len(svamp.heldout), len(items)) == (700, 300, 1000)
    assert items["chal-1"].target == "76 - 25 = 51"
    shape = re.compile(r"(\d+|\(\d+ [-+*/] \d+\))( [-+*/] (\d+|\(\d+ [-+*/] \d+\)))? = \d+")
    wrong = []
    for item in items.values():
        assert shape.fullmatch(item.target), item.target
        equation, answer = item.target.split(" = ")
        assert answer == item.answer
        if eval(equation) != int(answer):
            wrong.append(item.id)
    assert wrong == ["chal-680"]  # the one row whose published equation contradicts its answer


def test_svamp_prompts_and_strata(svamp):
    items = {item.id: item for item in svamp.train + svamp.heldout}
    assert {item.category for item in items.values()} == {"Subtraction", "Addition", "Common-Division", "Multiplication"}
    system, asked = items["chal-1"].prompt
    assert system["role"] == "system" and "114 / 57 = 2" in system["content"]
    assert asked["content"] == (
        "Each pack of dvds costs 76 dollars. If there is a discount of 25 dollars on each pack, "
        "How much do you have to pay to buy each pack?"
    )
    assert not [i.id for i in items.values() if re.search(r"\w How (much|many)", i.prompt[-1]["content"])]


def test_svamp_stages_share_no_item(source, shared):
    path = str(shared / "svamp.json")
    sft, rl = source("svamp_file", path=path, train_to=0.5).load(), source("svamp_file", path=path, train_from=0.5).load()
    assert (len(sft.train), len(rl.train)) == (350, 350)
    assert {i.id for i in sft.train}.isdisjoint(i.id for i in rl.train) and sft.heldout == rl.heldout


def test_gsm8k_answers(source, shared):
    data = source("gsm8k_file", path=str(shared / "gsm8k_test.jsonl")).load()
    items = {item.id: item for item in data.train + data.heldout}
    assert len(items) == 1319 and len(data.heldout) == 200
    assert items["row-1"].answer == "18"
    assert items["row-1"].target.endswith("She makes 9 * 2 = $18 every day at the farmer’s market.\n#### 18")
    assert all(re.fullmatch(r"-?[\d,]+", item.answer) for item in items.values())
    assert any("," in item.answer for item in items.values())


@pytest.mark.parametrize("profile", ["file", "gsm8k_file", "svamp_file", "hub"])
def test_a_profile_without_a_path_says_what_it_needs(source, profile):
    from grpo_exp.errors import DataError

    with pytest.raises(DataError, match=f"data={profile} needs data.path="):
        source(profile).load()
