"""What a person sees: the run card, one line of progress, samples, evaluations, and the result at the end.

Live on a terminal, with rich; elsewhere (a file, a pipe, CI) plain lines without escape codes or boxes. Printing never
kills a run: where the stream is closed (`| head`), the console falls silent.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import textwrap
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from grpo_exp.track import wording
from grpo_exp.track.base import Row, Tracker, TrackOptions
from grpo_exp.track.card import card_lines, wandb_line
from grpo_exp.track.redact import without_secrets

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

WIDEST = 110
_WINDOW = 100  # steps that the time left is estimated from, with the evaluations among them


class ConsoleTracker(Tracker):
    """Prints a run as it goes.

    Args:
        options: `console`, `print_every`, `samples_every`, `samples_shown`.
        stream: where to; None: standard output.
        width: characters in a line; None: the terminal's, at most 110; 100 where there is none.
    """

    def __init__(self, options: TrackOptions, *, stream: TextIO | None = None, width: int | None = None) -> None:
        self.options = options
        self.stream = stream if stream is not None else sys.stdout
        self.mode = _mode(options.console, self.stream)
        self.console: Console | None = _rich_console(self.stream, width) if self.mode == "live" else None
        self.width = min(self.console.width, WIDEST) if self.console else (width or 100)
        self.steps: int | None = None
        self.brief = False  # one trial of a sweep: its progress, and how it ended
        self._live: Live | None = None
        self._began = time.monotonic()
        self._recent: deque[tuple[int, float]] = deque(maxlen=_WINDOW)  # (step, seconds)
        self._rewards: list[float] = []
        self._next_samples = 0
        self._next_line = 0

    def start(self, card: Row, config: Row) -> None:
        self._began = time.monotonic()
        self.steps = card.get("steps") or None
        self.brief = card.get("trial") is not None
        if self.brief:
            return  # the sweep has said what is varied, and run.json says the rest
        lines = card_lines(card)
        if card.get("rollbacks") and card.get("resumed_from") is not None:  # the screen has the rest above
            lines = [line for line in lines if line[0] in ("run", "options")]
        if self.console is None:
            self._pairs(lines, self.width)
            self._line("")
            return
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        for label, text in lines:
            grid.add_row(Text(label, style="bold cyan"), Text(without_secrets(text)))
        name = without_secrets(wording.clean(card.get("name") or "run"))
        self._print(Panel(grid, title=Text(f" {name} ", style="bold"), border_style="cyan", width=self.width))

    def metrics(self, row: Row) -> None:
        if row.get("kind") == "eval":
            for line in textwrap.wrap(wording.eval_line(row), self.width, subsequent_indent="    ", break_on_hyphens=False):
                self._line(line, "bold green")
            return
        step, seconds = int(row.get("step") or 0), self._seconds(row)
        self._recent.append((step, seconds))
        if isinstance(reward := row.get("reward/mean"), (int, float)):
            self._rewards.append(reward)
        parts = [*wording.progress_parts(row, self.steps), self._times(step, seconds)]
        if self.console is not None:
            self._progress(_fit(parts, self.width).removeprefix("step "))
        elif step >= self._next_line or step == self.steps:
            self._line("  ".join(parts))
            self._next_line = (step // self.options.print_every + 1) * self.options.print_every

    def samples(self, rows: Sequence[Row]) -> None:
        every, count = self.options.samples_every, self.options.samples_shown
        step = int(rows[0].get("step") or 0) if rows else 0
        if not rows or not every or not count or self.brief or step < self._next_samples:
            return
        self._next_samples = (step // every + 1) * every
        self._line(f"samples at step {step}, from the best reward to the worst", "bold")
        for row in wording.spread(rows, count):
            self._pairs([(f"  {label}", text) for label, text in wording.sample_lines(row, 2 * (self.width - 14))], self.width)

    def note(self, text: str, level: str = "note") -> None:
        if level == "warn" or self.mode != "quiet":
            self._line(
                f"{'warning' if level == 'warn' else 'note'}: {wording.clean(text)}",
                "yellow" if level == "warn" else "dim",
                True,
            )

    def finding(self, row: Row) -> None:
        if self.mode == "quiet" and row["action"] == "note":
            return
        for i, line in enumerate(wording.finding_lines(row)):
            margin = "" if i == 0 else "    "
            for folded in _fold(line, self.width - len(margin)):
                self._line(margin + folded, "yellow" if i == 0 else "", True)

    def finish(self, card: Row) -> None:
        self._stop_live()
        if not self.brief:
            self._line("")
        good = card.get("status") == "finished"
        self._line(wording.status_line(card), "bold green" if good else "bold yellow")
        if card.get("error"):
            self._line(wording.clean(card["error"]), "red")
        back = wording.sent_back(card)
        if back:
            self._line(back, "yellow")
        if self.brief or back:
            return
        if self.console is not None and len(self._rewards) > 1:
            tenth = max(1, len(self._rewards) // 10)
            first, last = sum(self._rewards[:tenth]) / tenth, sum(self._rewards[-tenth:]) / tenth
            self._line(f"reward/mean {wording.number(first)} {wording.sparkline(self._rewards)} {wording.number(last)}", "cyan")
        for i, line in enumerate(wording.result_table(card)):
            self._line(line, "bold" if i == 0 else "")
        for label, text in _where(card):
            self._line(f"{label:<8}{text}")  # never folded: paths and commands are there to be copied

    def _seconds(self, row: Row) -> float:
        """Seconds since the start: the row's own, which a resumed run goes on counting, otherwise ours."""
        seconds = row.get("seconds")
        return float(seconds) if isinstance(seconds, (int, float)) else time.monotonic() - self._began

    def _times(self, step: int, seconds: float) -> str:
        """Elapsed and left. The estimate is the mean over the last 100 steps, evaluations included."""
        (first_step, first_seconds), elapsed = self._recent[0], wording.duration(seconds)
        if not self.steps or step <= first_step or step >= self.steps:
            return elapsed
        left = (seconds - first_seconds) / (step - first_step) * (self.steps - step)
        return f"{elapsed}, {wording.duration(left)} left"

    def _progress(self, text: str) -> None:
        from rich.live import Live
        from rich.text import Text

        line = Text(text, style="cyan", no_wrap=True, overflow="ellipsis")
        try:
            if self._live is None:
                # No refreshing thread: reward workers may be forked. Prints of the user's code appear above the line.
                ours = self.stream is sys.stdout
                self._live = Live(
                    console=self.console, auto_refresh=False, transient=True, redirect_stdout=ours, redirect_stderr=ours
                )
                self._live.start()
                atexit.register(self._stop_live)  # shows the cursor again, also where the run dies unfinished
            self._live.update(line, refresh=True)
        except (OSError, ValueError):
            self._fall_silent()

    def _stop_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            atexit.unregister(self._stop_live)
            try:
                live.stop()
            except (OSError, ValueError):
                self._fall_silent()

    def _pairs(self, pairs: Sequence[tuple[str, str]], width: int) -> None:
        """`label  text` lines, long texts folded under their beginning."""
        margin = 2 + max((len(label) for label, _ in pairs), default=0)
        for label, text in pairs:
            for i, line in enumerate(_fold(text, width - margin)):
                self._line((label if i == 0 else "").ljust(margin) + line)

    def _line(self, text: str, style: str = "", also_quiet: bool = False) -> None:
        if self.mode == "silent" or (self.mode == "quiet" and not also_quiet):
            return
        text = without_secrets(text)
        if self.console is not None:
            from rich.text import Text

            self._print(Text(text, style=style), soft_wrap=True)  # a Text, never a str: markup in it stays what it is
            return
        try:
            encoding = getattr(self.stream, "encoding", None) or "utf-8"
            self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
            self.stream.flush()
        except (OSError, ValueError):
            self._fall_silent()

    def _print(self, renderable: Any, soft_wrap: bool = False) -> None:
        try:
            if self.console is not None:
                self.console.print(renderable, soft_wrap=soft_wrap)
        except (OSError, ValueError):
            self._fall_silent()

    def _fall_silent(self) -> None:
        """The stream is closed: from here on print nothing, the run goes on and its files hold everything."""
        self.console, self._live, self.mode = None, None, "silent"
        with contextlib.suppress(OSError, ValueError):
            # What is still buffered would fail again when Python exits, and turn its exit code into 120.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.stream.fileno())
            os.close(null)


def _mode(wanted: str, stream: TextIO) -> str:
    """live, plain or quiet. A stream that cannot show every character is plain, where characters can be escaped."""
    utf = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "").startswith("utf")
    if wanted == "live" and utf:
        return "live"
    if wanted != "auto":
        return "quiet" if wanted == "quiet" else "plain"
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return "live" if utf and stream.isatty() and not in_ci and os.environ.get("TERM") != "dumb" else "plain"


def _rich_console(stream: TextIO, width: int | None) -> Console:
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            """rich would end the process here; the console's own handling lets the run go on."""
            raise BrokenPipeError

    return Screen(file=stream, width=width, force_terminal=True, highlight=False, markup=False, emoji=False)


def _fold(text: str, width: int) -> list[str]:
    """The text on lines of `width`; a path or command is never broken, so that it can be copied."""
    return textwrap.wrap(text, max(20, width), break_on_hyphens=False, break_long_words=False) or [""]


def _fit(parts: list[str], width: int) -> str:
    """The parts on one line; where they are too long, the least important are left out: those before the times."""
    kept = list(parts)
    while len("  ".join(kept).removeprefix("step ")) > width and len(kept) > 2:
        del kept[-2]
    return "  ".join(kept)


def _where(card: Row) -> list[tuple[str, str]]:
    """Where the run's files are."""
    folder = str(card.get("folder") or "")
    pairs = [("folder", wording.clean(folder))] if folder else []
    if folder and os.path.exists(picture := os.path.join(folder, "curves.png")):
        pairs.append(("curves", wording.clean(picture)))
    if line := wandb_line(card):
        pairs.append(("W&B", line))
    return pairs
