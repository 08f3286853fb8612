"""curves.png: it is drawn from whatever a run has, and a run never fails for it."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest

from grpo_exp.errors import DataError
from grpo_exp.track.picture import PANELS, PictureTracker, _choose, draw, series, smooth


def write_rows(folder: Path, rows: list[dict[str, object]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def grpo_rows(steps: int = 60) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for step in range(1, steps + 1):
        p = step / steps
        rows.append(
            {"step": step, "kind": "train", "reward/mean": p, "kl/mean": p / 10, "length/mean": 40.0, "length/right": None}
        )
        rows[-1].update(
            {"length/wrong": 50.0, "reward/std": 0.4, "reward/group_std": 0.2, "entropy/mean": 1 - p, "loss/total": 0.0}
        )
        if step % 20 == 0:
            interval = {"eval/pass@1": p, "eval/pass@1_low": p - 0.1, "eval/pass@1_high": p + 0.1}
            rows.append({"step": step, "kind": "eval", **interval, "eval/maj@k": p})
    return rows


def size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_one_run_is_two_by_three(tmp_path: Path) -> None:
    folder = write_rows(tmp_path / "a", grpo_rows())
    assert draw([folder], tmp_path / "out.png") == tmp_path / "out.png"
    width, height = size(tmp_path / "out.png")
    assert 1.7 < width / height < 2.1 and width > 1200


def test_panels_are_those_with_data_and_the_loss_is_not_among_them_in_rl(tmp_path: Path) -> None:
    assert [panel.metrics[0][0] for panel in _choose([grpo_rows()])] == [
        "reward/mean", "kl/mean", "length/mean", "reward/std", "entropy/mean", "eval/pass@1",
    ]  # fmt: skip
    few = [{"step": 1, "reward/mean": 0.1, "loss/total": 1.0, "kl/mean": None, "format/rate": 1.0}]
    assert [panel.metrics[0][0] for panel in _choose([few])] == ["reward/mean", "format/rate"]
    assert [panel.metrics[0][0] for panel in _choose([[{"step": 1, "loss/total": 1.0, "eval/pass@1": 0.1}]])] == [
        "loss/total", "eval/pass@1",
    ]  # fmt: skip
    assert len({panel.title for panel in PANELS}) == len(PANELS)


def test_several_runs_with_odd_labels_and_a_torn_line(tmp_path: Path) -> None:
    folders = [write_rows(tmp_path / name, grpo_rows(steps)) for name, steps in (("a", 30), ("b", 60), ("c", 1))]
    with open(folders[0] / "metrics.jsonl", "a") as file:
        file.write('{"step": 31, "rew')
    assert draw(folders, tmp_path / "out.png", labels=["$\\bad{", "語 <b>", "a\nb"]) is not None
    assert size(tmp_path / "out.png")[0] > 1200


def test_supervised_run_draws_its_loss(tmp_path: Path) -> None:
    folder = write_rows(tmp_path / "a", [{"step": s, "kind": "train", "loss/total": 1 / s} for s in range(1, 9)])
    assert draw([folder], tmp_path / "out.svg") is not None
    assert "Loss" in (tmp_path / "out.svg").read_text() or (tmp_path / "out.svg").stat().st_size > 1000


def test_run_without_a_single_metric_draws_nothing(tmp_path: Path) -> None:
    folder = write_rows(tmp_path / "a", [{"step": 1, "kind": "train"}])
    assert draw([folder], tmp_path / "out.png") is None
    assert not (tmp_path / "out.png").exists()


def test_labels_must_match(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 labels for 2 folders"):
        draw([tmp_path, tmp_path], tmp_path / "out.png", labels=["a"])


@pytest.mark.parametrize("status", ["finished", "failed", "pruned", "stopped"])
def test_tracker_draws_whichever_way_the_run_ended(tmp_path: Path, status: str) -> None:
    write_rows(tmp_path, [{"step": s, "kind": "train", "reward/mean": 0.1} for s in (1, 2)])
    PictureTracker(tmp_path, pytest.fail).finish({"status": status, "name": "a run"})
    assert size(tmp_path / "curves.png")[0] > 300


def test_picture_that_cannot_be_drawn_is_a_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    PictureTracker(tmp_path / "missing", warnings.append).finish({"status": "finished"})
    assert len(warnings) == 1 and "curves.png was not drawn" in warnings[0]


def test_series_and_smoothing() -> None:
    rows = [{"step": 1, "a": 1.0}, {"step": 2, "a": None}, {"step": 3, "a": math.nan}, {"step": 4, "a": 4}, {"a": 5.0}]
    assert series(rows, "a") == ([1.0, 4.0], [1.0, 4.0])
    assert smooth([1.0, 2.0, 3.0, 4.0], 2) == [1.0, 1.5, 2.5, 3.5]
