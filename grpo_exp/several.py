"""Several processes that run one experiment, joined by torch.distributed: gloo on CPUs, NCCL besides for gradients on GPUs."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from grpo_exp.batch import Batch, Outputs
from grpo_exp.errors import GrpoError, RankError
from grpo_exp.memory import ran_out
from grpo_exp.ranks import Halted, Place, Ranks
from grpo_exp.sharded import is_part

T = TypeVar("T")
BUCKET = 2**24
"""Numbers that are summed over ranks at a time, so that the copy of the gradients they need stays small."""
ASKED = timedelta(seconds=5)
"""How long the store is asked who is missing, once something is wrong."""
_joined = 0  # how often this process has joined others: names of one run must not be taken for those of the next


@contextlib.contextmanager
def together(place: Place, timeout: float, cuda: bool) -> Iterator[Ranks]:
    """As `ranks.join`, where there are others."""
    global _joined
    _joined += 1
    limit = timedelta(seconds=timeout)
    try:
        listens = place.rank == 0 and not place.served
        # torch_elastic may start the ranks anew after a failure, with the store as it was
        name = f"grpo_exp/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{_joined}"
        server = TCPStore(place.host, place.port, place.count, listens, limit, wait_for_workers=False)
        store = PrefixStore(name, server)
        backend = "cpu:gloo,cuda:nccl" if cuda and torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.count, timeout=limit)
        ranks = Several(place, timeout, store)
    except RuntimeError as error:
        raise RankError(
            f"rank {place.rank}: the {place.count} processes did not come together at {place.host}:{place.port} within "
            f"{timeout:.0f} s (hardware.rank_timeout): {str(error).splitlines()[0]}"
        ) from error
    try:
        yield ranks
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


class Several(Ranks):
    """One of several processes."""

    def __init__(self, place: Place, timeout: float, store: Any) -> None:
        self.rank, self.count, self.local, self.here = place.rank, place.count, place.local, place.here
        self.timeout, self.store, self.turn = timeout, store, 0
        self._look: Callable[[], None] = lambda: None
        self.names = [f"rank {rank}" for rank in range(self.count)]
        self.names = self.exchange(f"rank {self.rank} (process {os.getpid()} on {socket.gethostname()})")

    def own(self, batch: Batch) -> Batch:
        return batch.rows(shares(batch, self.count)[self.rank])

    def whole(self, batch: Batch, outputs: Outputs | None) -> Outputs:
        found = self.exchange({} if outputs is None else {k: x.cpu() for k, x in outputs._asdict().items() if x is not None})
        like = torch.zeros(batch.tokens.shape, device=batch.tokens.device)
        fields: dict[str, Tensor] = {}
        for index, part in zip(shares(batch, self.count), found, strict=True):
            for name, x in part.items():
                fields.setdefault(name, torch.zeros_like(like))[index, : x.shape[1]] = x.to(like.device)
        return Outputs(**fields)

    def exchange(self, value: T) -> list[T]:
        told = self._heard(self._gather(("value", value)))
        self._look()
        return told

    def from_first(self, work: Callable[[], T]) -> T:
        found: tuple[T | None, GrpoError | None] = (None, None)
        mine: Exception | None = None
        if self.first:
            try:
                found = work(), None
            except Exception as error:
                told = f"{self.names[0]}: {type(error).__name__}: {error}"
                mine, found = error, (None, error if isinstance(error, GrpoError) else RankError(told))
        result, error_of_first = self.exchange(found)[0]
        if error_of_first is not None:
            raise mine or error_of_first
        return result  # type: ignore[return-value]

    @contextlib.contextmanager
    def passes(self) -> Iterator[None]:
        began = time.monotonic()
        self.busy = True  # all along: who is broken off comes to an exchange, where others would be within a pass
        try:
            self._heard(self._gather(("value", None)))
            self._come()
            yield
        except RuntimeError as error:  # among which an error of this rank's own may be
            if ran_out(error) or not _of_others(error):
                raise
            raise RankError(self._missing(time.monotonic() - began)) from error
        finally:
            self.busy = False
        self._look()

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        parameters = [p for p in parameters if not is_part(p)]
        there = self.exchange([p.grad is not None for p in parameters])
        summed = [p for p, *some in zip(parameters, *there, strict=True) if any(some)]
        for bucket in _buckets(summed):
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            with self._together():
                dist.all_reduce(flat)
            for parameter, grad, part in zip(bucket, grads, flat.split([g.numel() for g in grads]), strict=True):
                parameter.grad = grad.copy_(part.view_as(grad))

    def check_same(self, what: str, numbers: Callable[[], list[float]]) -> None:
        found = self.exchange([repr(number) for number in numbers()])  # NaN is not equal to itself, but is written alike
        if different := [name for name, other in zip(self.names, found, strict=True) if other != found[0]]:
            raise RankError(
                f"{what} of {', '.join(different)} are not those of {self.names[0]}, so that the ranks no longer run the same "
                "experiment. Their processors or libraries may differ; use machines of one kind"
            )

    def halt(self, signum: int) -> None:
        self._gather(("halt", signum))

    def call_after(self, look: Callable[[], None]) -> None:
        self._look = look

    def _gather(self, message: tuple[str, Any]) -> list[tuple[str, Any]]:
        told: list[Any] = [None] * self.count
        with self._together():
            dist.all_gather_object(told, message)
        return told

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Within, all ranks do the same call of torch.distributed."""
        began, before = time.monotonic(), self.busy
        try:
            self._come()
            yield
        except RuntimeError as error:  # DistError, DistStoreError and DistNetworkError are RuntimeErrors
            raise RankError(self._missing(time.monotonic() - began)) from error
        finally:
            self.busy = before

    def _heard(self, told: list[tuple[str, Any]]) -> list[Any]:
        """What was told, or Halted where a rank stops."""
        if halted := [payload for kind, payload in told if kind == "halt"]:
            raise Halted(halted[0])
        return [payload for _, payload in told]

    def _come(self) -> None:
        """Note that this rank has come to what all ranks do."""
        self.busy = True
        self.turn += 1
        self.store.set(f"turn/{self.rank}", str(self.turn))

    def _missing(self, waited: float) -> str:
        """Who has not come to the call that failed, as far as the store knows."""
        turns: list[int | None] = []
        with contextlib.suppress(RuntimeError):
            self.store.set_timeout(ASKED)
            turns = [int(self.store.get(f"turn/{rank}")) for rank in range(self.count)]
        behind = [name for name, turn in zip(self.names, turns, strict=False) if turn is not None and turn < self.turn]
        who = " and ".join(behind) or ("another rank" if turns else f"{self.names[0]}, or what launched it,")
        if waited >= 0.95 * self.timeout:
            return f"{who} has not answered for {waited:.0f} s (hardware.rank_timeout)"
        return f"{who} has ended while {self.names[self.rank].partition(' (')[0]} waited for it"


def _of_others(error: RuntimeError) -> bool:
    """Whether an error within a pass came from what ranks tell each other."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "NCCL", "Connection"))


def shares(batch: Batch, count: int) -> list[Tensor]:
    """The rows of each of `count` ranks: whole groups, since their prompt is computed once, of about as many tokens each."""
    prompts = batch.prompt_mask.sum(-1).double()  # [B]
    cost = prompts.index_add(0, batch.group, batch.mask.sum(-1).double())  # [B]
    middle = cost.cumsum(0) - cost / 2
    rank = (middle * count / cost.sum().clamp(min=1)).long().clamp(max=count - 1)  # [B]
    return [(rank[batch.group] == number).nonzero().squeeze(-1) for number in range(count)]


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters of one dtype and device, of about BUCKET numbers together."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        alike = not bucket or (bucket[0].dtype, bucket[0].device) == (parameter.dtype, parameter.device)
        if bucket and (not alike or size + parameter.numel() > BUCKET):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket
