"""Running out of memory: what was being done is done again, with half as many rows at a time."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable
from typing import TypeVar

import torch

from grpo_exp.errors import OutOfMemoryError

T = TypeVar("T")


class Rows:
    """How many rows are computed at a time: as many as `option` says, half as many for the rest of the run once memory ran out.

    Attributes:
        size: rows at a time.
        option: what sets it, for messages.
        about: the sizes of the run that are not known here, for the message at the end.
        tell: told of each halving, for people.
        halves: whether there is a second try at all; where other ranks wait within a pass there is none.
    """

    def __init__(self, size: int, option: str = "hardware.update_rows", about: str = "") -> None:
        self.size, self.option, self.about = size, option, about
        self.tell: Callable[[str], None] = lambda text: None
        self.halves = True

    def attempt(self, work: Callable[[int], T], doing: str, prompt: int, completion: int) -> T:
        """`work(rows)`, begun anew with half as many rows whenever memory runs out, with the same random numbers.

        `work` must leave nothing behind that a second call does not overwrite. Result and gradients are those of an undisturbed
        call up to rounding, but for dropout, whose numbers fall on other rows. `doing`, and the longest `prompt` and
        `completion` in tokens, are for messages.

        Raises:
            OutOfMemoryError: a single row is too much.
        """
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        while True:
            random = torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in devices]
            try:
                return work(self.size)
            except (MemoryError, RuntimeError) as error:
                if not ran_out(error):
                    raise
                if self.size == 1 or not self.halves:
                    raise OutOfMemoryError(self._too_much(doing, prompt, completion)) from error
            # Outside of `except`: until its end the error's traceback holds on to the tensors that took the memory.
            self._halve(doing)
            torch.set_rng_state(random[0])
            for device, state in zip(devices, random[1], strict=True):
                torch.cuda.set_rng_state(state, device)

    def restore(self, size: int) -> None:
        """Go on with as many rows as a checkpoint says, so that sums are rounded as they were; never with more than fit now."""
        if size > self.size:
            self.tell(
                f"not bit for bit the run that it was: {self.option} was {size} in effect, and {self.size} is what fits now"
            )
        self.size = min(size, self.size)

    def _halve(self, doing: str) -> None:
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        before, self.size = self.size, self.size // 2
        self.tell(
            f"out of memory in {doing} with {before} rows at a time: it goes on with {self.size}, which changes the result by "
            f"rounding alone. {self.option}={self.size} starts there"
        )

    def _too_much(self, doing: str, prompt: int, completion: int) -> str:
        rows = f"a single row at a time, so {self.option} cannot be lower"
        if self.size > 1:
            rows = f"{self.size} rows at a time, which weights that are shared out keep to; try {self.option}={self.size // 2}"
        return (
            f"out of memory in {doing} with {rows} (prompts of up to "
            f"{prompt} tokens, completions of up to {completion}{self.about and f'; {self.about}'}). Lower max_new_tokens, use "
            "model.gradient_checkpointing=true, or model.dtype=bfloat16"
        )


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out: Python's, that of torch's CPU allocator, or a GPU's."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def peak_gib(device: torch.device) -> float:
    """Most memory held so far in GiB: the device's on a GPU, otherwise the process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there and in KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
