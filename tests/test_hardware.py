"""The machine: what it does with memory."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from command import finish, start

FAULTS = """
import resource, torch
from grpo_exp.hardware import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        x = torch.ones(2**24)  # 64 MiB
        y = x + 1
        del x, y
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
before = faults()
keep_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
@pytest.mark.slow
def test_freed_memory_is_held_for_the_next_step(tmp_path: Path) -> None:
    """The system hands each page out once, not in every step: page faults, which are counted and not timed."""
    answer = finish(start(tmp_path, code=FAULTS))
    before, after = map(int, answer.out.split())
    assert before > 100_000 and after < before / 20, answer
