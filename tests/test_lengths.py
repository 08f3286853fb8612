"""The note on lengths before training, in tokens of the model, and what it proposes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import SMALL, call

from grpo_exp.batch import Example
from grpo_exp.data.base import Dataset
from grpo_exp.lengths import note, proposal


class Words:
    """Stands in for a policy whose tokens are words, and whose targets have an end of sequence."""

    def prompt_ids(self, example: Example) -> tuple[list[int], str]:
        return [0] * len(str(example.prompt).split()), str(example.prompt)

    def encode_target(self, text: str) -> list[int]:
        return [0] * (len(text.split()) + 1)


def data(*items: Example) -> Dataset:
    return Dataset(list(items), [], "", "")


def said(of: Dataset, limit: int) -> str:
    return note(of, Words(), limit)  # type: ignore[arg-type]


def test_prompts_alone() -> None:
    items = [Example(str(n), " ".join(["w"] * n)) for n in (3, 5, 9)]
    assert said(data(*items), 8) == "tokens: prompts 5 (3 to 9)"


def test_targets_and_the_room_for_them() -> None:
    items = [Example(str(n), "w w", target=" ".join(["w"] * n)) for n in (3, 5, 20)]
    assert said(data(*items), 21).endswith("targets 6 (4 to 21), for which max_new_tokens=21 has room")
    assert said(data(*items), 20).endswith("targets 6 (4 to 21), 1 of 3 longer than max_new_tokens=20: 32 has room for all")
    pairs = [Example("p", "w", chosen="w w", rejected="w w w w")]
    assert "targets 5 (3 to 5), 2 of 2 longer than max_new_tokens=2: 16" in said(data(*pairs), 2)


@pytest.mark.parametrize(("targets", "wanted"), [([1], 16), ([16, 3], 16), ([17], 32), ([100, 129], 144)])
def test_what_is_proposed_is_enough(targets: list[int], wanted: int) -> None:
    assert proposal(targets) == wanted >= max(targets)


def test_many_items_are_sampled_evenly() -> None:
    items = [Example(str(i), "w" if i % 2 else "w w", target="w") for i in range(5000)]
    text = said(data(*items), 8)
    assert text.startswith("tokens of 500 training items: prompts ")


def test_it_stands_in_the_run_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(capsys, *SMALL, "algo=sft", "hydra.run.dir=run").code == 0
    notes = json.loads(Path("run/run.json").read_text())["data"]["notes"]
    assert notes[-1].startswith("tokens: prompts ") and "longer than max_new_tokens=6" in notes[-1]
