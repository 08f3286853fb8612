"""`python -m grpo_exp evaluate`: runs, their checkpoints and exports, models from elsewhere, other items, and errors."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command import SMALL, call

from grpo_exp.compose import compose
from grpo_exp.config import build
from grpo_exp.policy import Policy
from grpo_exp.subject import find

SWEEP = Path("outputs/sweeps/small")
RUN = SWEEP / "0"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep of two runs of two steps, whole and with an adapter, a checkpoint at each step."""
    from grpo_exp.__main__ import main

    folder = tmp_path_factory.mktemp("trained")
    before = Path.cwd()
    os.chdir(folder)
    words = ["-m", *SMALL, "hydra.sweep.dir=outputs/sweeps/small", "checkpoint.every=1", "eval.every=1", "algo=sft", "lr=0.1"]
    try:
        with pytest.raises(SystemExit) as end:
            main([*words, "reward=format", "model.adapter=none,lora", "objective.metric=eval/length"])
    finally:
        os.chdir(before)
    assert end.value.code == 0
    return folder


@pytest.fixture(autouse=True)
def in_a_copy(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def evaluated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """evaluation.json of an evaluation that went well, which wrote into the folder it names."""
    answer = call(capsys, "evaluate", *words)
    assert (answer.code, answer.err) == (0, "")
    folder = Path(answer.out.splitlines()[-1].removeprefix("written to "))
    assert {p.name for p in folder.iterdir()} == {"evaluation.json", "eval.jsonl", "config.yaml"}
    return {"folder": folder, "out": answer.out, **json.loads((folder / "evaluation.json").read_text())}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]


def of_step(run: Path, step: int) -> list[str]:
    """The completions that the run itself got when it was evaluated at a step."""
    return [row["completion"] for row in rows(run) if row["step"] == step]


@pytest.mark.parametrize("run", [RUN, SWEEP / "1"])
def test_a_run_is_asked_again_and_answers_the_same(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert of_step(run, 2) != of_step(run, 1)
    for words, step in ((str(run), 2), (f"{run}@1", 1), (f"{run}/checkpoints/step-000001", 1), (f"{run}/export", 2)):
        found = evaluated(capsys, words)
        assert [row["completion"] for row in rows(found["folder"])] == of_step(run, step), words
        assert found["step"] == (None if words.endswith("export") else step)
        assert (found["items"], found["samples"]) == (4, 2)
        assert found["reward"] == "format"


def test_the_table_and_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, str(RUN), "eval.samples=3", "eval.temperature=0.5", "eval.max_items=0")
    assert found["folder"].parent == Path("outputs/evaluations")
    assert found["folder"].name.endswith("_small_0_step-000002")
    assert found["metrics"].keys() >= {"eval/pass@1", "eval/pass@k", "eval/length", "eval/format", "eval/pass@1/easy"}
    for metric in found["metrics"].values():
        assert metric["low"] <= metric["value"] <= metric["high"]
    lines = [line.split() for line in found["out"].splitlines()]
    assert found["out"].splitlines()[0].endswith("6 held-out items of arithmetic, 3 samples each, temperature 0.5")
    assert [line[0] for line in lines[2:5]] == ["pass@1", "easy", "medium"]
    assert "pass@3" in [line[0] for line in lines]
    assert len(rows(found["folder"])) == 6 * 3
    assert yaml.safe_load((found["folder"] / "config.yaml").read_text())["eval"]["samples"] == 3
    assert yaml.safe_load((RUN / "config.yaml").read_text())["eval"]["samples"] == 2


def test_other_items_another_reward_another_way(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.jsonl").write_text("".join(json.dumps({"q": f"{i}+1=?", "a": str(i + 1)}) + "\n" for i in range(9)))
    words = ["data=file", "data.path=mine.jsonl", "data.prompt=q", "data.answer=a", "data.split=3", "data.chat=false"]
    found = evaluated(capsys, str(RUN), *words, "reward=math", "eval=greedy", "eval.max_items=2", "hydra.run.dir=here")
    assert found["folder"] == Path("here")
    assert (found["data"]["name"], found["reward"], found["samples"], found["items"]) == ("file", "math", 1, 2)
    assert "one sample each, the likeliest token" in found["out"]
    kept = yaml.safe_load(Path("here/config.yaml").read_text())
    assert kept["eval"]["max_new_tokens"] == 6, "what the run's own configuration says, not the model's default"
    assert kept["model"]["source"] == "random"


def test_a_reward_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("def score(completions):\n    return [1.0 for _ in completions]\n")
    found = evaluated(capsys, str(RUN), "reward=custom", "reward.path=mine.py:score")
    assert found["metrics"]["eval/pass@1"]["value"] == 1.0


def test_a_run_is_asked_again_from_another_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that a run was given by relative paths are found from anywhere."""
    Path("mine").mkdir()
    Path("mine/rewards.py").write_text("def score(completions):\n    return [1.0 for _ in completions]\n")
    Path("mine/rows.jsonl").write_text("".join(f'{{"q": "{i}+1=?", "a": "{i + 1}"}}\n' for i in range(9)))
    words = [word for word in SMALL if not word.startswith("data.")]
    words += ["data=file", "data.path=mine/rows.jsonl", "data.prompt=q", "data.answer=a", "data.split=3", "hydra.run.dir=run"]
    assert call(capsys, *words, "reward=custom", "reward.path=mine/rewards.py:score").code == 0
    assert call(capsys, *words, "reward=custom", "reward.path=mine/rewards.py:score").out.count("nothing to do") == 1
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert evaluated(capsys, "../run")["metrics"]["eval/pass@1"]["value"] == 1.0


def test_models_from_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["eval.max_items=2", "eval.samples=1", "eval.max_new_tokens=6", "reward=format"]
    assert evaluated(capsys, "tiny_random", *few)["model"] == "tiny_random"
    shutil.copytree(RUN / "export", "model")
    whole = evaluated(capsys, "model", *few)
    assert (whole["name"], whole["model"], whole["step"]) == ("model", "hf", None)


def test_an_adapter_from_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    options = build(compose(["model=tiny_random"])).model
    Policy.load(options, torch.device("cpu"), torch.float32, seed=0).export(Path("base"))
    shutil.copytree(SWEEP / "1/export", "adapter")
    settings = Path("adapter/adapter_config.json")
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"base_model_name_or_path": str(Path("base").resolve())}))
    found = evaluated(capsys, "adapter", "eval.max_items=4", "eval.samples=2", "eval.max_new_tokens=6", "data.heldout=6")
    assert (found["name"], found["model"]) == ("adapter", "hf")
    assert [row["completion"] for row in rows(found["folder"])] == of_step(SWEEP / "1", 2)


def test_which_checkpoint_is_the_best() -> None:
    folders = sorted((RUN / "checkpoints").iterdir())
    for folder, objective in zip(folders, (0.5, 0.25), strict=True):
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | {"objective": objective}))
    assert find(f"{RUN}@best").checkpoint == folders[0].resolve()
    config = yaml.safe_load((RUN / "config.yaml").read_text())
    config["objective"]["direction"] = "minimize"
    (RUN / "config.yaml").write_text(yaml.safe_dump(config))
    assert find(f"{RUN}@best").checkpoint == folders[1].resolve()


def test_a_run_without_checkpoints_has_its_export() -> None:
    shutil.rmtree(RUN / "checkpoints")
    found = find(str(RUN))
    assert found.checkpoint is None
    assert any("export" in word for word in found.words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([f"{RUN}@7"], "no checkpoint of that step; there are those of 1, 2"),
        ([f"{RUN}@x"], "no checkpoint of that step"),
        ([str(SWEEP)], "is a sweep; name one of its runs"),
        ([str(RUN), "beta=0.1"], "beta=0.1: evaluate takes options of data, reward"),
        ([str(RUN), "data.trian=3"], "data.trian: no such option. Valid: data.max_prompt_tokens"),
        ([str(RUN), "data=arithmetc"], "Did you mean 'arithmetic'"),
        ([str(RUN), "eval.temperature=-1"], "eval.temperature=-1: expected a number at least 0"),
        ([str(RUN), "eval.samples=1,2"], "eval.samples=1,2"),
        ([str(RUN), "+eval.x=1"], "+eval.x=1: expected KEY=VALUE"),
        ([str(RUN), "data=digits", "reward=math"], "no reference answer"),
        ([str(RUN), "--frob"], "--frob"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "evaluate", *words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("grpo_exp: ")
    assert answer.err.count("\n") == 1
    assert said in answer.err
    assert not Path("outputs/evaluations").exists()


def test_damage(capsys: pytest.CaptureFixture[str]) -> None:
    weights = RUN / "checkpoints/step-000002/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    answer = call(capsys, "evaluate", str(RUN))
    assert answer.code == 3
    assert "damaged" in answer.err
    (RUN / "config.yaml").write_text("a: [")
    answer = call(capsys, "evaluate", str(RUN))
    assert answer.code == 2
    assert "config.yaml" in answer.err
