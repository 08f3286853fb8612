"""Several trials at a time: the same command again as processes of this machine, each with its own share of the cores.

They work alongside each other as any processes on one folder do. What is added here: a process that is killed is noticed, its
trial marked, and another process takes its place.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from optuna.trial import TrialState

from grpo_exp import stop
from grpo_exp.errors import InputError, RunError, Stopped
from grpo_exp.sweep import messages
from grpo_exp.sweep.loop import Sweep
from grpo_exp.sweep.study import ATTEMPTS, REASON, lock, own

SIGNALS = (*stop.SIGNALS, signal.SIGHUP)
PATIENCE = 120.0
"""Seconds that stopped processes have for their checkpoints."""
ENDING = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); "  # PR_SET_PDEATHSIG, which stays over exec
    "os.getppid() == int(sys.argv[1]) or os._exit(143); os.execv(sys.argv[2], sys.argv[2:])"
)


def run(mine: Sweep, count: int, command: Sequence[str] | None = None) -> None:
    """Keep `count` processes at work until no trial is left.

    Args:
        command: starts one of them; None for this process's own command line, joined to this sweep.

    Raises:
        InputError: what is asked for cannot be run.
        RunError: too many trials failed, or a process ended as none should.
        Stopped: on a signal, which is passed on to all.
    """
    Workers(mine, count, list(command or _again(mine.folder))).run()


def _again(folder: Path) -> list[str]:
    """This process's command line, to work alongside it."""
    where = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    return [sys.executable, "-m", "grpo_exp", *sys.argv[1:], "sweep.workers=1", "sweep.join=true", f"hydra.sweep.dir='{where}'"]


@dataclass
class Workers:
    """The processes, by slot; a slot has its cores, its GPU and its log."""

    mine: Sweep
    count: int
    command: list[str]
    pool: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    idle_deaths: int = 0

    def run(self) -> None:
        """As the function above."""
        caught: list[int] = []
        before = {s: signal.getsignal(s) for s in SIGNALS}
        for number, handler in before.items():
            if handler != signal.SIG_IGN:  # nohup
                signal.signal(number, lambda number, _: caught.append(number))
        news = _News(self.mine)
        self.mine.say(f"{self.count} trials at a time; what they print is in {self._log(0).parent}/worker-*.log")
        try:
            for slot in range(self.count):
                self._start(slot)
            while self.pool:
                time.sleep(0.2)
                if caught:
                    raise Stopped(caught[0], "the sweep is stopped; the same command goes on with it")
                news.tell()
                self._look()
        finally:
            self._stop(caught)
            for number, handler in before.items():
                signal.signal(number, handler)
            news.tell()

    def _start(self, slot: int) -> None:
        """One more process, on its share of the cores."""
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"} | _device(slot)
        with self._log(slot).open("ab") as log:
            self.pool[slot] = process = subprocess.Popen(
                _ending_with_parent(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # a Ctrl-C in the terminal reaches the sweep, which passes it on once
            )
        cores = sorted(os.sched_getaffinity(0))
        share = cores[slot % len(cores) :: self.count] if len(cores) > self.count else [cores[slot % len(cores)]]
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(process.pid, share)

    def _look(self) -> None:
        """Replace the processes that were killed.

        Raises:
            InputError, RunError: one ended by itself, with an error that is the sweep's.
        """
        for slot, process in list(self.pool.items()):
            if (code := process.poll()) is None:
                continue
            del self.pool[slot]
            number = -code if code < 0 else code - 128 if code - 128 in SIGNALS else 0
            if number:
                self._mark(process.pid, signal.Signals(number).name)
                self._start(slot)
            elif code == InputError.exit_code:
                raise InputError(self._last_words(slot))
            elif code:
                self.mine._check_failures()
                raise RunError(f"a worker ended with exit code {code}: {self._last_words(slot)}")
        self.mine._check_failures()

    def _mark(self, pid: int, name: str) -> None:
        """The trial that a killed process held is free again; the next claim goes on with it, unless it took down too many.

        Raises:
            RunError: processes are killed again and again before they hold any.
        """
        mine = self.mine
        with lock(mine.folder / ".locks" / "claim", wait=True):
            trials = [t for t in own(mine.study.get_trials(deepcopy=False)) if t.state == TrialState.RUNNING]
            held = [t for t in trials if pid in _holders(mine._lock(t.number))]
            for trial in held:
                attempts = int(trial.user_attrs.get(ATTEMPTS, 0)) + 1
                mine.study._storage.set_trial_user_attr(trial._trial_id, ATTEMPTS, attempts)
                again = "" if attempts > mine.options.retries else "; another goes on with it"
                mine.say(f"trial {trial.number}: its process was ended by {name}{again}")
                with lock(mine._lock(trial.number), wait=False) as free:
                    if not free or attempts <= mine.options.retries:  # another process is already at it
                        continue
                    reason = f"its process was ended by {name}, {attempts} time{'s' if attempts > 1 else ''}"
                    mine.study._storage.set_trial_user_attr(trial._trial_id, REASON, reason)
                    mine._write_finished(mine.study.tell(trial.number, state=TrialState.FAIL))
        self.idle_deaths = 0 if held else self.idle_deaths + 1
        if self.idle_deaths > 2 * self.count + 2:
            raise RunError(
                f"processes of the sweep are ended by {name} before they run a trial; is there memory for sweep.workers?"
            )

    def _log(self, slot: int) -> Path:
        return self.mine.folder / f"worker-{slot}.log"

    def _last_words(self, slot: int) -> str:
        """The message that a process ended with; without one, the end of its log."""
        text = self._log(slot).read_text(encoding="utf-8", errors="replace").rstrip()
        _, found, message = text.rpartition("\ngrpo_exp: ") if "\n" in text else text.rpartition("grpo_exp: ")
        return message if found else "\n".join(text.splitlines()[-5:])

    def _stop(self, caught: list[int]) -> None:
        """Ask all to stop, and wait for the checkpoints they write; a second signal is passed on too, and ends them at once."""
        passed, until = 0, time.monotonic() + PATIENCE
        first = caught[0] if caught and caught[0] in stop.SIGNALS else signal.SIGTERM
        for process in self.pool.values():
            process.send_signal(first)
        while any(process.poll() is None for process in self.pool.values()):
            if len(caught) > 1 + passed or time.monotonic() > until:
                passed += 1
                for process in self.pool.values():
                    process.send_signal(signal.SIGTERM if passed == 1 and len(caught) > 1 else signal.SIGKILL)
            time.sleep(0.05)


class _News:
    """A line for each trial that began or ended since."""

    def __init__(self, mine: Sweep) -> None:
        self.mine = mine
        self.known = {t.number: t.state for t in own(mine.study.get_trials(deepcopy=False)) if t.state.is_finished()}

    def tell(self) -> None:
        mine = self.mine
        for trial in own(mine.study.get_trials(deepcopy=False)):
            if self.known.get(trial.number) == trial.state or not (mine.folder / str(trial.number) / "trial.json").exists():
                continue
            if trial.number not in self.known:
                values = mine.space.active(trial.params)
                mine.say(messages.headline(mine.study, mine.space, mine.search, mine.grid, trial.number, values))
            if trial.state.is_finished():
                mine.say(messages.verdict(mine.study, trial, mine.metrics))
            self.known[trial.number] = trial.state


def _ending_with_parent(command: list[str]) -> list[str]:
    """The command, started by a few words that ask for SIGTERM when this process dies, of whatever. Linux alone has that."""
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", ENDING, str(os.getpid()), *command]


def _holders(path: Path) -> list[int]:
    """The processes that held a trial, none where a kill came before the first could sign."""
    try:
        return [int(line) for line in path.read_text().split()]
    except (OSError, ValueError):
        return []


def _device(slot: int) -> dict[str, str]:
    """One GPU a process where there are several."""
    import torch

    if torch.cuda.device_count() < 2:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": devices[slot % len(devices)]}
