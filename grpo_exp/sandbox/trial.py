"""A program tried on its tests: what a worker of the pool does for one row. It has the last word on time and output."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from grpo_exp.sandbox import bubblewrap, system_calls

Job = dict[str, Any]
"""`program`, `setup`, `tests` (of `cases`), `stop` at the first that fails, `seconds` for a test, `row_seconds` for all,
`limits`, and `prefix`, the sandbox's command line, or None for no sandbox."""

LONGEST_OUTPUT = 1 << 20  # bytes
_LATE = "the program took too long"
_FIRST_UID, _UIDS = 65000, 500  # reserved by Debian's policy, and nobody's


class Read(NamedTuple):
    """What came out of a pipe, and why reading ended early: "", "took too long" or "wrote too much"."""

    data: bytes
    why: str


def judged(job: Job) -> dict[str, Any]:
    """`whys`: why each test fails, "" for one that passes; and `late`: whether one was stopped for its time."""
    before = _children()
    end = time.monotonic() + job["row_seconds"]
    folder = None if job["prefix"] else tempfile.mkdtemp(prefix="grpo_exp_")
    try:
        whys = _whole(job | {"folder": folder}, end)
    finally:
        _bury(before)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    return {"whys": whys, "late": any(why.startswith(_LATE) for why in whys)}


def _whole(job: Job, end: float) -> list[str]:
    """Why each test fails, "" for one that passes; those that were not reached failed."""
    whys = ["not reached"] * len(job["tests"])
    asked = [i for i, test in enumerate(job["tests"]) if "input" not in test]
    if asked:
        found = _asked(job, [job["tests"][i] for i in asked], end)
        whys = [dict(zip(asked, found, strict=False)).get(i, why) for i, why in enumerate(whys)]
    for i, test in enumerate(job["tests"]):
        if job["stop"] and any(why not in ("", "not reached") for why in whys):
            break
        if "input" in test:
            whys[i] = _written(job, test, end)
    return whys


def _written(job: Job, test: dict[str, Any], end: float) -> str:
    """Why the output for an input is wrong, "" where it is right: the same words in the same lines."""
    end = min(end, time.monotonic() + job["seconds"])
    with _file(test["input"].encode()) as given:
        process = started(job, "candidate", {"program": job["program"], "calls": None}, number=0, stdin=given)
    try:
        got = _read(process, end)
        if got.why:
            return f"the program {got.why}"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
    finally:
        _kill(process)
    if _lines(got.data.decode(errors="replace")) != _lines(test["output"]):
        return f"printed {got.data[:80]!r}, expected {test['output'][:80]!r}"
    return "" if process.returncode == 0 else f"the program ended with status {process.returncode}"


def _lines(text: str) -> list[list[str]]:
    return [words for line in text.splitlines() if (words := line.split())]


def _asked(job: Job, tests: list[dict[str, Any]], end: float) -> list[str]:
    """What the judge says of the tests, as far as it came."""
    (calls_out, calls_in), (replies_out, replies_in) = os.pipe(), os.pipe()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        program = {"program": job["program"], "calls": calls_out, "replies": replies_in}
        asking = {"setup": job["setup"], "tests": tests, "seconds": job["seconds"], "stop": job["stop"]}
        asking |= {"calls": calls_in, "replies": replies_out}
        try:
            processes.append(started(job, "candidate", program, 0, fds=(calls_out, replies_in), stdout=subprocess.DEVNULL))
            processes.append(started(job, "judge", asking, 1, fds=(calls_in, replies_out)))
        finally:
            for pipe in (calls_out, calls_in, replies_out, replies_in):
                os.close(pipe)
        said = _read(processes[1], end)
    finally:
        for process in processes:
            _kill(process)
    whys = [str(json.loads(line)) for line in said.data.decode().splitlines()]
    if said.why and len(whys) < len(tests):
        whys.append(f"the program {said.why}")
    return whys


# ---- processes


def started(
    job: Job,
    main: str,
    spec: dict[str, Any],
    number: int,
    fds: tuple[int, ...] = (),
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """A process that runs `main` of `candidate` or `judge`, in the sandbox if there is one; `number` tells these two apart."""
    prefix = job["prefix"]
    uid = _FIRST_UID + (2 * os.getpid() + number) % _UIDS if prefix and os.geteuid() == 0 else None
    told = json.dumps({**spec, "limits": job["limits"], "uid": uid, "tied": not prefix})
    with _file(told.encode()) as told_at, _file(system_calls.program() or b"") as filter_at:
        if prefix:
            words = [*prefix, "--seccomp", str(filter_at), "--", *bubblewrap.python(main), str(told_at)]
        else:
            words = [*bubblewrap.python(main, str(bubblewrap.HERE.parents[1])), str(told_at)]
        return subprocess.Popen(
            words,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            bufsize=0,
            env={},
            cwd=job.get("folder") or "/",
            pass_fds=(told_at, filter_at, *fds),
            start_new_session=True,
        )


@contextlib.contextmanager
def _file(data: bytes) -> Any:
    """A descriptor of a file in memory that holds the data, at its beginning."""
    file = os.memfd_create("grpo_exp", os.MFD_CLOEXEC)
    try:
        while data:
            data = data[os.write(file, data) :]
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


def _read(process: subprocess.Popen[bytes], end: float) -> Read:
    """The standard output to its end, as long as there is time and it is not too much."""
    assert process.stdout is not None
    data = bytearray()
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            return Read(bytes(data), "took too long")
        more = os.read(process.stdout.fileno(), 1 << 16)
        if not more:
            return Read(bytes(data), "")
        data += more
        if len(data) > LONGEST_OUTPUT:
            return Read(bytes(data), "wrote too much")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End it with all it started: its namespace, which goes with bubblewrap, or without a sandbox its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _children() -> set[int]:
    """The processes whose parent this one is; a worker is also that of orphans below it (`worker`)."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return set(map(int, listed.read_text().split())) if listed.exists() else set()


def _bury(before: set[int]) -> None:
    """Wait for the end of what came since: the first process of a sandbox; without one also daemons, which are killed."""
    while new := _children() - before:
        for pid in new:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
