"""The processes that run one experiment together: which of them this is, what its share is, what they tell each other.

Every rank holds the whole batch, and decides everything as the others do. Shared out is the computing: samples by prompts,
log-probs and gradients by groups of rows. What must be done once, such as scoring and writing, the first rank does for all.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from grpo_exp.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from grpo_exp.batch import Batch, Outputs

T = TypeVar("T")


class Halted(Exception):
    """Another rank stops, on the signal `signum`."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Ranks:
    """One process alone, for which everything here is nothing to do.

    Attributes:
        rank: this process's number, from 0.
        count: processes in all.
        local, here: the same among those of this machine.
        busy: within a call that all ranks take part in, which a signal must not break off.
    """

    rank, count, local, here = 0, 1, 0, 1
    busy = False

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and scores."""
        return self.rank == 0

    # ---- shares

    def share(self, count: int) -> range:
        """This rank's part of `count` things in a row; the parts differ by one at most, and one may be empty."""
        return range(count * self.rank // self.count, count * (self.rank + 1) // self.count)

    def own(self, batch: Batch) -> Batch:
        """The rows that this rank computes."""
        return batch

    def whole(self, batch: Batch, outputs: Outputs | None) -> Outputs:
        """What all ranks computed, of all rows of the batch; `outputs` are those of `own(batch)`, None where that is empty."""
        assert outputs is not None
        return outputs

    # ---- telling each other; all ranks must come to the same calls in the same order

    def exchange(self, value: T) -> list[T]:
        """The values of all ranks, in their order.

        Raises:
            RankError: a rank has ended or does not answer.
            Halted: another rank stops.
        """
        return [value]

    def from_first(self, work: Callable[[], T]) -> T:
        """What the first rank's `work` returns, or the error it raises; the others do not call theirs."""
        return work()

    def first_alone(self, work: Callable[[], T], other: T) -> T:
        """The same for a result that is of no use elsewhere: the other ranks get `other`."""
        made = other

        def do() -> None:
            nonlocal made
            made = work()

        self.from_first(do)
        return made

    def passes(self) -> contextlib.AbstractContextManager[None]:
        """Within, this rank computes with weights that are shared out, which others take part in.

        Raises: as `exchange`.
        """
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def in_step(self, parts: list[T], filler: T) -> Iterator[list[T]]:
        """Within, passes with weights that are shared out, which every rank comes to as often: its parts, and where others have
        more of them the filler.

        Raises: as `exchange`.
        """
        most = max(self.exchange(len(parts)))
        with self.passes():
            yield [*parts, *[filler] * (most - len(parts))]

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Add up the gradients of all ranks, in place. Where no rank has one there is none afterwards. Those of weights that
        are shared out have been added up as they came."""

    def check_same(self, what: str, numbers: Callable[[], list[float]]) -> None:
        """Raise RankError where the numbers are not the same on every rank."""

    def halt(self, signum: int) -> None:
        """Take part in the exchange that the others come to next, with the word that this rank stops."""

    def call_after(self, look: Callable[[], None]) -> None:
        """Have `look` called at the end of each exchange, for a signal that came within."""


ALONE = Ranks()


# ---- where this process stands


@dataclass(frozen=True)
class Place:
    """What a launcher says to each of its processes.

    Attributes:
        rank, count, local, here: as in `Ranks`.
        host, port: where the ranks find each other.
        served: the launcher listens there; otherwise the first rank does.
    """

    rank: int
    count: int
    local: int
    here: int
    host: str
    port: int
    served: bool = False

    def environment(self) -> dict[str, str]:
        """It as torchrun says it."""
        numbers = {"RANK": self.rank, "WORLD_SIZE": self.count, "LOCAL_RANK": self.local, "LOCAL_WORLD_SIZE": self.here}
        words = {"MASTER_ADDR": self.host, "MASTER_PORT": self.port, "TORCHELASTIC_USE_AGENT_STORE": self.served}
        return {name: str(value) for name, value in {**numbers, **words}.items()}


def given(environment: Mapping[str, str]) -> Place | None:
    """The place that torchrun, accelerate or Slurm's srun gave this process; None where it is the only one.

    Raises:
        ConfigError: something is missing or no number.
    """
    try:
        if int(environment.get("WORLD_SIZE") or 1) > 1:
            return _by_torch(environment)
        if int(environment.get("SLURM_STEP_NUM_TASKS") or 1) > 1:  # which, unlike SLURM_NTASKS, a batch script itself lacks
            return _by_slurm(environment)
    except KeyError as error:
        raise ConfigError(
            f"this is one of several processes, but the environment has no {error.args[0]}. Start them by torchrun, accelerate "
            "launch or srun, or use hardware.processes=N, which starts its own"
        ) from error
    except ValueError as error:
        raise ConfigError(f"the environment says which of several processes this is, and a number is wrong: {error}") from error
    return None


def _by_torch(environment: Mapping[str, str]) -> Place:
    rank, count = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    return Place(
        rank,
        count,
        int(environment.get("LOCAL_RANK", rank)),
        int(environment.get("LOCAL_WORLD_SIZE", count)),
        environment["MASTER_ADDR"],
        int(environment["MASTER_PORT"]),
        environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _by_slurm(environment: Mapping[str, str]) -> Place:
    """The first rank is on the first node of the list: `node[03-07,9]`, `a1,a2`."""
    nodes = environment["SLURM_STEP_NODELIST"]
    first = re.fullmatch(r"([^,\[]+)(?:\[(\w+)[^\]]*\])?.*", nodes)
    if first is None:
        raise ValueError(f"SLURM_STEP_NODELIST={nodes!r}")
    port = 20_000 + int(environment["SLURM_JOB_ID"]) % 20_000
    return Place(
        int(environment["SLURM_PROCID"]),
        int(environment["SLURM_STEP_NUM_TASKS"]),
        int(environment["SLURM_LOCALID"]),
        int(re.split(r"\D", environment["SLURM_STEP_TASKS_PER_NODE"])[0]),
        environment.get("MASTER_ADDR") or "".join(part or "" for part in first.groups()),
        int(environment.get("MASTER_PORT") or port),
    )


@contextlib.contextmanager
def join(place: Place | None, timeout: float, cuda: bool = False) -> Iterator[Ranks]:
    """This process with the others, if there are any; `timeout` in seconds is how long each may wait for another.

    Raises:
        RankError: they do not come together.
    """
    if place is None:
        yield ALONE
        return
    from grpo_exp.several import together

    with together(place, timeout, cuda) as ranks:
        yield ranks
