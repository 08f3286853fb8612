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
from pathlib import Path
from typing import IO

from optuna.trial import TrialState

from grpo_exp.errors import InputError, RunError, Stopped
from grpo_exp.sweep.loop import Sweep
from grpo_exp.sweep.study import ATTEMPTS, REASON, lock, own


def run(mine: Sweep, count: int) -> None:
    """Keep `count` processes at work until no trial is left.

    Raises:
        RunError: too many trials failed.
        Stopped: on a signal, which is passed on to all.
    """
    caught: list[int] = []
    before = {s: signal.signal(s, lambda number, _: caught.append(number)) for s in (signal.SIGINT, signal.SIGTERM)}
    pool = {slot: _start(mine.folder, slot, count) for slot in range(count)}
    told: set[int] = {t.number for t in own(mine.study.get_trials(deepcopy=False)) if t.state.is_finished()}
    try:
        while pool:
            time.sleep(0.2)
            _tell_news(mine, told)
            if caught:
                raise Stopped(caught[0], "the sweep is stopped; the same command goes on with it")
            for slot, process in list(pool.items()):
                if process.poll() is not None:
                    del pool[slot]
                    if _lost(mine, process):
                        pool[slot] = _start(mine.folder, slot, count)
            mine._check_failures()
    finally:
        _stop(list(pool.values()), caught[0] if caught else signal.SIGTERM)
        for number, handler in before.items():
            signal.signal(number, handler)
        _tell_news(mine, told)


def _start(folder: Path, slot: int, count: int) -> subprocess.Popen[bytes]:
    """The same command as one more process in this folder, on its share of the cores."""
    words = [*sys.argv[1:], "sweep.workers=1", "sweep.join=true", f"hydra.sweep.dir='{folder}'"]
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"} | _device(slot)
    with _log(folder, slot) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "grpo_exp", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # a Ctrl-C in the terminal reaches the sweep, which passes it on once
        )
    cores = sorted(os.sched_getaffinity(0))
    share = cores[slot % len(cores) :: count] if len(cores) > count else [cores[slot % len(cores)]]
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(process.pid, share)
    return process


def _device(slot: int) -> dict[str, str]:
    """One GPU a process where there are several."""
    import torch

    if torch.cuda.device_count() < 2:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": devices[slot % len(devices)]}


def _log(folder: Path, slot: int) -> IO[bytes]:
    return (folder / f"worker-{slot}.log").open("ab")


def _lost(mine: Sweep, process: subprocess.Popen[bytes]) -> bool:
    """Whether a process ended that should not have: killed, or with an error that is not the sweep's end.

    The trial it held is free again; the next claim goes on with it, unless it has taken down too many processes.
    """
    code = process.returncode
    if code == 0:
        return False
    if code == InputError.exit_code:
        raise InputError(_tail(mine.folder).removeprefix("grpo_exp: "))
    if code > 0:
        raise RunError(f"a worker ended with exit code {code}; the end of its log:\n{_tail(mine.folder)}")
    with lock(mine.folder / ".locks" / "claim", wait=True):
        for trial in own(mine.study.get_trials(deepcopy=False)):
            if trial.state != TrialState.RUNNING:
                continue
            with lock(mine._lock(trial.number), wait=False) as free:
                if not free:
                    continue
                attempts = int(trial.user_attrs.get(ATTEMPTS, 0)) + 1
                mine.study._storage.set_trial_user_attr(trial._trial_id, ATTEMPTS, attempts)
                if attempts > mine.options.retries:
                    reason = f"its process was ended by signal {-code} ({signal.Signals(-code).name})"
                    mine.study._storage.set_trial_user_attr(trial._trial_id, REASON, reason)
                    mine.study.tell(trial.number, state=TrialState.FAIL)
                    mine._write(trial.number, mine.space.active(trial.params), "fail", reason=reason)
    return True


def _tail(folder: Path) -> str:
    newest = max(folder.glob("worker-*.log"), key=lambda p: p.stat().st_mtime)
    return "\n".join(newest.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])


def _tell_news(mine: Sweep, told: set[int]) -> None:
    """A line for each trial that ended since."""
    for trial in own(mine.study.get_trials(deepcopy=False)):
        if trial.state.is_finished() and trial.number not in told:
            told.add(trial.number)
            words = " ".join(mine.space.words(mine.space.active(trial.params)))
            name = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}.get(trial.state, "fail")
            values = trial.values if trial.state == TrialState.COMPLETE else None
            mine.say(f"{words}: {mine._verdict(trial.number, name, values, trial.user_attrs.get(REASON))}")


def _stop(processes: list[subprocess.Popen[bytes]], number: int) -> None:
    """Ask all to stop, and wait for the checkpoints they write."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
    for process in processes:
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
