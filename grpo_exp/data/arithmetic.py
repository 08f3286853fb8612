"""Sums and differences generated from a seed: the embedded task, with a ladder of difficulty and worked examples.

Three sets share no problem, swapped operands included, by construction: a hash of the operation and the *sorted* operands
puts each problem into one of three pools, whatever the seed.

    warm start   what the embedded model was trained on before reinforcement learning, with worked targets
    train        what reinforcement learning samples from
    heldout      what evaluation asks

A worked target comes in two styles, as in human homework: careful, column by column (`7+5=12 4+8+1=13 <answer>132</answer>`),
and careless, the answer at once and often wrong. A model trained on the mixture knows both; reinforcement learning has to find
out which of them pays.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from grpo_exp.batch import Example
from grpo_exp.data.base import Dataset, DataSource
from grpo_exp.errors import ConfigError
from grpo_exp.options import option

LEVELS = {"easy": (1, 2), "medium": (2, 2), "hard": (3, 3)}  # digits of the smaller and of the larger operand
POOLS = {"heldout": range(20), "train": range(20, 50), "warm_start": range(50, 100)}  # per cent of all problems


@dataclass
class Arithmetic(DataSource):
    """Addition and subtraction of whole numbers of one to three digits; answers are never negative."""

    pool: str = option("which pool the training items come from", choices=("train", "warm_start"))
    train: int = option("training problems", low=1)
    heldout: int = option("held-out problems", low=1)
    levels: list[str] = option("rungs of the ladder, in equal shares: easy, medium, hard")
    careful: float = option("share of worked targets that are careful; the others are careless", low=0, high=1)
    careless_right: float = option("share of the careless targets whose answer is right", low=0, high=1)
    seed: int = option("decides the problems; runs that are compared keep it fixed while their own seed varies", low=0)

    def __post_init__(self) -> None:
        unknown = [level for level in self.levels if level not in LEVELS]
        if unknown or not self.levels:
            raise ConfigError(f"data.levels={self.levels}: expected some of {', '.join(LEVELS)}")

    def load(self) -> Dataset:
        """Generate both sets.

        Raises:
            ConfigError: more problems asked for than a level has.
        """
        train = list(self._problems(self.pool, self.train))
        heldout = list(self._problems("heldout", self.heldout))
        digest = hashlib.sha256(json.dumps([[e.prompt, e.target] for e in train + heldout]).encode()).hexdigest()
        source = f"generated sums and differences, {', '.join(self.levels)}; data.seed={self.seed}"
        return Dataset(train=train, heldout=heldout, sha256=digest, source=source)

    def _problems(self, pool: str, count: int) -> Iterator[Example]:
        rng = random.Random(f"arithmetic-{pool}-{self.seed}")
        seen: set[str] = set()
        tries = 0
        for i in range(count):
            level = self.levels[i % len(self.levels)]
            while True:
                tries += 1
                if tries > 1000 * count:
                    raise ConfigError(
                        f"data: {count} {pool} problems asked for, but level '{level}' has too few different ones"
                    )
                a, b, operation = _draw(level, rng)
                key = _key(a, b, operation)
                if _pool(key) == pool and (key not in seen or pool == "warm_start"):
                    break
            seen.add(key)
            answer = a + b if operation == "+" else a - b
            target = self._target(a, b, operation, rng)
            yield Example(f"{pool}-{i}", f"{a}{operation}{b}=?", str(answer), level, target, {"level": level})

    def _target(self, a: int, b: int, operation: str, rng: random.Random) -> str:
        answer = a + b if operation == "+" else a - b
        if rng.random() < self.careful:
            return f"{_working(a, b, operation)} <answer>{answer}</answer>"
        if rng.random() >= self.careless_right:
            slips = [s for s in (-20, -11, -10, -9, -2, -1, 1, 2, 9, 10, 11, 20) if answer + s >= 0]
            answer += rng.choice(slips)
        return f"<answer>{answer}</answer>"


def _draw(level: str, rng: random.Random) -> tuple[int, int, str]:
    few, many = LEVELS[level]
    a, b = (rng.randrange(0 if digits == 1 else 10 ** (digits - 1), 10**digits) for digits in (few, rng.choice((few, many))))
    operation = rng.choice("+-")
    if (operation == "-" and a < b) or (rng.random() < 0.5 and operation == "+"):
        a, b = b, a
    return a, b, operation


def _key(a: int, b: int, operation: str) -> str:
    return f"{min(a, b)}{operation}{max(a, b)}"


def _pool(key: str) -> str:
    bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % 100
    return next(name for name, buckets in POOLS.items() if bucket in buckets)


def _working(a: int, b: int, operation: str) -> str:
    """Column by column from the right, the carry or borrow named: `7+5=12 4+8+1=13`, `15-7=8 8-4-1=3`."""
    steps: list[str] = []
    carry = 0
    while a or b or not steps:
        x, y, a, b = a % 10, b % 10, a // 10, b // 10
        tail = f"{operation}1" if carry else ""
        if operation == "+":
            result = x + y + carry
            steps.append(f"{x}+{y}{tail}={result}")
            carry = result // 10
        else:
            borrow = int(x - y - carry < 0)
            top = x + 10 * borrow
            steps.append(f"{top}-{y}{tail}={top - y - carry}")
            carry = borrow
    return " ".join(steps)
