"""What a comparison says of runs whose outcomes are known."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from run_folders import CONFIG, share, sweep, write_run

from grpo_exp.report.compare import Comparison, compare
from grpo_exp.report.export import as_csv, as_json
from grpo_exp.report.runs import find
from grpo_exp.report.terminal import failures, plain, show, to_best
from grpo_exp.track.files import json_line


def compared(folder: Path, by: list[str] | None = None) -> Comparison:
    return compare(find([folder]), by)


def grid(tmp_path: Path, right: dict[float, list[int]], items: int = 100) -> Path:
    """A sweep over beta with one run a seed; `right`: of `items` items, by seed."""
    folder = sweep(tmp_path / "grid")
    number = 0
    for beta, counts in right.items():
        for seed, count in enumerate(counts):
            write_run(folder / str(number), share(items, count), beta=beta, seed=seed)
            number += 1
    return folder


def test_one_seed_compares_models_by_mcnemar(tmp_path: Path) -> None:
    """80, 78 and 40 of the same 100 items: 2 items differ, 2 (1/4) = 0.5; 40 items differ, 2 / 2^40. Three pairs."""
    found = compared(grid(tmp_path, {0.1: [40], 0.04: [80], 0.01: [78]}))
    assert found.by == ["beta"] and [s.group.values["beta"] for s in found.ranked] == [0.04, 0.01, 0.1]
    best, near, far = found.ranked
    assert best.interval is not None and best.interval.value == 0.8 and 0.7 < best.interval.low < 0.8 < best.interval.high
    assert near.versus and far.versus and near.versus.test == far.versus.test == "models"
    assert near.versus.p == pytest.approx(0.5) and not near.versus.real
    assert far.versus.p == pytest.approx(2 / 2**40) and far.versus.p_holm == pytest.approx(6 / 2**40) and far.versus.real
    assert far.versus.difference.value == pytest.approx(0.4)
    text = " ".join(found.sentences)
    assert "Best: beta=0.04, eval/pass@1 80.0 %" in text and "from 25.0 % before training" in text
    assert "Its model is better than that of 1 of the 2 others" in text and "beta=0.1 (by 40.0 points, p < 0.001)" in text
    assert "cannot be told apart from 1: beta=0.01 (2.0 points behind" in text
    assert "Every setting has one seed" in text
    assert "would take about 519 held-out items for these two models" in text
    assert [to_best(found, s) for s in found.ranked] == ["best", "≈ -2.0", "-40.0"]


def test_seeds_compare_settings(tmp_path: Path) -> None:
    found = compared(grid(tmp_path, {0.1: [40, 42, 41], 0.04: [80, 82, 84], 0.01: [70, 90, 80]}))
    best, near, far = found.ranked
    assert best.seeds == 3 and best.group.values == {"beta": 0.04}
    assert far.versus and far.versus.test == "settings" and far.versus.real and far.versus.improvement == 1
    assert near.versus and not near.versus.real and near.versus.improvement == pytest.approx(5.5 / 9)  # a tie is half
    text = " ".join(found.sentences)
    assert "It is better than 1 of the 2 others" in text and "one seed" not in text
    assert "more than 100 seeds" in text  # 2 points apart, seeds 10 points apart


def test_two_seeds_are_said_to_be_few_and_what_would_suffice(tmp_path: Path) -> None:
    found = compared(grid(tmp_path, {0.1: [50, 60], 0.04: [60, 70]}, items=1000))
    text = " ".join(found.sentences)
    assert "It cannot be told apart from the other one: beta=0.1" in text
    assert "With 2 seeds of a setting little is known" in text
    assert found.ranked[1].versus and found.ranked[1].versus.seeds and 2 < found.ranked[1].versus.seeds <= 100
    assert f"about {found.ranked[1].versus.seeds:.0f} seeds of each" in text


def test_many_seeds_have_an_interquartile_mean(tmp_path: Path) -> None:
    found = compared(grid(tmp_path, {0.04: [10, 50, 50, 90]}))
    (only,) = found.ranked
    assert only.iqm is not None and only.iqm.value == 0.5
    assert "over 4 seeds, from 10.0 % to 90.0 %" in found.sentences[0] and "would have to differ by about" in found.sentences[1]


def test_lower_may_be_better(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "grid")
    objective = {"metric": "eval/length", "direction": "minimize"}
    for i, (beta, length) in enumerate([(0.1, 30.0), (0.01, 20.0)]):
        card = {"objective": length, "after": {"eval/length": [length, length - 1, length + 1]}, "before": {}}
        write_run(folder / str(i), beta=beta, config={"objective": objective}, card=card)
    found = compared(folder)
    assert found.metric == "eval/length" and not found.maximize and found.ranked[0].group.values == {"beta": 0.01}
    other = found.ranked[1].versus
    assert other and other.difference.value == -10 and other.real  # ten apart, intervals of one
    assert to_best(found, found.ranked[1]) == "10.0"


def test_one_run_is_compared_with_its_own_start(tmp_path: Path) -> None:
    write_run(tmp_path / "a", share(100, 60), card={"difference": {"eval/pass@1": [0.35, 0.25, 0.45]}})
    write_run(tmp_path / "b", share(100, 60), card={"difference": {"eval/pass@1": [0.35, -0.01, 0.45]}})
    real, open_ = compared(tmp_path / "a").sentences, compared(tmp_path / "b").sentences
    assert "25.0 % (10.0–50.0) before training, 60.0 %" in real[0]
    assert "35.0 points more (95 % interval +25.0 to +45.0, paired over items): a real change of this model." in real[0]
    assert "cannot be told from no change" in open_[0] and "One seed" in real[1]


def test_training_that_did_not_help_is_said(tmp_path: Path) -> None:
    folder = grid(tmp_path, {0.1: [10], 0.04: [20]})
    assert "No setting is better than the model was before training." in compared(folder).sentences


@pytest.mark.parametrize(
    ("different", "reason"),
    [
        ({"card": {"data": {"name": "arithmetic", "sha256": "bb"}}, "items": 99}, "other held-out items"),
        ({"config": {"eval": {**CONFIG["eval"], "temperature": 0.0}}}, "eval.temperature is 0.0 instead of 0.7"),
        ({"config": {"objective": {"metric": "eval/reward", "direction": "maximize"}}}, "objective.metric is eval/reward"),
    ],
)
def test_what_was_measured_otherwise_is_not_compared(tmp_path: Path, different: dict, reason: str) -> None:  # type: ignore[type-arg]
    folder = grid(tmp_path, {0.1: [10], 0.04: [20]})
    items = different.pop("items", 100)
    write_run(folder / "2", share(items, 99), beta=0.01, **different)
    found = compared(folder)
    assert [s.group.values["beta"] for s in found.ranked] == [0.04, 0.1]
    (apart,) = found.apart
    assert reason in apart.reason and any("1 run is not compared" in text and reason in text for text in found.sentences)
    assert any(reason in line.replace("\n", " ") or "not compared" in line for line in plain(found))


def test_data_of_another_hash_with_the_same_items_is_compared(tmp_path: Path) -> None:
    """Fewer items to train on, the same to be measured on."""
    folder = grid(tmp_path, {0.1: [10], 0.04: [20]})
    write_run(folder / "2", share(100, 99), beta=0.01, card={"data": {"name": "arithmetic", "sha256": "bb"}})
    found = compared(folder)
    assert not found.apart and found.ranked[0].group.values == {"beta": 0.01}


def test_failures_have_reasons_and_equal_ones_stand_once(tmp_path: Path) -> None:
    folder = grid(tmp_path, {0.1: [10], 0.04: [20]})
    for number in (2, 3):
        write_run(folder / str(number), None, status="failed", beta=0.5, card={"error": "out of memory"})
    write_run(folder / "4", status="pruned", beta=0.2, card={"reason": "below the median at step 25"})
    write_run(folder / "5", status="running", beta=0.3)
    write_run(folder / "6", beta=0.6)
    (folder / "6" / "run.json").write_text("{")
    found = compared(folder)
    assert [run.trial for run in found.failures] == [2, 3, 6]
    listed = dict(failures(found))
    assert listed["grid/2 and 1 more"] == "failed: out of memory"
    assert listed["grid/4"] == "pruned: below the median at step 25" and "run.json cannot be read" in listed["grid/6"]
    assert [s.status for s in found.ranked] == ["finished", "finished", "pruned", "running", "failed", "broken"]
    assert "4 settings have no final result and are not compared." in found.sentences
    assert found.family == 1


def test_running_runs_are_ranked_by_what_they_have_so_far(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "grid")
    write_run(folder / "0", share(10, 3), status="running", beta=0.1, steps=5)
    write_run(folder / "1", share(10, 6), status="running", beta=0.2, steps=3)
    write_run(folder / "2", None, status="running", beta=0.3, steps=0)
    found = compared(folder)
    assert [s.group.values["beta"] for s in found.ranked] == [0.2, 0.1, 0.3]
    assert found.sentences[0].startswith("No run is finished. Highest so far: beta=0.2, eval/pass@1 60.0 %")
    assert "may change" in found.sentences[1] and all(s.versus is None for s in found.ranked)


def test_runs_never_evaluated_are_judged_by_their_reward(tmp_path: Path) -> None:
    for i, (beta, steps) in enumerate([(0.1, 20), (0.2, 40)]):
        write_run(tmp_path / "grid" / str(i), None, beta=beta, steps=steps, start=None)
    found = compared(tmp_path)
    assert found.metric == "reward/mean" and found.ranked[0].group.values == {"beta": 0.2}
    assert found.ranked[0].interval and found.ranked[0].interval.value == pytest.approx(3.55)  # median of 3.1 ... 4.0


def test_grouping_by_one_of_two_options(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "grid")
    for i, (beta, G, count) in enumerate([(0.1, 4, 50), (0.1, 8, 52), (0.01, 4, 70), (0.01, 8, 74)]):
        write_run(folder / str(i), share(100, count), beta=beta, G=G)
    found = compared(folder, ["beta"])
    assert [(s.group.label, s.seeds) for s in found.ranked] == [("beta=0.01", 2), ("beta=0.1", 2)]
    assert found.command == "python -m grpo_exp beta=0.01 G=8"


def test_the_command_has_what_is_needed_and_is_quoted(tmp_path: Path) -> None:
    words = {
        "beta": "0.04", "sweeps": "beta_grid", "hydra.sweep.dir": "x", "track": "quiet", "track.tags": "[a]", "seed": "1",
        "data.prompt": '"{Body} {Question}"', "+reward/part@reward.parts.format": "format", "~reward/part": "", "algo": "dapo",
        "hardware.threads": "1", "hardware.overlap": "1",
    }  # fmt: skip
    write_run(tmp_path / "a", overrides=words, config={"steps": 30})
    command = compared(tmp_path).command
    assert command is not None
    assert command.startswith("python -m grpo_exp algo=dapo ")
    assert """ 'data.prompt="{Body} {Question}"' """ in f"{command} " and " '~reward/part'" in command
    assert " steps=30 " in f"{command} "  # what sweeps/beta_grid.yaml sets
    assert " beta=0.04 " in f"{command} " and " seed=1 " in f"{command} "
    assert " hardware.overlap=1 " in f"{command} "  # the machine's one option that decides what is learned from
    for left_out in ("sweeps", "hydra", "track", "hardware.threads"):
        assert left_out not in command


def test_hostile_text_reaches_the_screen_without_control_characters(tmp_path: Path) -> None:
    nasty = "\x1b[2J\x1b]0;owned\x07\u202eb\u2028=cmd|' /C calc'!A0"
    folder = sweep(tmp_path / "grid\x1b[31m")
    write_run(folder / "0", share(10, 5), overrides={"name": nasty, "data.path": nasty}, config={"data": {"name": nasty}})
    write_run(folder / "1", share(10, 5), overrides={"data.path": "b"}, config={"data": {"name": "b"}})
    write_run(folder / "2", None, status="failed", card={"error": nasty})
    found = compared(folder)
    assert found.by == ["data"]
    lines = list(plain(found))
    assert all(c.isprintable() for line in lines for c in line), lines
    assert "\\x1b[2J" in "\n".join(lines)
    table = as_csv(found)
    assert table.replace("\n", "").isprintable() and json.loads(as_json(found))


def test_a_spreadsheet_takes_no_cell_for_a_formula(tmp_path: Path) -> None:
    write_run(tmp_path / "a", None, status="failed", card={"error": "=1+1"})
    (row,) = csv.DictReader(io.StringIO(as_csv(compared(tmp_path))))
    assert row["reason"] == "'=1+1"


class Terminal(io.StringIO):
    """A terminal as far as anyone asks."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_table_fits_the_terminal(tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    folder = grid(tmp_path, {0.1: [40], 0.04: [80], 0.01: [78]})
    write_run(folder / "9", None, status="failed", beta=0.5, card={"error": "\x1b[2J out of memory"})
    screen = Terminal()
    show(compared(folder), screen, width)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()
    assert all(len(line) <= width for line in lines) and "\x1b[2J" not in screen.getvalue()
    row = next(line for line in lines if "best" in line and "80.0 (" in line)
    assert row.split()[:3] == ["1", "0.04", "1"] and ("12k" in row) == (width >= 100)
    assert "…" not in row


def test_nothing_but_damaged_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    (tmp_path / "a" / "run.json").write_text("")
    found = compared(tmp_path)
    assert (
        [s.status for s in found.ranked] == ["broken"]
        and found.sentences == ["No run has been measured yet."]
        and found.command is None
    )
    assert any("a  broken: run.json cannot be read" in line for line in plain(found))
    assert json.dumps(found.sentences)


@pytest.mark.parametrize(
    "junk", [None, True, 3, -1.5, "x", [], [1, None, "a"], {}, {"eval/pass@1": [1, None, 2]}, {"a": {"b": 1}}]
)
def test_a_card_or_record_of_other_types_breaks_nothing(tmp_path: Path, junk: object) -> None:
    folder = grid(tmp_path, {0.1: [10], 0.04: [20]})
    for name in ("run.json", "trial.json"):
        card = json.loads((folder / "0" / "run.json").read_text())
        keys = [key for key in (*card, "difference", "reason", "error", "params", "state") if key != "status"]
        (folder / "0" / name).write_text(json.dumps({**card, **dict.fromkeys(keys, junk)}))
    rows = [dict.fromkeys(("step", "tokens", "seconds", "kl/mean", "eval/pass@1", "id", "outcome", "total"), junk)] * 2
    for name in ("metrics.jsonl", "eval.jsonl", "samples.jsonl"):
        (folder / "0" / name).write_bytes(b"".join(map(json_line, rows)))
    found = compared(folder)
    assert sum(len(s.group.runs) for s in found.ranked) + sum(len(part.runs) for part in found.apart) == 2
    assert list(plain(found)) and as_csv(found) and json.loads(as_json(found))


def test_a_run_that_failed_before_it_had_files_keeps_its_reason(tmp_path: Path) -> None:
    write_run(tmp_path / "a", None, status="failed", card={"error": "the model does not load"})
    for name in ("config.yaml", "metrics.jsonl", "eval.jsonl"):
        (tmp_path / "a" / name).unlink()
    assert failures(compared(tmp_path)) == [("a", "failed: the model does not load")]
