"""Run folders in every state are read, and what was varied between them is found from their configurations."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from run_folders import eval_rows, share, sweep, write_run

from grpo_exp.errors import InputError
from grpo_exp.report.groups import groups, varied
from grpo_exp.report.runs import find, read
from grpo_exp.track.files import json_line


def test_runs_are_found_wherever_they_lie_and_once(tmp_path: Path) -> None:
    grid = sweep(tmp_path / "outputs" / "sweeps" / "grid")
    for number in (0, 1, 10, 2):
        write_run(grid / str(number))
    write_run(grid / "3" / "seed-1", seed=1)
    alone = write_run(tmp_path / "outputs" / "runs" / "mine")
    write_run(alone / "earlier-1")
    (alone / "checkpoints" / "step-000001").mkdir(parents=True)
    evaluation = write_run(tmp_path / "outputs" / "evaluations" / "x")
    (evaluation / "evaluation.json").write_text("{}")
    found = find([tmp_path / "outputs" / "sweeps", alone, tmp_path / "outputs", grid / "0" / "run.json"])
    assert [run.label for run in found] == ["grid/0", "grid/1", "grid/2", "grid/3/seed-1", "grid/10", "mine"]
    assert [(run.sweep, run.trial) for run in found][-2:] == [("grid", 10), (None, None)]


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: no such folder"):
        find([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="no run in it"):
        find([tmp_path])


def test_a_finished_run(tmp_path: Path) -> None:
    run = read(write_run(tmp_path / "a", [[1, 1], [1, 0], [0, 0]]))
    assert (run.status, run.reason, run.seed, run.objective) == ("finished", None, 0, 0.5)
    assert run.config["algo"] == "grpo" and run.config["algo.clip_low"] == 0.2
    assert run.before["eval/pass@1"] == (0.25, 0.1, 0.5) and run.after["eval/pass@1"] == pytest.approx((0.5, 0.4, 0.6))
    assert (run.steps, run.tokens, run.seconds) == (12, 12000, 24)
    assert run.late("kl/mean") == pytest.approx(np.median(np.arange(3, 13) / 100))
    assert run.late("nothing") is None


def test_columns_and_points(tmp_path: Path) -> None:
    run = read(write_run(tmp_path / "a", steps=101))
    columns, _ = run.curves(["kl/mean", "value/loss"], [])
    assert list(columns) == ["step", "tokens", "seconds", "kl/mean", "value/loss"]
    assert columns["kl/mean"].tolist() == [s / 100 for s in range(1, 102)] and np.isnan(columns["value/loss"]).all()
    few, _ = run.curves(["kl/mean"], [], points=11)
    assert few["step"].tolist() == list(range(1, 102, 10))
    assert run.curves([], ["eval/pass@1"])[1]["eval/pass@1"].tolist() == [0.5]
    assert run.names() == ["reward/mean", "kl/mean", "length/mean"]


def test_items_are_those_of_the_last_evaluation_or_of_a_step(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [[1, 0], [0, 0]])
    rows = [*eval_rows(0, [[1, 1], [1, 0]]), *eval_rows(12, [[1, 0], [0, 0]])]
    (folder / "eval.jsonl").write_bytes(b"".join(map(json_line, rows)))
    last, first = read(folder).items(), read(folder).items(0)
    assert last is not None and first is not None
    assert (last.step, last.right.tolist(), last.samples) == (12, [0.5, 0.0], 2)
    assert (first.step, first.right.tolist()) == (0, [1.0, 0.5])
    assert last.ids == ("heldout-0", "heldout-1") and last.length.tolist() == [10, 11]
    assert last.fingerprint == first.fingerprint
    passed = last.values("eval/pass@k")
    assert passed is not None and passed.tolist() == [1, 0] and last.values("eval/maj@k") is None


def test_long_lines_are_read_from_the_end(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    rows = [row for step in (1, 12) for row in eval_rows(step, share(4, 2), text="x" * 100_000)]
    (folder / "eval.jsonl").write_bytes(b"".join(map(json_line, rows)))
    items = read(folder).items()
    assert items is not None and items.step == 12 and items.right.tolist() == [1, 1, 0, 0]


def test_unfinished_runs_have_what_was_measured_so_far(tmp_path: Path) -> None:
    run = read(write_run(tmp_path / "a", status="running", steps=5))
    assert (run.status, run.reason, run.objective, run.tokens) == ("running", None, 0.5, 5000)
    os.utime(tmp_path / "a" / "metrics.jsonl", (0, 0))
    assert "may be dead" in (read(tmp_path / "a").reason or "")
    failed = read(write_run(tmp_path / "b", status="failed", card={"error": "out of memory"}))
    assert (failed.status, failed.reason) == ("failed", "out of memory")


def test_the_first_evaluation_of_a_run_that_is_not_finished(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", status="running")
    first = {"step": 0, "kind": "eval", "eval/pass@1": 0.2, "eval/pass@1_low": 0.1, "eval/pass@1_high": 0.3}
    (folder / "metrics.jsonl").write_bytes(json_line(first) + (folder / "metrics.jsonl").read_bytes())
    assert read(folder).before == {"eval/pass@1": (0.2, 0.1, 0.3)}
    assert read(write_run(tmp_path / "b", status="running")).before == {}


def test_a_study_knows_what_a_killed_run_cannot_say(tmp_path: Path) -> None:
    grid = tmp_path / "grid"
    record = {"number": 0, "params": {"beta": 0.01}, "state": "fail", "reason": "its process was ended by signal 9"}
    write_run(grid / "0", status="running")
    (grid / "0" / "trial.json").write_text(json.dumps(record))
    (grid / "1").mkdir()
    (grid / "1" / "trial.json").write_text(json.dumps({**record, "state": "pruned", "reason": "below the median"}))
    killed, empty = find([grid])
    assert (killed.status, killed.reason, killed.sweep) == ("failed", "its process was ended by signal 9", "grid")
    assert (empty.status, empty.reason) == ("pruned", "below the median")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("run.json", b'{"status": "fini', "run.json cannot be read"),
        ("run.json", b"[]", "run.json holds no object"),
        ("run.json", b'{"status": "\\u001b[2Jlost"}', "run.json has the status"),
        ("run.json", b"\xff\xfe", "run.json cannot be read"),
        ("run.json", None, "run.json is missing"),
        ("config.yaml", b"beta: [", "config.yaml cannot be read"),
        ("config.yaml", b"!!python/object/apply:os.system ['true']", "config.yaml cannot be read"),
        ("config.yaml", None, "config.yaml is missing"),
    ],
)
def test_damaged_runs_say_so(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    folder = write_run(tmp_path / "a")
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    (run,) = find([tmp_path])
    assert run.status == "broken" and reason in (run.reason or "")


def test_damaged_rows_are_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", steps=3)
    for name in ("metrics.jsonl", "eval.jsonl"):
        text = (folder / name).read_bytes()
        (folder / name).write_bytes(b"\x00\xff{]\n" + text + b'[1]\n"x"\n{"step": 99, "ki')
    run = read(folder)
    assert run.curves(["kl/mean"], [])[0]["step"].tolist() == [1, 2, 3] and run.steps == 3
    items = run.items()
    assert items is not None and items.right.tolist() == [1, 0, 1, 0]
    for name in ("metrics.jsonl", "eval.jsonl"):
        (folder / name).unlink()
    run = read(folder)
    assert run.items() is None and run.tail == [] and run.tokens == 3000 and run.curves(["kl/mean"], [])[0]["step"].size == 0


# ---- what was varied


def test_what_follows_from_a_choice_is_not_varied(tmp_path: Path) -> None:
    grid = sweep(tmp_path / "grid")
    number = 0
    for beta in (0.1, 0.01):
        for G in (4, 8):
            for seed in (0, 1):
                words = {"seed": str(seed), "G": str(G), "beta": str(beta), "sweeps": "grid"}
                values = {"beta": beta, "G": G, "seed": seed, "prompts_per_step": 64 // G, "name": f"b{beta}"}
                write_run(grid / str(number), overrides=words, config={"track": {"id": str(number)}}, **values)
                number += 1
    runs = find([grid])
    assert varied(runs) == ["G", "beta"]
    found = groups(runs, varied(runs))
    assert [group.label for group in found] == ["G=4 beta=0.1", "G=8 beta=0.1", "G=4 beta=0.01", "G=8 beta=0.01"]
    assert [[run.seed for run in group.runs] for group in found] == [[0, 1]] * 4
    assert varied(runs[:2]) == []


def test_a_group_of_options_stands_for_what_is_in_it(tmp_path: Path) -> None:
    grid = sweep(tmp_path / "grid")
    ppo = {"name": "ppo", "kind": "ppo", "clip_low": 0.1, "critic": "head"}
    write_run(grid / "0", overrides={"algo": "grpo"})
    write_run(grid / "1", overrides={"algo": "ppo"}, beta=0.05, config={"algo": ppo})
    assert varied(find([grid])) == ["algo"]


def test_runs_by_hand_keep_what_no_command_line_explains(tmp_path: Path) -> None:
    write_run(tmp_path / "a", overrides={"beta": "0.1"}, beta=0.1)
    write_run(tmp_path / "b", overrides={}, lr=3e-4)
    assert varied(find([tmp_path])) == ["beta", "lr"]


def test_a_random_search_varies_all_that_it_searched(tmp_path: Path) -> None:
    """Every run has its own beta, so each other value follows from it by accident."""
    grid = sweep(tmp_path / "search")
    for i, (beta, lr) in enumerate([(0.01, 1e-4), (0.02, 3e-4), (0.03, 1e-4)]):
        write_run(grid / str(i), beta=beta, lr=lr)
    assert varied(find([grid])) == ["beta", "lr"]
