"""What a person sees, on a terminal and in a log file."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_exp.track import TrackOptions
from grpo_exp.track.console import ConsoleTracker
from grpo_exp.track.wording import clean, cut, duration, number, result_table, sample_lines, sparkline, spread

ROOT = Path(__file__).parents[2]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CARD: dict[str, Any] = {
    "name": "arithmetic",
    "status": "running",
    "folder": "outputs/runs/a",
    "algo": "grpo",
    "formula": "L = A\n  + 0.04 KL",
    "model": {"name": "tiny", "parameters": 812544, "trainable": 812544, "adapter": None},
    "data": {
        "name": "arithmetic",
        "source": "generated",
        "train": 5000,
        "heldout": 200,
        "sha256": "ab" * 32,
        "notes": ["3 dropped"],
    },
    "reward": {
        "name": "math",
        "parts": {"math": {"weight": 1.0, "role": "outcome"}, "format": {"weight": 0.2, "role": "shaping"}},
    },
    "batch": {"prompts_per_step": 16, "G": 8, "rows": 128, "updates_per_rollout": 2, "rows_per_update": 64, "tokens_max": 4096},
    "steps": 240,
    "beta": 0.04,
    "hardware": {"device": "cpu", "dtype": "float32", "threads": 2, "cpu": "a cpu", "memory_gib": 7.75},
    "goal": {"metric": "eval/pass@1", "direction": "maximize"},
    "wandb": {"mode": "offline", "sync": "wandb sync outputs/runs/a/wandb/offline-run-1"},
}
ENDED = {
    **CARD,
    "status": "finished",
    "wall_seconds": 201.2,
    "tokens": 98304,
    "objective": 0.633,
    "before": {"eval/pass@1": [0.10, 0.05, 0.16], "eval/pass@1/sums": [0.2, 0.1, 0.3], "eval/length": [40.0, 38.0, 42.0]},
    "after": {"eval/pass@1": [0.633, 0.542, 0.717], "eval/pass@1/sums": [0.7, 0.6, 0.8], "eval/length": [31.0, 30.0, 32.0]},
    "difference": {"eval/pass@1": [0.533, 0.44, 0.62], "eval/length": [-9.0, -11.0, -7.0]},
}
ATTACK = "\x1b[2J\x1b]0;owned\x07[bold red]42[/] [link=http://x]\r\u202e\u2028\nfinished in 0:01\ud800"


def console(stream: io.TextIOBase | None = None, width: int | None = 80, **changes: object) -> tuple[ConsoleTracker, Any]:
    values = yaml.safe_load((ROOT / "conf/track/local.yaml").read_text())
    out = stream if stream is not None else io.StringIO()
    return ConsoleTracker(TrackOptions(**{**values, **changes}), stream=out, width=width), out  # type: ignore[arg-type]


def train_row(step: int, **more: float) -> dict[str, Any]:
    row = {"step": step, "kind": "train", "tokens": 100 * step, "seconds": 2.0 * step, "reward/mean": 0.25, "kl/mean": 0.0123}
    return {**row, "length/mean": 41.2, "reward/std": 0.4, "throughput/tokens_per_s": 1803.0, "loss/total": 7.77, **more}


def whole_run(tracker: ConsoleTracker, steps: int = 240) -> None:
    tracker.start(dict(CARD), {})
    tracker.metrics({"step": 0, "kind": "eval", "eval/pass@1": 0.1, "eval/pass@1_low": 0.05, "eval/pass@1_high": 0.16})
    for step in range(1, steps + 1):
        tracker.metrics(train_row(step))
        tracker.samples([{"step": step, "prompt": ATTACK, "completion": ATTACK, "math": 0.0, "total": 0.2, "finished": False}])
    tracker.note(ATTACK, "warn")
    tracker.finish(dict(ENDED))


def test_plain_run_reads_as_lines_without_escapes_boxes_or_control_characters() -> None:
    tracker, out = console(console="plain")
    whole_run(tracker)
    text = out.getvalue()
    assert not set(text) & set("\x1b\r\x07\u2028\u202e│╭─┌")
    lines = text.splitlines()
    shown = [line for line in lines if line.startswith("step ")]
    assert len(shown) == 25  # the first, then every tenth
    assert shown[12] == "step 120/240  reward 0.250  KL 0.012  len 41  std 0.400  1.8k tok/s  4:00, 4:00 left"
    assert "eval step 0: pass@1 10.0 % (5.0–16.0)" in lines
    assert not any(line.startswith("finished in 0:01") for line in lines)  # the model cannot fake a line
    assert "finished in 3:21: eval/pass@1 0.633, 98,304 tokens sampled" in lines
    assert any(line.endswith("wandb sync outputs/runs/a/wandb/offline-run-1") for line in lines)


def test_card_says_what_trains_on_what_with_how_many_samples() -> None:
    tracker, out = console(console="plain")
    tracker.start(dict(CARD), {})
    text = " ".join(out.getvalue().split())
    for part in (
        "tiny, 812,544 parameters, all trained",
        "5,000 to train on, 200 held out",
        "3 dropped",
        "1 × math (outcome) + 0.2 × format",
        "L = A + 0.04 KL",
        "16 prompts × 8 samples = 128 rows a step, 2 updates of 64 rows each, at most 4,096 tokens a step",
        "240: 3,840 prompts, 30,720 samples in all",
        "cpu, float32, 2 threads, a cpu, 7.8 GiB",
        "eval/pass@1, maximize",
    ):
        assert part in text
    assert max(map(len, out.getvalue().splitlines())) <= 80


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_empty_card_rows_and_samples_are_no_reason_to_stop(mode: str) -> None:
    tracker, out = console(console=mode)
    tracker.start({}, {})
    tracker.metrics({})
    tracker.metrics({"kind": "eval"})
    tracker.samples([])
    tracker.samples([{}])
    tracker.finish({})
    assert "ended" in out.getvalue()


def test_loss_is_not_shown_as_progress_where_there_is_a_reward() -> None:
    tracker, out = console(console="plain")
    tracker.metrics(train_row(1))
    assert "7.77" not in out.getvalue()
    tracker.metrics({"step": 10, "kind": "train", "loss/total": 2.5})  # supervised: the loss is all there is
    assert "loss 2.5" in out.getvalue()


def test_live_run_shows_card_progress_and_result_and_gives_the_cursor_back() -> None:
    tracker, out = console(console="live")
    whole_run(tracker)
    text = out.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    visible = ESCAPES.sub("", text)
    assert "╭" in visible and "16 prompts × 8 samples" in visible
    assert "120/240  reward 0.250  KL 0.012  len 41  std 0.400  1.8k tok/s  4:00, 4:00 left" in visible
    assert "reward/mean 0.250" in visible and "\nfinished in 3:21" in visible
    assert "[bold red]42[/]" in visible  # markup in a completion is text
    assert not set(visible) & set("\x1b\x07\u2028\u202e")  # and no escape of its survives
    progress = [line for line in re.split(r"[\r\n]", visible) if line.startswith("120/240")]
    assert progress and max(map(len, progress)) <= 80


def test_narrow_terminal_keeps_step_reward_and_time() -> None:
    tracker, out = console(console="live", width=40)
    for step in (1, 2):
        tracker.start({"steps": 10}, {})
        tracker.metrics(train_row(step))
    assert "2/10  reward 0.250  0:04, 0:16 left" in ESCAPES.sub("", out.getvalue())


def test_time_left_counts_evaluations() -> None:
    tracker, out = console(console="plain", print_every=1)
    tracker.start({"steps": 100}, {})
    seconds = 0.0
    for step in range(1, 51):
        seconds += 1.0 + (10.0 if step % 10 == 0 else 0.0)  # an evaluation of 10 s every 10 steps
        tracker.metrics(train_row(step, seconds=seconds))
    left = re.search(r"1:40, (\d):(\d\d) left", out.getvalue().splitlines()[-1])
    assert left and 95 <= 60 * int(left[1]) + int(left[2]) <= 105


def test_before_and_after_with_intervals_in_eighty_columns() -> None:
    table = result_table(ENDED)
    assert table[0].split() == ["before", "after", "difference"]
    assert table[1].split("  ")[0] == "pass@1 %"
    assert "10.0 (5.0–16.0)" in table[1] and "63.3 (54.2–71.7)" in table[1] and "+53.3 (+44.0, +62.0)" in table[1]
    assert table[2].startswith("  sums") and table[2].endswith("–")
    assert "-9 (-11, -7)" in table[3]
    assert max(map(len, table)) <= 80
    assert result_table({}) == []


def test_samples_run_from_best_to_worst_every_so_often() -> None:
    tracker, out = console(console="plain", samples_every=5, samples_shown=2)
    for step in range(1, 12):
        tracker.samples([{"step": step, "completion": f"answer {i}", "total": float(i)} for i in (1, 3, 2)])
    text = out.getvalue()
    assert re.findall(r"samples at step (\d+)", text) == ["1", "5", "10"]
    assert re.findall(r"answer \d", text)[:2] == ["answer 3", "answer 1"]
    assert [row["total"] for row in spread([{"total": t} for t in range(9)], 3)] == [8, 4, 0]


@pytest.mark.parametrize(
    "parts", [{"parts": {"math": 1.0, "format": None}}, {"reward/part/math": 1.0, "reward/part/format": None}, {"math": 1.0}]
)
def test_sample_shows_parts_and_total(parts: dict[str, Any]) -> None:
    row = {
        "step": 1,
        "prompt": "p" * 500 + " 2+2=",
        "completion": "4" * 500,
        "total": 1.2,
        "length": 3,
        "finished": False,
        **parts,
    }
    lines = dict(sample_lines(row, 60))
    assert lines["prompt"].startswith("…") and lines["prompt"].endswith("2+2=") and len(lines["prompt"]) == 60
    assert lines["completion"].endswith("…") and len(lines["completion"]) == 60
    assert lines["reward"] == "1.200  (math 1.000), length 3, cut off at the limit"


def test_automatic_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"  # type: ignore[assignment]

        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert console(Terminal())[0].mode == "live"
    assert console(io.StringIO())[0].mode == "plain"
    monkeypatch.setenv("TERM", "dumb")
    assert console(Terminal())[0].mode == "plain"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("CI", "true")
    assert console(Terminal())[0].mode == "plain"


def test_stream_that_is_not_unicode_gets_escapes_and_no_error() -> None:
    raw = io.BytesIO()
    tracker, out = console(io.TextIOWrapper(raw, encoding="ascii"), console="live")
    whole_run(tracker, steps=3)
    out.flush()
    assert "16 prompts \\xd7 8 samples" in raw.getvalue().decode("ascii")


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_closed_stream_does_not_end_the_run(mode: str) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    tracker, _ = console(Broken(), console=mode)
    whole_run(tracker, steps=3)
    assert tracker.mode == "silent"


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_piping_into_head_leaves_the_exit_code_alone(mode: str) -> None:
    script = (
        "import sys, time; sys.path.insert(0, 'tests/track')\n"
        "from test_track_console import console, whole_run\n"
        f"whole_run(console(sys.stdout, console={mode!r})[0], steps=3000)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline()
        process.stdout.close()
        assert (process.wait(timeout=60), process.stderr.read()) == (0, "")


def test_quiet_shows_warnings_alone() -> None:
    tracker, out = console(console="quiet")
    whole_run(tracker, steps=30)
    tracker.note("a note")
    assert out.getvalue().startswith("warning: \\x1b[2J") and out.getvalue().count("\n") == 1


def test_words() -> None:
    assert clean("a\nb\tc\x1b[0m\u200b") == "a ⏎ b c\\x1b[0m\\u200b"
    assert (cut("abcdef", 4), cut("abcdef", 4, tail=True), cut("abcd", 4)) == ("abc…", "…def", "abcd")
    assert [number(x) for x in (0, 0.0, 0.5, 12.34, 1234.5, 1e-5, -0.02, float("nan"), None)] == [
        "0", "0.000", "0.500", "12.3", "1,234", "1e-05", "-0.02", "–", "–",
    ]  # fmt: skip
    assert [duration(s) for s in (7.4, 754, 11100)] == ["0:07", "12:34", "3:05:00"]
    assert sparkline([0, 1, 2, 3]) == "▁▃▆█" and sparkline([]) == "" and len(sparkline(range(1000))) == 40
