"""`python -m grpo_exp pairs`: what it writes, the command it prints, and errors."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import SMALL, call

from grpo_exp.compose import compose
from grpo_exp.config import resolved

MODEL = ["tiny_random", "data.train=8", "data.heldout=6", "hardware.threads=1", "max_new_tokens=6", "prompts_per_step=3", "G=4"]
REWARD = """
def score(completions, level):
    return [len(set(text)) / 8 + (one == "hard") for text, one in zip(completions, level)]

def same(completions):
    return [0.5] * len(completions)
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARD)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_from_samples_to_a_trained_policy(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line is a command that trains on the files and measures pass@1 on the held-out items."""
    answer = call(capsys, "pairs", *MODEL, "reward=custom", "reward.path=mine.py:score")
    assert (answer.code, answer.err) == (0, "")
    *_, count, written, command = answer.out.splitlines()
    folder = Path(written.removeprefix("written to "))
    assert folder.parent == Path("outputs/pairs") and folder.name.endswith("_tiny_random")
    assert {p.name for p in folder.iterdir()} == {"pairs.jsonl", "heldout.jsonl", "config.yaml"}
    pairs, heldout = rows(folder / "pairs.jsonl"), rows(folder / "heldout.jsonl")
    assert count == f"{len(pairs)} pairs of 8 training items, 6 held-out items"
    assert 0 < len(pairs) <= 8 and len({row["id"] for row in pairs}) == len(pairs)
    for row in pairs:
        assert row.keys() == {
            *("id", "prompt", "chosen", "rejected", "chosen_reward", "rejected_reward", "answer", "category", "level")
        }
        assert row["chosen_reward"] > row["rejected_reward"] and row["chosen"] != row["rejected"]
        bonus = row["category"] == "hard"
        assert row["chosen_reward"] == pytest.approx(len(set(row["chosen"])) / 8 + bonus)
        assert row["rejected_reward"] == pytest.approx(len(set(row["rejected"])) / 8 + bonus)
    assert [row.keys() for row in heldout] == [{"id", "prompt", "answer", "category", "level"}] * 6

    words = shlex.split(command)
    assert words[:5] == ["python", "-m", "grpo_exp", "algo=dpo_offline", "data=preferences"]
    small = [w for w in SMALL if not w.startswith(("data.", "G="))]
    reward = ["reward=custom", "reward.path=mine.py:score"]
    answer = call(capsys, *words[3:], *small, *reward, "hydra.run.dir=run")
    assert (answer.code, answer.err) == (0, "")
    card = json.loads(Path("run/run.json").read_text())
    assert (card["status"], card["goal"]["metric"], card["data"]["train"], card["data"]["heldout"]) == (
        *("finished", "eval/pass@1", len(pairs), 6),
    )


def test_the_same_words_make_the_same_pairs_and_another_seed_others(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*MODEL, "reward=custom", "reward.path=mine.py:score"]
    for folder, more in (("a", []), ("b", []), ("c", ["seed=1"])):
        assert call(capsys, "pairs", *words, *more, f"hydra.run.dir={folder}").code == 0
    a, b, c = ((Path(folder) / "pairs.jsonl").read_bytes() for folder in "abc")
    assert a == b != c


def test_chat_prompts_stay_messages(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"q": f"{i}+1?", "level": "easy"} for i in range(6)]
    Path("q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = ["data=file", "data.path=q.jsonl", "data.prompt=q", "data.answer=null", "data.split=2"]
    words = [w for w in MODEL if not w.startswith("data.")]
    answer = call(capsys, "pairs", *words, *data, "reward=custom", "reward.path=mine.py:score", "hydra.run.dir=here")
    assert answer.code == 0
    assert (
        answer.err == "note: the tokenizer has no chat template, so messages are joined by newlines, as model.template=plain\n"
    )
    row = rows(Path("here/pairs.jsonl"))[0]
    assert row["prompt"][0]["role"] == "user" and "answer" not in row and "category" not in row
    assert "data.chat" not in answer.out and "data.answer" not in answer.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "usage: python -m grpo_exp pairs RUN_OR_MODEL"),
        (["tiny_random", "G=1"], "Use G=2 or more"),
        (["tiny_random", "lr=1"], "lr=1: pairs takes options of data, reward"),
        (["tiny_randm"], "Did you mean 'tiny_random'"),
        (
            [*MODEL, "reward=custom", "reward.path=mine.py:same"],
            "no pair: in none of the 8 groups of G=4 samples do the rewards",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "pairs", *words)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err and answer.err.count("\n") == 1
    assert not Path("outputs").exists()


def test_a_run_with_one_sample_a_prompt_needs_a_larger_group(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run/export").mkdir(parents=True)
    Path("run/run.json").write_text("{}")
    Path("run/export/config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    Path("run/config.yaml").write_text(yaml.safe_dump(resolved(compose(["algo=sft", "model=tiny_random"]))))
    answer = call(capsys, "pairs", "run")
    assert answer.code == 2
    assert "G=1: a pair is two samples of one prompt. Use G=2 or more" in answer.err


def test_help_lists_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "make preference pairs" in call(capsys, "help").out
    assert "heldout.jsonl" in call(capsys, "help", "pairs").out
