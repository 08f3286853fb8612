"""What goes wrong inside a run: it goes on where that is sound and says so, or ends with one message and what is whole kept."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command import SMALL, Answer, call, finish, start

from grpo_exp import tiny
from grpo_exp.batch import Prompts, Rollout
from grpo_exp.checkpoint import load
from grpo_exp.model import TINY
from grpo_exp.policy import Policy
from grpo_exp.rollout.base import Sampling
from grpo_exp.rollout.torch import TorchEngine

Row = dict[str, Any]
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
RUN = Path("run")
OWN = [
    *SMALL,
    *("checkpoint.export=false", "checkpoint.keep_last=99", "lr=1e-3", "reward=custom", "reward.path=mine.py:score"),
]
REWARD = """
def digits(text):
    return sum(c.isdigit() for c in text) / 8 + len(set(text)) / 80

def score(completions):
    return [digits(text) for text in completions]

def fragile(completions):
    assert not any(set(text) & set('JQXZ') for text in completions), 'a rare letter'
    return score(completions)

def hanging(completions):
    while completions[0]:
        pass
    return score(completions)
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARD)


def run(capsys: pytest.CaptureFixture[str], *words: str, folder: Path = RUN) -> Answer:
    return call(capsys, *OWN, f"hydra.run.dir={folder}", *words)


def card(folder: Path = RUN) -> Row:
    return dict(json.loads((folder / "run.json").read_text()))


def notes(folder: Path = RUN) -> list[str]:
    return [note["text"] for note in card(folder).get("notes", [])]


def rows(folder: Path, name: str = "metrics.jsonl", timed: tuple[str, ...] = ("time/", "throughput/", "memory/")) -> list[Row]:
    """The rows of a file, without what takes time."""
    found = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds" and not k.startswith(timed)} for row in found]


def refused(answer: Answer, code: int = 2) -> str:
    """The one message that a run ended with."""
    assert answer.code == code, answer
    assert answer.err.startswith("grpo_exp: ") and answer.err.count("\n") == 1 and "Traceback" not in answer.err
    return answer.err


# ---- data


def items(*prompts: str) -> list[str]:
    """The options of a file with these prompts; the embedded tokenizer has a token for each character."""
    Path("items.jsonl").write_text("".join(json.dumps({"prompt": p, "answer": "1"}) + "\n" for p in prompts))
    return ["data=file", "data.path=items.jsonl", "data.chat=false", "data.split=2"]


@pytest.fixture
def one_long(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Options of twelve items of which one training item has 40 tokens."""
    words = [word for word in OWN if not word.startswith("data.")]
    return [*words, f"hydra.run.dir={RUN}", *items("z" * 35 + "4+4=?", *(f"{i}+{i}=?" for i in range(11))), "data.split_seed=1"]


def test_a_prompt_that_is_too_long_ends_the_run_before_it_starts(
    one_long: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(call(capsys, *one_long, "data.max_prompt_tokens=20"))
    for part in (
        "1 of 10 training prompts have more than 20 tokens",
        "row-1, has 40",
        "data.long_prompts=drop",
        "truncate_left",
    ):
        assert part in said
    assert not (RUN / "checkpoints").exists()


def test_a_prompt_that_is_too_long_is_left_out_and_counted(one_long: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *one_long, "data.max_prompt_tokens=20", "data.long_prompts=drop", "steps=6", "track.console=plain")
    assert answer.code == 0, answer.err
    assert "1 of 10 training prompts have more than 20 tokens" in " ".join(answer.out.split())
    assert card()["data"]["train"] == 9 and any("left out" in note for note in card()["data"]["notes"])
    asked = {row["id"] for row in rows(RUN, "samples.jsonl")}
    assert len(asked) == 9 and "row-1" not in asked


def test_a_prompt_that_is_too_long_loses_its_beginning(one_long: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *one_long, "data.max_prompt_tokens=20", "data.long_prompts=truncate_left", "steps=6")
    assert answer.code == 0, answer.err
    assert card()["data"]["train"] == 10 and any("beginning is cut off" in n for n in card()["data"]["notes"])
    seen = {row["id"]: row["prompt"] for row in rows(RUN, "samples.jsonl")}
    assert seen["row-1"] == "z" * 15 + "4+4=?"


def test_the_models_positions_are_a_limit_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in OWN if not word.startswith("data.")]
    said = refused(call(capsys, *words, f"hydra.run.dir={RUN}", *items("9" * 510, "1", "2", "3", "4")))
    assert "more than 506 tokens (the longest, row-1, has 510)" in said and "a smaller max_new_tokens" in said
    said = refused(run(capsys, "max_new_tokens=512", folder=Path("other")))
    assert "512 positions, which leaves 0 tokens for the prompt" in said


def test_dropping_may_not_leave_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(run(capsys, "data.max_prompt_tokens=1", "data.long_prompts=drop"))
    assert "no training item is left" in said and "8 of 8 training prompts" in said and "6 of 6 held-out prompts" in said


def test_rows_that_were_skipped_are_counted_where_a_run_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in OWN if not word.startswith("data.")]
    words += [f"hydra.run.dir={RUN}", *items("1", "2", "3", "4", "5", "6")]
    with Path("items.jsonl").open("a") as file:
        file.write('not json\n{"prompt": 3}\n{"prompt": "x", "answer": []}\n')
    assert "items.jsonl:7" in refused(call(capsys, *words))
    answer = call(capsys, *words, "data.on_error=skip", "track.console=plain")
    assert answer.code == 0, answer.err
    told = card()["data"]["notes"]
    assert told[0].startswith("3 of 9 rows skipped") and sum(note.startswith("skipped: ") for note in told) == 3
    shown = " ".join(answer.out.split())
    assert "3 of 9 rows skipped" in shown and "items.jsonl:7" in shown


# ---- rewards


def test_a_failing_reward_is_let_pass_counted_and_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reward.path=mine.py:fragile", "max_new_tokens=12", "steps=4", "eval.every=2"]
    said = refused(run(capsys, *words), code=3)
    assert "AssertionError in line" in said and "a rare letter" in said and "alone it fails on sample" in said
    answer = run(capsys, *words, "reward.on_error=zero", "reward.max_failed=1", folder=Path("let"))
    assert answer.code == 0, answer.err
    found = rows(Path("let"))
    train = {row["step"]: row["reward/failed_frac"] for row in found if row["kind"] == "train"}
    samples = rows(Path("let"), "samples.jsonl")
    for step, frac in train.items():
        texts = [row["completion"] for row in samples if row["step"] == step]
        assert frac == sum(bool(set(text) & set("JQXZ")) for text in texts) / len(texts)
    assert sum(train.values()) > 0 and all("eval/failed_frac" in row for row in found if row["kind"] == "eval")
    for row in samples:
        assert (row["reward/part/custom"] is None) == bool(set(row["completion"]) & set("JQXZ"))
        assert row["reward/part/custom"] is not None or row["total"] == 0
    assert len([note for note in notes(Path("let")) if "adds nothing to that sample" in note]) == 1


def test_too_many_failures_end_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reward.path=mine.py:fragile", "max_new_tokens=12", "steps=9", "reward.on_error=zero", "reward.max_failed=0"]
    assert "reward.max_failed=0 of them" in refused(run(capsys, *words), code=3)
    assert card()["status"] == "failed" and card()["error_type"] == "RewardError"


def test_a_reward_that_hangs_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(run(capsys, "reward.path=mine.py:hanging", "reward.timeout=0.5", "eval.start=false"))
    assert "took longer than 0.5 s" in said and "before training" in said  # the reference answer is a probe


# ---- numbers


def test_a_learning_rate_that_blows_up_ends_with_the_batch_and_whole_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "lr=9e18",
        "optim.warmup_steps=0",
        "steps=9",
        "checkpoint.every=1",
        "optim.max_skips=2",
        "eval.start=false",
        "eval.every=0",
    ]
    said = refused(run(capsys, *words), code=3)
    assert "not finite" in said and "as in the 2 optimizer steps before" in said and card()["error_type"] == "NumericsError"
    found = [row for row in rows(RUN) if row["kind"] == "train"]
    assert [row["grad/skipped"] for row in found][-2:] == [1, 1]
    assert len([note for note in notes() if "in a row" in note]) >= 2
    (dumped,) = RUN.glob("not-finite-step-*")
    told = json.loads((dumped / "batch.json").read_text())
    assert str(dumped) in said and told["step"] == found[-1]["step"] + 1 and len(told["rows"]) == 4
    asked = {row["prompt"]: row["id"] for row in told["samples"]}
    assert all(asked[row["prompt"]] in row["ids"] for row in told["rows"])
    written = sorted((RUN / "checkpoints").iterdir())
    assert [path.name for path in written] == [f"step-{row['step']:06d}" for row in found]
    for path in written:
        assert all(bool(x.isfinite().all()) for x in load(path).weights.values())
    last, before = load(written[-1]), load(written[-3])
    assert (last.progress["skipped"], before.progress["skipped"]) == (2, 0)
    assert all(torch.equal(last.weights[name], x) for name, x in before.weights.items())


# ---- memory


def greedy(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Sampling more rows than `most` at a time runs out of memory, once half of its work is done."""
    sample = TorchEngine.sample

    def run_out(self: TorchEngine, policy: Policy, prompts: Prompts, sampling: Sampling, rows: int) -> Rollout:
        if rows > most:
            sample(self, policy, prompts, sampling, 1)
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried")
        return sample(self, policy, prompts, sampling, rows)

    monkeypatch.setattr(TorchEngine, "sample", run_out)


@pytest.mark.slow
def test_sampling_goes_on_with_half_the_rows_and_gives_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["eval.every=1", "checkpoint.every=1"]
    assert run(capsys, *words, folder=Path("calm")).code == 0
    greedy(monkeypatch, most=2)
    answer = run(capsys, *words)
    assert answer.code == 0, answer.err
    told = [note for note in notes() if "out of memory" in note]
    assert [note.partition(" rows")[0].removeprefix("out of memory in ") for note in told] == [
        "evaluation with 16",
        "evaluation with 8",
        "evaluation with 4",
        "sampling with 4",
    ]
    for name in ("samples.jsonl", "eval.jsonl"):
        assert rows(RUN, name) == rows(Path("calm"), name)
    for one, other in zip(rows(RUN), rows(Path("calm")), strict=True):
        assert one.pop("kind") == other.pop("kind")
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
    progress = load(RUN / "checkpoints/step-000002").progress
    assert progress["rows"]["rollout_rows"] == 2 and progress["rows"]["update_rows"] == 4


def test_memory_for_not_even_a_row_ends_with_the_sizes_and_the_knobs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy(monkeypatch, most=0)
    said = refused(run(capsys, "eval.start=false"), code=3)
    for part in ("out of memory in sampling", "prompts_per_step=2 G=2", "completions of up to 6", "hardware.rollout_rows"):
        assert part in said
    for knob in ("max_new_tokens", "model.gradient_checkpointing=true", "model.dtype=bfloat16"):
        assert knob in said
    assert card()["status"] == "failed" and card()["error_type"] == "OutOfMemoryError"  # by which a sweep knows what may pass


LIMITED = """
import resource
def score(completions):
    global calls
    calls = globals().get('calls', 0) + 1
    if calls == 2:  # the first is the check before the run
        used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM * 2**20,) * 2)
    return [float(sum(c.isdigit() for c in text)) for text in completions]
"""


@pytest.mark.slow
def test_memory_that_really_runs_out(tmp_path: Path) -> None:
    """The process may have 200 MiB more once it has sampled; the update of all rows at once takes several times that."""
    words = ["model=tiny", "reward=custom", "hardware.threads=1", "track=quiet", "steps=2", "prompts_per_step=64", "G=16"]
    words += ["eval.start=false", "eval.max_items=2", "eval.samples=1", "checkpoint.export=false", "hardware.update_rows=1024"]
    words += ["max_new_tokens=48", "lr=1e-9", "eval.every=0"]
    for name, room in (("calm", 1 << 20), ("tight", 200)):
        Path(f"{name}.py").write_text(LIMITED.replace("ROOM", str(room)))
        answer = finish(start(tmp_path, *words, f"reward.path={name}.py:score", f"hydra.run.dir={name}"), seconds=600)
        assert answer.code == 0, answer.err
    told = [note for note in notes(Path("tight")) if "out of memory in the " in note]
    assert told and not [note for note in notes(Path("calm")) if "out of memory" in note]
    for one, other in zip(rows(Path("tight")), rows(Path("calm")), strict=True):
        same = ("tokens", *(("loss/total", "grad/norm", "reward/mean") if one["kind"] == "train" else ("eval/reward",)))
        assert [one[name] for name in same] == pytest.approx([other[name] for name in same], rel=1e-4, abs=1e-7)
    assert load(Path("tight/checkpoints/step-000002")).progress["rows"]["update_rows"] < 1024


# ---- a full disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB: some five checkpoints of the run below."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


FILLING = """
import os
from pathlib import Path
calls = 0
def score(completions):
    global calls
    calls += 1
    if calls == CALL and Path('fill').exists():
        disk = os.statvfs('disk')
        with open('disk/ballast', 'wb') as ballast:
            os.posix_fallocate(ballast.fileno(), 0, disk.f_bavail * disk.f_bsize - LEFT)
    return [sum(c.isdigit() for c in text) / 8 + len(set(text)) / 80 for text in completions]
"""


@pytest.mark.parametrize(
    ("left", "every", "steps", "said"),
    [(2**20, 1, 4, "checkpoints/step-000003 cannot be written"), (0, 4, 8, ".jsonl: cannot be written")],
)
def test_a_run_goes_on_once_there_is_room_again(
    left: int, every: int, steps: int, said: str, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk fills up in step 3 or 5, so that a checkpoint, or soon a line, does not fit."""
    words = ["eval.start=false", "eval.every=0", f"steps={steps}", f"checkpoint.every={every}"]
    words += ["reward.path=filling.py:score"]
    Path("filling.py").write_text(FILLING.replace("CALL", str(every + 2 if every > 1 else 4)).replace("LEFT", str(left)))
    assert run(capsys, *words, folder=Path("whole")).code == 0
    Path("fill").touch()
    full = disk / "run"
    message = refused(run(capsys, *words, folder=full), code=3)
    assert said in message and "room" in message
    kept = [p.name for p in sorted((full / "checkpoints").iterdir())]
    assert kept == (["step-000001", "step-000002"] if every == 1 else ["step-000004"])  # and no half of one
    assert load(full / "checkpoints" / kept[-1])
    Path("fill").unlink()
    (disk / "ballast").unlink()
    answer = run(capsys, *words, folder=full)
    assert (answer.code, answer.err) == (0, ""), answer.err
    assert card(full)["status"] == "finished" and card(full)["resumed_from"] == int(kept[-1][5:])
    for name in ("metrics.jsonl", "samples.jsonl", "eval.jsonl"):
        assert rows(full, name) == rows(Path("whole"), name), name
    one, other = (load(folder / f"checkpoints/step-{steps:06d}").weights for folder in (full, Path("whole")))
    assert all(torch.equal(one[name], other[name]) for name in one)


# ---- model and tokenizer


def saved(tokenizer: Any, folder: str = "model") -> list[str]:
    """Options of the embedded model with another tokenizer."""
    from transformers import LlamaForCausalLM

    LlamaForCausalLM.from_pretrained(TINY, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ["model=hf", f"model.path=./{folder}", "model.adapter=none", "steps=1", "eval.start=false", "eval.every=0"]


def own(words: list[str]) -> list[str]:
    return [*(word for word in OWN if not word.startswith(("model=", "steps="))), f"hydra.run.dir={RUN}", *words]


def test_without_a_padding_token_the_end_of_sequence_stands_for_it_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.pad_token = None
    answer = call(capsys, *own(saved(tokenizer)))
    assert answer.code == 0, answer.err
    assert len([note for note in notes() if "no padding token" in note]) == 1
    assert all(math.isfinite(row["loss/total"]) for row in rows(RUN) if row["kind"] == "train")


def test_without_a_chat_template_messages_are_joined_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in own(saved(tiny.tokenizer())) if not word.startswith("data.")]
    words += ["data=digits"]
    said = refused(call(capsys, *words, "model.template=chat"))
    assert "no chat template" in said and "model.template=plain" in said
    answer = call(capsys, *words)
    assert answer.code == 0, answer.err
    assert len([note for note in notes() if "no chat template" in note]) == 1


def test_a_model_of_the_hub_that_cannot_be_had_is_one_line_with_the_ways_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, as it is where the id is wrong or the model gated: no trace, nothing written, nothing asked of the network."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    answer = call(capsys, *SMALL[1:], "model=hf", "model.path=nobody/of-this-name", "hydra.run.dir=run")
    assert answer.code == 2 and answer.err.count("\n") == 1
    for part in ("model.path='nobody/of-this-name' cannot be loaded", "local folder", "HF_HUB_OFFLINE", "HF_TOKEN"):
        assert part in answer.err


def test_a_tokenizer_of_another_model_is_refused_with_both_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["<one>", "<two>"])
    said = refused(call(capsys, *own(saved(tokenizer))))
    assert "ids up to 90" in said and "knows 89 tokens" in said


def test_an_adapter_of_another_model_is_refused_with_both_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    small = tiny.config(89)
    small.update({"hidden_size": 64, "intermediate_size": 96, "head_dim": 16})
    get_peft_model(LlamaForCausalLM(small), LoraConfig(r=8, target_modules="all-linear")).save_pretrained("adapter")
    said = refused(run(capsys, "model.adapter=lora", "model.start_adapter=./adapter"))
    assert "model.start_adapter='./adapter' does not fit the model" in said and "[8, 64]" in said and "[8, 128]" in said
