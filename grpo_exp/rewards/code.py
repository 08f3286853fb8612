"""Right or wrong by running it: the Python program of a completion on the item's tests, in a sandbox.

The program is the last block between ``` fences, or the whole completion where there is none. What a test may be is told in
`grpo_exp/sandbox/cases.py`, why a program cannot fake its success in `grpo_exp/sandbox/__init__.py`. A row without tests gets
None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_exp import pool
from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError, DataError, nearest
from grpo_exp.options import option
from grpo_exp.rewards.base import Reward, told
from grpo_exp.sandbox import bubblewrap, cases, limits
from grpo_exp.verifier import shown

LONGEST_PROGRAM = 1 << 16  # characters
SPARE = 5.0  # seconds of the pool's own deadline above the row's, for starting and ending processes
TOLD = 3  # tests that fail of which `explain` says why
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*$", re.MULTILINE)


@dataclass
class CodeReward(Reward):
    """`right`, `wrong` or what lies between, by the tests that the program passes."""

    reads: ClassVar[str] = "answers"
    lenient: ClassVar[bool] = True  # a program may define more than is asked for

    tests: str = option("field of the data set with the tests")
    entry_point: str | None = option("field with the name of the function under test, which check(candidate) needs; null: none")
    setup: str | None = option("field with code that runs before the tests, beside them and not with the program; null: none")
    partial: str = option("all: right where every test passes; share: by the share of their weight", choices=("all", "share"))
    right: float = option("value when all tests pass")
    wrong: float = option("value when none does")
    missing: float = option("value when there is no program")
    seconds: float = option("seconds by the clock that the program may take to load, and for each test", above=0)
    row_seconds: float = option("seconds for all tests of a sample", above=0)
    budget: float = option(
        "seconds for all samples of a call; when they are used up, each of the others has `seconds`", above=0
    )
    memory: int = option("MiB of memory of a process", low=64)
    disk: int = option("MiB of files in /tmp, which count as memory", low=1)
    processes: int = option("processes and threads of a program at a time", low=1, high=1000)
    sandbox: str = option(
        "bubblewrap: refuse to run without; none: programs run with all rights of this user", choices=("bubblewrap", "none")
    )

    def __post_init__(self) -> None:
        if self.right <= max(self.wrong, self.missing):
            raise ConfigError(
                f"reward.parts.{self.kind}.right={self.right:g} must be greater than wrong={self.wrong:g} and "
                f"missing={self.missing:g}, otherwise a right program earns nothing"
            )
        if self.sandbox == "bubblewrap" and (why := bubblewrap.refusal()):
            raise ConfigError(
                f"reward.sandbox=bubblewrap: programs that a policy wrote cannot be shut in here: {why}. Or run them with all "
                "rights of this user, at your own risk, with reward.sandbox=none, which the run card records"
            )

    def score(self, completions: Completions) -> list[float | None]:
        """One value a sample; None where the data item has no tests.

        Raises:
            DataError: an item has tests of an unknown form.
        """
        rows = zip(completions.texts, completions.examples, strict=True)
        values: list[float | None] = [None] * len(completions)
        jobs: dict[tuple[str, str], tuple[dict[str, Any], list[int]]] = {}  # equal programs of one item are run once
        for row, (text, example) in enumerate(rows):
            tests = self._tests(example)
            if not tests:
                continue
            source = program(text)
            values[row] = self.missing if source is None else self.wrong
            if source is not None and len(source) <= LONGEST_PROGRAM:
                jobs.setdefault((source, example.id), (self._job(source, tests, example), []))[1].append(row)
        verdicts = self._verdicts([job for job, _ in jobs.values()])
        for (job, same), verdict in zip(jobs.values(), verdicts, strict=True):
            value = self._value(job["tests"], verdict)
            for row in same:
                values[row] = value
        return values

    def check_data(self, examples: Sequence[Example]) -> None:
        """Some items have tests, and those that do have them in a form that is known."""
        if any([bool(self._tests(example)) for example in examples]):  # a list: all of them are read
            return
        there = sorted({column for example in examples[:100] for column in example.columns})
        raise DataError(
            f"reward.parts.{self.kind}.tests={self.tests!r}: the tests stand in that field of the data, and no item has any."
            f"{nearest(self.tests, there)} There are: {', '.join(there) or 'none'}"
        )

    def explain(self, text: str, example: Example) -> str:
        """Such as `wrong, 0: passes 1 of 3 tests; test 2: AssertionError; read 'def f(): ...'`. Every test is run."""
        tests, source = self._tests(example), program(text)
        if not tests:
            return "does not apply: the item has no tests"
        if source is None:
            return f"missing, {told(self.missing)}: no program, or a fence that is not closed"
        if len(source) > LONGEST_PROGRAM:
            return f"wrong, {told(self.wrong)}: a program of more than {LONGEST_PROGRAM:,} characters is not run"
        [verdict] = self._verdicts([self._job(source, tests, example) | {"stop": False}])
        whys = [verdict.why] * len(tests) if isinstance(verdict, pool.Lost) else verdict["whys"]
        value = self._value(tests, verdict)
        grade = "right" if not any(whys) else "wrong" if value == self.wrong else "partly right"
        failed = [f"test {i}: {why}" for i, why in enumerate(whys, 1) if why]
        more = [f"{len(failed) - TOLD} more fail"] if len(failed) > TOLD else []
        passed = f"passes {len(tests) - len(failed)} of {len(tests)} tests"
        return f"{grade}, {told(value)}: {'; '.join([passed, *failed[:TOLD], *more])}; read {shown(source)}"

    def answer(self, text: str) -> str | None:
        """The program itself: two that differ are two answers."""
        return program(text)

    def written(self, answer: str) -> str:
        return answer if _FENCE.search(answer) else f"```python\n{answer}\n```"

    def about(self) -> dict[str, Any]:
        return {"sandbox": self.sandbox}

    def _tests(self, example: Example) -> list[cases.Case]:
        entry = example.columns.get(self.entry_point) if self.entry_point else None
        try:
            return cases.read(example.columns.get(self.tests), entry)
        except ValueError as error:
            raise DataError(
                f"item {example.id}: field '{self.tests}' (reward.parts.{self.kind}.tests): the tests {error}"
            ) from None

    def _job(self, source: str, tests: list[cases.Case], example: Example) -> dict[str, Any]:
        setup = example.columns.get(self.setup) if self.setup else None
        disk = self.disk << 20
        return {
            "program": source,
            "setup": "\n".join(setup) if isinstance(setup, list) else setup or "",
            "tests": tests,
            "stop": self.partial == "all",
            "seconds": self.seconds,
            "row_seconds": self.row_seconds,
            "limits": limits.of(self.row_seconds, self.memory << 20, disk, self.processes),
            "prefix": bubblewrap.command(disk) if self.sandbox == "bubblewrap" else None,
        }

    def _verdicts(self, jobs: list[dict[str, Any]]) -> list[Any]:
        workers = pool.shared("grpo_exp.sandbox.trial:judged")
        verdicts = workers.map(jobs, self.row_seconds + SPARE, self.budget, self.seconds) if jobs else []
        pool.count_stopped(sum(v.late if isinstance(v, pool.Lost) else v["late"] for v in verdicts))
        return verdicts

    def _value(self, tests: list[cases.Case], verdict: Any) -> float:
        passed = [False] * len(tests) if isinstance(verdict, pool.Lost) else [not why for why in verdict["whys"]]
        if all(passed):
            return self.right
        weights = [test["weight"] for test in tests]
        share = sum(w for w, p in zip(weights, passed, strict=True) if p) / (sum(weights) or 1.0)
        return self.wrong + share * (self.right - self.wrong) if self.partial == "share" else self.wrong


def program(text: str) -> str | None:
    """The program in a completion; None where there is none, or its fence is not closed."""
    fences = list(_FENCE.finditer(text))
    if not fences:
        return text if text.strip() else None
    blocks = list(zip(fences[::2], fences[1::2], strict=False))
    if len(fences) % 2 or not blocks:
        return None
    opened, closed = blocks[-1]
    return text[opened.end() : closed.start()].strip("\n") or None
