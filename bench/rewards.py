"""How many samples a second rewards score, and whether a hundred thousand leave anything behind.

    python bench/rewards.py [--seconds 5] [--rows 100000] [WHAT ...]

WHAT is of: math algebra code pool; all by default. Everything runs on the cores that this process may use. `math` scores a
step's completions, 64 prompts with 16 samples each, of which some share their answer, as samples of one prompt do; new prompts
each time. `algebra` compares expressions that no two are the same. `code` runs short programs on three tests each. `pool` has
--rows trivial rows go through the workers, 1 in 2,000 of which hangs, crashes or raises, and looks at memory, files and
processes afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import itertools
import os
import platform
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_exp.answers import symbolic
from grpo_exp.batch import Completions, Example
from grpo_exp.pool import Lost, Pool, shared
from grpo_exp.rewards.base import Reward
from grpo_exp.rewards.code import CodeReward
from grpo_exp.rewards.math import MathReward
from grpo_exp.sandbox import bubblewrap

FUNCTIONS = [("grpo_exp.answers.algebra:equal", symbolic.MEMORY), ("grpo_exp.sandbox.trial:judged",)]
PROMPTS, SAMPLES = 64, 16
FORMS = ["<answer>{}</answer>", "so \\boxed{{{}}}.", "9 + 9 = 18\n#### {}", "The answer is {}."]


def math_reward() -> MathReward:
    forms = ["tag", "boxed", "hash", "answer_is", "equation", "whole"]
    return MathReward(
        kind="math", weight=1.0, role="outcome", extract=forms, right=1.0, wrong=0.0, missing=0.0, tolerance=0.0
    )  # fmt: skip


def answers(rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Reference answers with what may be answered: numbers, and for one prompt in ten an expression that needs algebra."""
    while True:
        a, b = rng.randrange(2, 10**6), rng.randrange(2, 99)
        for _ in range(3):
            yield str(a), [str(a), f"{a:,}", f"{a}.0", str(a + 1), f"${a}"]
            yield f"{a}/{b}", [f"\\frac{{{a}}}{{{b}}}", f"{a}/{b}", f"{a / b}"]
            yield f"{a} cm", [f"{a} cm", f"{a}", f"{a} m"]
        yield f"{b}\\sqrt{{{a}}}", [f"{b}\\sqrt{{{a}}}", f"\\sqrt{{{a}}} \\cdot {b}", f"\\sqrt{{{a * b * b}}}", f"{b}"]


def steps(seed: int) -> Iterator[Completions]:
    rng = random.Random(seed)
    items = answers(rng)
    for number in itertools.count():
        examples, texts = [], []
        for prompt in range(PROMPTS):
            reference, found = next(items)
            examples += [Example(f"{number}-{prompt}", "?", reference)] * SAMPLES
            texts += [rng.choice(FORMS).format(rng.choice(found)) for _ in range(SAMPLES)]
        rows = len(texts)
        yield Completions(examples, ["?"] * rows, texts, [[0]] * rows, [True] * rows)


PROGRAMS = {
    "3 asserts": ("def f(n):\n    return n * {0}\n", lambda k: [f"assert f({i}) == {i * k}" for i in (2, 3, 5)]),
    "3 inputs": (
        "print(int(input()) * {0})\n",
        lambda k: {"inputs": ["2", "3", "5"], "outputs": [str(2 * k), str(3 * k), str(5 * k)]},
    ),
}


def programs(kind: str) -> Iterator[Completions]:
    """Steps of 32 programs, all different and right."""
    source, tests = PROGRAMS[kind]
    for first in itertools.count(step=32):
        examples = [Example(str(k), "?", columns={"tests": tests(k)}) for k in range(first, first + 32)]
        texts = [f"```python\n{source.format(k)}```" for k in range(first, first + 32)]
        yield Completions(examples, ["?"] * 32, texts, [[0]] * 32, [True] * 32)


def code_reward(sandbox: str) -> CodeReward:
    values = {"kind": "code", "weight": 1.0, "role": "outcome", "tests": "tests", "entry_point": None, "setup": None}
    values |= {"partial": "all", "right": 1.0, "wrong": 0.0, "missing": 0.0, "seconds": 10.0, "row_seconds": 30.0}
    values |= {"budget": 600.0, "memory": 512, "disk": 16, "processes": 8, "sandbox": sandbox}
    return CodeReward(**values)  # type: ignore[arg-type]


def cpu_seconds() -> float:
    """CPU time that this process and its workers have used, with what has ended below them."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,sid="], capture_output=True, text=True, check=True).stdout
    workers = {pid for function in FUNCTIONS for pid in shared(*function).pids()}
    pids = [pid for pid, session in (map(int, line.split()) for line in listed.splitlines()) if session in workers]
    ticks = 0
    for pid in [os.getpid(), *pids]:
        with contextlib.suppress(FileNotFoundError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def rate(part: Reward, batches: Iterator[Completions], seconds: float) -> str:
    """Samples a second, and for a second of CPU time, after a first batch that starts the workers."""
    part.score(next(batches))
    rows, used, start = 0, cpu_seconds(), time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        batch = next(batches)
        part.score(batch)
        rows += len(batch)
    return f"{rows / spent:8,.0f} a second, {rows / (cpu_seconds() - used):8,.0f} a second of CPU"


def bench_math(seconds: float) -> Iterator[tuple[str, str]]:
    yield "math, ordinary answers", rate(math_reward(), steps(0), seconds)
    batch = next(steps(1))
    yield "math, the same step again", rate(math_reward(), itertools.repeat(batch), seconds)


def bench_algebra(seconds: float) -> Iterator[tuple[str, str]]:
    def pairs() -> Iterator[list[tuple[str, str]]]:
        for first in itertools.count(step=400):
            yield [(f"\\sqrt{{{4 * k}}}", f"2\\sqrt{{{k}}}") for k in range(first + 2, first + 402)]

    batches, rows = pairs(), 0
    symbolic.decide([lambda: symbolic.equal("x", "y")])
    used, start = cpu_seconds(), time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        batch = next(batches)
        assert all(symbolic.decide([lambda p=p: symbolic.equal(*p) for p in batch]))
        rows += len(batch)
    yield "algebra, all different", f"{rows / spent:8,.0f} a second, {rows / (cpu_seconds() - used):8,.0f} a second of CPU"


def bench_code(seconds: float) -> Iterator[tuple[str, str]]:
    for sandbox in ("bubblewrap", "none"):
        if sandbox == "bubblewrap" and (why := bubblewrap.refusal()):
            yield "code, bubblewrap", why
            continue
        for kind in PROGRAMS:
            yield f"code, {sandbox}, {kind}", rate(code_reward(sandbox), programs(kind), seconds)


def bench_pool(rows: int) -> Iterator[tuple[str, str]]:
    pool = Pool("builtins:eval")
    jobs = ["len('x' * 1000)"] * 1997 + ["__import__('time').sleep(99)", "1 / 0", "__import__('os')._exit(1)"]

    def state() -> str:
        listed = subprocess.run(["ps", "-e", "-o", "pgid=,rss="], capture_output=True, text=True, check=True).stdout
        of_workers = [int(line.split()[1]) for line in listed.splitlines() if int(line.split()[0]) in pool.pids()]
        own = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) >> 8
        files = len(os.listdir("/proc/self/fd"))
        return f"{own} MiB, {len(of_workers)} processes with {sum(of_workers) >> 10} MiB, {files} files"

    pool.map(jobs, seconds=0.2)
    before, start, done = state(), time.perf_counter(), 0
    while done < rows:
        found = pool.map(jobs, seconds=0.2)
        assert [isinstance(r, Lost) for r in found] == [False] * 1997 + [True] * 3
        done += len(jobs)
    spent = time.perf_counter() - start
    pool.map(["1"] * 50, seconds=5)
    yield "pool, trivial rows", f"{done / spent:8,.0f} a second, over {done:,} rows"
    yield "pool, after 2,000 rows", before
    yield f"pool, {done:,} rows later", state()


def machine() -> str:
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    name = next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), platform.machine())
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("math-verify", "sympy", "torch"))
    bwrap = (
        subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout.strip()
        if bubblewrap._bwrap()
        else "no bwrap"
    )
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    today = datetime.date.today().isoformat()
    return f"{today}, {cores} cores of {name}, load {load:.1f} before; Python {platform.python_version()}, {versions}, {bwrap}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="of: math algebra code pool")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each rate")
    parser.add_argument("--rows", type=int, default=100_000, help="of pool")
    given = parser.parse_args()
    benches: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
        "math": lambda: bench_math(given.seconds),
        "algebra": lambda: bench_algebra(given.seconds),
        "code": lambda: bench_code(given.seconds),
        "pool": lambda: bench_pool(given.rows),
    }
    print(machine())
    for what in given.what or benches:
        for label, found in benches[what]():
            print(f"{label:34s} {found}", flush=True)


if __name__ == "__main__":
    main()
