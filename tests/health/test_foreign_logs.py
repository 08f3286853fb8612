"""Logs of other programs, in the shapes that these write: the same course is the same to the detectors, whoever wrote it."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import ROOT

from grpo_exp.errors import DataError, InputError
from grpo_exp.health import names
from grpo_exp.health.detectors.kl_explosion import KlExplosion
from grpo_exp.health.foreign import read, trainer_state
from grpo_exp.health.log import Log, examine

NAN = float("nan")
KL = KlExplosion(action="warn", median=0.5, growth=4.0, floor=0.1, window=5)
SOUND = [0.02 + 0.001 * step for step in range(1, 21)]
BROKEN = [*SOUND[:10], *(0.03 * 2.0**step for step in range(1, 11))]
Course = list[tuple[int, float, float]]  # step, KL, reward


def course(kl: list[float]) -> Course:
    return [(step, value, 0.9 - 0.01 * step) for step, value in enumerate(kl, 1)]


# ---- what the programs write; TRL 1.16, verl's tracking.py and aggregate_logger.py, OpenRLHF's ppo_trainer.py, W&B's exports


def trl(folder: Path, rows: Course) -> Path:
    """`TrainerState.save_to_json`: an evaluation and the end of training are entries of their own."""
    history: list[dict[str, Any]] = [
        {"epoch": 0.1, "step": s, "kl": kl, "reward": r, "rewards/exact/mean": r, "grad_norm": 1.0, "learning_rate": 1e-6}
        for s, kl, r in rows
    ]
    history.insert(5, {"epoch": 0.5, "step": 5, "eval_reward": 0.4, "eval_kl": 9.0, "eval_runtime": 1.0})
    history.append({"epoch": 1.0, "step": len(rows), "train_loss": 0.1, "train_runtime": 1.0})
    file = folder / "trainer_state.json"
    file.write_text(json.dumps({"best_metric": None, "log_history": history, "max_steps": 40}, indent=2, sort_keys=True) + "\n")
    return file


def verl_data(kl: float, reward: float) -> dict[str, float]:
    return {"critic/score/mean": reward, "critic/rewards/mean": reward - 1, "actor/kl_loss": kl, "actor/grad_norm": 1.0}


def verl_file(folder: Path, rows: Course) -> Path:
    file = folder / "experiment.jsonl"
    lines = [{"step": 0, "data": {"val-core/openai/gsm8k/acc/mean@1": 0.2}}]
    lines += [{"step": s, "data": verl_data(kl, r)} for s, kl, r in rows]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def verl_console(folder: Path, rows: Course) -> Path:
    """Through Ray, which colours its prefix, and with numpy 2, whose numbers name their type."""
    file = folder / "train.log"
    lines = ["2026-01-01 INFO worker.py:1 -- Started a local Ray instance.", "step: this is no row - at all"]
    for s, kl, r in rows:
        pairs = [f"{name}:np.float64({value!r})" for name, value in verl_data(kl, r).items()]
        lines.append(f"\x1b[36m(TaskRunner pid=77)\x1b[0m step:{s} - " + " - ".join([*pairs, "training/epoch:0"]))
    file.write_text("\n".join(lines) + "\n")
    return file


def openrlhf_console(folder: Path, rows: Course) -> Path:
    file = folder / "openrlhf.log"
    file.write_text(
        "".join(
            f"(PPOTrainer pid=3) ✨ Global step {s}: { ({'policy_loss': -0.1, 'reward': r, 'kl': kl, 'ppo_kl': 0.5}) }\n"
            for s, kl, r in rows
        )
    )
    return file


def wandb_history(folder: Path, rows: Course) -> Path:
    """`run.history().to_csv()`: W&B's own counter runs ahead of the trainer's, and what was not logged is empty."""
    table = [["", "_step", "train/global_step", "train/reward", "train/kl", "train/frac_reward_zero_std", "eval/reward"]]
    table += [[str(i), str(2 * s), str(s), str(r), str(kl), "0.0", ""] for i, (s, kl, r) in enumerate(rows)]
    table.insert(4, ["99", "7", "3", "", "", "", "0.5"])
    return written(folder / "history.csv", table)


def wandb_chart(folder: Path, rows: Course) -> Path:
    """The export of a chart: `RUN - METRIC`, with the least and largest beside it."""
    table = [["Step", "mine - train/kl", "mine - train/kl__MIN", "mine - train/kl__MAX"]]
    table += [[str(s), str(kl), str(kl), str(kl)] for s, kl, _ in rows]
    return written(folder / "chart.csv", table)


def own_names(folder: Path, rows: Course) -> Path:
    return written(folder / "own.csv", [["step", "kl/mean", "reward/mean"], *([str(x) for x in row] for row in rows)])


def written(file: Path, table: list[list[str]]) -> Path:
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows(table)
    return file


SHAPES = (trl, verl_file, verl_console, openrlhf_console, wandb_history, wandb_chart, own_names)


def one(file: Path, own: dict[str, str] | None = None, named: str | None = None) -> Log:
    (log,) = read(file, own or {}, named)
    return log


@pytest.mark.parametrize("write", SHAPES)
def test_a_bad_one_is_found_and_a_good_one_is_not(write: Callable[[Path, Course], Path], tmp_path: Path) -> None:
    """Whoever wrote it, the finding is the one that rows of our own give."""
    rows = [{"step": s, "kind": "train", "kl/mean": kl} for s, kl, _ in course(BROKEN)]
    expected = examine(Log("ours", "grpo_exp", rows=rows), {"kl": KL}).findings
    (found,) = examine(one(write(tmp_path, course(BROKEN))), {"kl": KL}).findings
    assert (found["step"], found["since"], found["text"]) == (expected[0]["step"], expected[0]["since"], expected[0]["text"])
    assert 11 <= found["since"] < found["step"] < 20
    assert found["tries"] == ["lr times 0.333", "beta times 3"]  # its options are not known
    assert examine(one(write(tmp_path, course(SOUND))), {"kl": KL}).findings == []


def test_who_wrote_it_and_what_is_taken(tmp_path: Path) -> None:
    log = one(trl(tmp_path, course(SOUND)))
    assert (log.kind, log.steps, log.done) == ("TRL", 40, 20)
    assert log.taken == {
        "reward/mean": "reward",
        "reward/part/exact": "rewards/exact/mean",
        "kl/mean": "kl",
        "grad/norm": "grad_norm",
        "lr": "learning_rate",
        "eval/reward": "eval_reward",
    }
    assert [row for row in log.rows if row["kind"] == "eval"] == [{"step": 5, "kind": "eval", "eval/reward": 0.4}]
    log = one(verl_file(tmp_path, course(SOUND)))
    assert log.kind == "verl" and "critic/rewards/mean" not in log.taken.values()
    assert log.rows[0] == {"step": 0, "kind": "eval", "eval/pass@1": 0.2, "eval/pass@1/openai/gsm8k": 0.2}
    assert one(openrlhf_console(tmp_path, course(SOUND))).kind == "OpenRLHF"
    assert one(wandb_history(tmp_path, course(SOUND))).kind == "TRL"


def test_two_sources_of_validation_are_no_overall_pass_rate(tmp_path: Path) -> None:
    file = tmp_path / "two.jsonl"
    file.write_text(json.dumps({"step": 1, "data": {"val-core/a/acc/mean@4": 0.2, "val-core/b/acc/mean@4": 0.6}}) + "\n")
    assert one(file).rows == [{"step": 1, "kind": "eval", "eval/pass@1/a": 0.2, "eval/pass@1/b": 0.6}]


def test_preference_runs(tmp_path: Path) -> None:
    history = [{"step": 1, "loss": 0.69, "rewards/margins": 0.1, "rewards/accuracies": 0.6, "logps/chosen": -20.0}]
    file = tmp_path / "trainer_state.json"
    file.write_text(json.dumps({"log_history": history, "max_steps": 9}))
    wanted = {"loss/total": 0.69, "dpo/margin": 0.1, "dpo/accuracy": 0.6, "logp/chosen": -20.0}
    assert one(file).rows == [{"step": 1, "kind": "train", **wanted}]


def test_a_kl_that_is_never_computed_is_none(tmp_path: Path) -> None:
    """OpenRLHF writes 0 where there is no reference."""
    assert "kl/mean" not in one(openrlhf_console(tmp_path, course([0.0] * 5))).taken
    assert "kl/mean" in one(openrlhf_console(tmp_path, course([0.0, 0.1]))).taken


# ---- names that a user gives


def test_own_names_with_units(tmp_path: Path) -> None:
    table = [
        ["iter", "score", "cut_percent", "text", "my*kl"],
        ["0", "0.5", "20", "hello", "0.2"],
        ["1.0", "0.25", "10", "", "0.4"],
    ]
    own = {"reward/mean": "score", "length/truncated_frac": "0.01*cut_percent", "kl/mean": "my*kl", "step": "iter"}
    log = one(written(tmp_path / "mine.csv", table), own)
    assert log.rows == [
        {"step": 0, "kind": "train", "reward/mean": 0.5, "length/truncated_frac": 0.2, "kl/mean": 0.2},
        {"step": 1, "kind": "train", "reward/mean": 0.25, "length/truncated_frac": 0.1, "kl/mean": 0.4},
    ]


def test_own_names_go_before_the_built_in_ones(tmp_path: Path) -> None:
    log = one(trl(tmp_path, course(SOUND)), {"kl/mean": "grad_norm"})
    assert {row["kl/mean"] for row in log.rows if "kl/mean" in row} == {1.0}


def test_a_file_of_names(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("reward/mean: score\nmetrics.kl/mean: drift\nstep: it\n")
    assert names.of_file(file) == {"reward/mean": "score", "kl/mean": "drift", "step": "it"}
    file.write_text("reward/mean: 3\n")
    with pytest.raises(InputError, match="reward/mean: expected the name of a column"):
        names.of_file(file)
    with pytest.raises(InputError, match="expected trl, verl, openrlhf or a YAML file"):
        names.of_file(tmp_path / "trll")


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"reward/maen": "score"}, "no metric has that name.*Did you mean 'reward/mean'"),
        ({"reward/mean": "scor"}, "no such column. Did you mean 'score'"),
        ({}, r"none of its columns is known \(step, score\).*metrics.reward/mean=COLUMN"),
    ],
)
def test_wrong_names(own: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(written(tmp_path / "mine.csv", [["step", "score"], ["1", "0.5"]]), own)


def test_a_step_is_needed(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.csv", [["iter", "reward/mean"], ["1", "0.5"]])
    with pytest.raises(InputError, match="which step a row is of; name it, as in metrics"):
        read(file, {})
    with pytest.raises(InputError, match=r"metrics.step=itr: .* no such column. Did you mean 'iter'"):
        read(file, {"step": "itr"})


# ---- numbers that are none


def grad_norms(log: Log) -> dict[int, float]:
    return {row["step"]: row["grad/norm"] for row in log.rows if "grad/norm" in row}


def test_nan_as_each_writes_it(tmp_path: Path) -> None:
    state = tmp_path / "trainer_state.json"
    history = [
        {"step": 1, "grad_norm": NAN},
        {"step": 2, "grad_norm": float("inf")},
        {"step": 3, "grad_norm": None, "loss": 0.0},
    ]
    state.write_text(json.dumps({"log_history": history, "max_steps": 3}))
    assert "NaN" in state.read_text()
    lines = tmp_path / "verl.jsonl"  # orjson has no NaN and writes null
    lines.write_text("".join(f'{{"step":{s},"data":{{"actor/grad_norm":{v}}}}}\n' for s, v in ((1, "null"), (2, "0.5"))))
    log = tmp_path / "verl.log"
    log.write_text("step:1 - actor/grad_norm:nan - actor/lr:1e-06\nstep:2 - actor/grad_norm:np.float64(inf)\n")
    table = [["step", "grad/norm", "lr"], ["1", "NaN", "1"], ["2", "-Infinity", "1"], ["3", "", "1"], ["4", "nan", "1"]]
    for file, wanted in (
        (state, {1: NAN, 2: math.inf}),
        (lines, {1: NAN, 2: 0.5}),
        (log, {1: NAN, 2: math.inf}),
        (written(tmp_path / "some.csv", table), {1: NAN, 2: -math.inf, 4: NAN}),
    ):
        assert str(grad_norms(one(file))) == str(wanted), file


# ---- logs that were cut off, or are none


def test_a_log_that_was_cut_off_loses_its_last_line(tmp_path: Path) -> None:
    for write, cut in ((verl_file, 20), (verl_console, 8), (openrlhf_console, 5), (own_names, 9)):
        file = write(tmp_path, course(SOUND))
        file.write_bytes(file.read_bytes()[:-cut])
        assert one(file).done == 19, write


def test_a_run_that_was_resumed(tmp_path: Path) -> None:
    """It takes steps anew that it had taken when it was killed; what it says later counts."""
    rows = [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25), (3, 0.35), (4, 0.4)]
    log = one(written(tmp_path / "resumed.csv", [["step", "kl/mean"], *([str(s), str(kl)] for s, kl in rows)]))
    assert [(row["step"], row["kl/mean"]) for row in log.rows] == [(1, 0.1), (2, 0.25), (3, 0.35), (4, 0.4)]
    assert log.notes == ["the log goes back from step 3 to 2: what it says later counts"]


def test_a_row_every_ten_steps_is_a_step_to_the_detectors(tmp_path: Path) -> None:
    """TRL logs every `logging_steps` steps; windows are of steps, and would be empty."""
    (dense,) = examine(one(trl(tmp_path, course(BROKEN))), {"kl": KL}).findings
    log = one(trl(tmp_path, [(10 * s, kl, r) for s, kl, r in course(BROKEN)]))
    (found,) = examine(log, {"kl": KL}).findings
    assert (log.every, found["since"], found["step"]) == (10, 10 * dense["since"], 10 * dense["step"])
    assert log.notes == ["a row every 10 steps, so a step in a detector's thresholds and texts is 10 of the run"]


def test_what_is_logged_of_a_step_in_several_calls_is_one_row(tmp_path: Path) -> None:
    table = [["step", "kl/mean", "reward/mean"], ["1", "0.1", ""], ["1", "", "0.5"]]
    assert one(written(tmp_path / "calls.csv", table)).rows == [
        {"step": 1, "kind": "train", "kl/mean": 0.1, "reward/mean": 0.5}
    ]


def test_runs_side_by_side(tmp_path: Path) -> None:
    table = [["Step", "a - kl/mean", "b x - kl/mean"], ["1", "0.1", "0.2"], ["2", "0.3", ""]]
    logs = read(written(tmp_path / "chart.csv", table), {})
    assert [log.label.rpartition(": ")[2] for log in logs] == ["a", "b x"]
    assert [[row["kl/mean"] for row in log.rows] for log in logs] == [[0.1, 0.3], [0.2]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "empty; nothing was logged"),
        ("a.csv", b"step,kl/mean\n", "empty; a header and nothing under it"),
        ("a.json", b'{"log_history": []}', "empty; nothing was logged"),
        ("a.json", b'{"log_history": [{"step": 1, "kl"', "no JSON .*in a checkpoint"),
        ("a.json", b'{"vocab": 3}', "no log .*Expected trainer_state.json"),
        ("a.txt", b"dear diary\n", "no log; its first line is 'dear diary'. Expected"),
        ("a.bin", b"\xff\xfe\x00\x01", "cannot be read .it is no text"),
        ("a.jsonl", b'{"step": 1, "kl/mean": 1}\nnonsense\n{"step": 2}\n', r"a.jsonl:2: not JSON"),
        ("a.csv", b"step,kl/mean\n1,much\n", "no row of it has a step and a value"),
    ],
)
def test_no_logs(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError if "no row" not in message else InputError, match=message):
        read(tmp_path / name, {})


def test_the_newest_state_of_an_output_folder(tmp_path: Path) -> None:
    assert trainer_state(tmp_path) is None
    for step in (90, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    assert trainer_state(tmp_path) == tmp_path / "checkpoint-100" / "trainer_state.json"
    (tmp_path / "trainer_state.json").write_text("{}")
    assert trainer_state(tmp_path) == tmp_path / "trainer_state.json"


# ---- the files of names


def glossary() -> list[str]:
    rows = [line for line in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


def content(name: str) -> dict[str, Any]:
    found = yaml.safe_load((names.FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def test_the_list_of_metrics_is_the_glossary() -> None:
    assert sorted(names.metrics()) == sorted(glossary())
    assert all(names.is_metric(name) for name in ("kl/mean", "reward/part/my part", "eval/pass@1/easy", "eval/pass@1_low"))
    assert not any(names.is_metric(name) for name in ("kl", "foo_low", "reward/part/", "kl/meanest"))


def test_every_file_of_names_is_known() -> None:
    assert {file.stem for file in names.FOLDER.glob("*.yaml")} == {*names.BUILT_IN, "metrics"}


@pytest.mark.parametrize("name", names.BUILT_IN)
def test_a_mapping_names_metrics_of_ours(name: str) -> None:
    found = content(name)
    assert set(found) == {"name", "prefixes", "nulls", "metrics", "not_mapped"} and found["nulls"] in ("absent", "not_finite")
    for entry in found["metrics"]:
        assert set(entry) <= {"from", "to", "note", "single", "zero"}
        assert names.is_metric(entry["to"].replace("{name}", "some")), entry
        assert set(re.findall(r"\{\w+\}", entry["to"])) <= set(re.findall(r"\{\w+\}", entry["from"]))
        taken = names.built_in(name).bind([entry["from"].replace("{name}", "some").replace("{n}", "4")])
        assert entry["to"].replace("{name}", "some") in [one.target for one in taken]
    for column in found["not_mapped"]:
        assert names.built_in(name).bind([column.replace("{name}", "some").replace("{n}", "4")]) == [], column


@pytest.mark.parametrize("name", names.BUILT_IN)
def test_the_page_has_the_whole_mapping(name: str) -> None:
    page, found = (ROOT / "docs" / "health.md").read_text(encoding="utf-8"), content(name)
    title = found["name"]
    rows = [f"| `{e['from']}` | `{e['to']}` | {e.get('note', '')} |" for e in found["metrics"]]
    table = "\n".join([f"| {title} | here | |", "|---|---|---|", *rows]).replace("|  |", "| |")
    assert table in page, f"docs/health.md:\n{table}"
    left = "\n".join(
        [f"| {title}, not taken | since it is |", "|---|---|", *(f"| `{k}` | {v} |" for k, v in found["not_mapped"].items())]
    )
    assert left in page, f"docs/health.md:\n{left}"
