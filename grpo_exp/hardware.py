"""Where a run computes: device, numbers, threads, and how many rows at a time."""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from functools import cache
from typing import Any

from grpo_exp.errors import ConfigError
from grpo_exp.options import option
from grpo_exp.ranks import ALONE, Ranks

GLIBC = {"M_MMAP_THRESHOLD": (-3, 2**30), "M_TRIM_THRESHOLD": (-1, 2**31 - 1), "M_TOP_PAD": (-2, 2**26)}
"""mallopt(3): blocks below a GiB come from the heap, which is not cut down and grows by 64 MiB at a time."""


@dataclass
class HardwareOptions:
    """The machine."""

    name: str = option("name of this profile")
    device: str = option("auto takes a GPU where there is one", choices=("auto", "cpu", "cuda"))
    threads: int = option("CPU threads of torch, of each process; 0 for one a core in all", low=0)
    rollout_rows: Any = option("rows sampled at a time; auto fits them into memory")
    update_rows: Any = option("rows in one micro-batch of the update; auto fits them into memory")
    keep_memory: bool = option("hold freed memory for the next step instead of giving it back to the system (glibc)")
    processes: int = option("processes of this machine that share the run; under torchrun or srun those it starts count", low=1)
    shard: str = option(
        "with several processes, what each keeps of the weights, gradients and moments: none (a copy of all), full (its part: "
        "FSDP2), offload (its part, in the CPU's memory, where steps are taken)",
        choices=("none", "full", "offload"),
    )
    rank_timeout: float = option(
        "with several processes, or overlap: seconds that one may wait for another before the run ends", low=1
    )
    overlap: int = option(
        "1: another process samples the next rollout while the policy learns from the last, one step off policy", low=0, high=1
    )
    reference: str = option(
        "where the reference is: adapter_off (the model without its adapter, which costs nothing), same (a copy beside the "
        "policy), cpu (a copy that waits in the CPU's memory and comes to the device for its pass), 8bit (a copy in int8); "
        "auto: adapter_off where there is an adapter, otherwise same",
        choices=("auto", "adapter_off", "same", "cpu", "8bit"),
    )
    critic: str = option(
        "where a critic with a trunk of its own is: same (the policy's device), cpu (it is computed there, steps too)",
        choices=("same", "cpu"),
    )
    reward_model: str = option(
        "where the model of reward=model is: same (on its device), cpu (it waits in the CPU's memory between calls), 8bit (in "
        "int8)",
        choices=("same", "cpu", "8bit"),
    )
    memory_gib: float = option("GiB of one device that the profile is made for, for preflight; 0: what there is", low=0)

    def __post_init__(self) -> None:
        for key in ("rollout_rows", "update_rows"):
            value = getattr(self, key)
            if value != "auto" and not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
                raise ConfigError(f"hardware.{key}={value!r}: expected auto or a whole number of at least 1")


@dataclass(frozen=True)
class Machine:
    """What the options came to.

    Attributes:
        device, dtype: torch's.
        processes: of the run.
        sharing: how many share the device's memory, that which samples ahead included.
        shard: how they share out the weights, as `hardware.shard` says.
        threads: CPU threads of each.
        ahead: the device of the process that samples ahead; None where there is none.
    """

    device: Any
    dtype: Any
    processes: int = 1
    sharing: int = 1
    shard: str = "none"
    threads: int = 1
    ahead: Any = None


def prepare(options: HardwareOptions, dtype: str, ranks: Ranks = ALONE, overlap: bool = False) -> Machine:
    """Choose the device and set the threads. Several processes of one machine take a GPU each, or a share of the cores;
    so does the one that samples ahead, which takes the same GPU where there is no other.

    Args:
        overlap: there is one.

    Raises:
        ConfigError: a GPU is asked for and there is none, or there are fewer than processes.
    """
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "hardware.device=cuda: torch sees no GPU here. Use hardware.device=cpu, or install a CUDA build of torch"
        )
    name = ("cuda" if torch.cuda.is_available() else "cpu") if options.device == "auto" else options.device
    device = torch.device(name)
    if name == "cuda" and ranks.count > 1:
        if ranks.here > torch.cuda.device_count():
            raise ConfigError(
                f"{ranks.here} processes of this machine take a GPU each, and torch sees {torch.cuda.device_count()}. Use as "
                "many processes, or hardware.device=cpu"
            )
        device = torch.device(name, ranks.local)
        torch.cuda.set_device(device)
    here = ranks.here * (1 + overlap)
    fair = max(1, min(_threads(), cores() // here)) if here > 1 else _threads()
    torch.set_num_threads(options.threads or fair)
    ahead = _beside(device) if overlap else None
    if options.keep_memory:
        keep_memory()
    if dtype == "auto":
        dtype = "bfloat16" if name == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    sharing = here if name == "cpu" else 1 + (ahead == device)
    shard = options.shard if ranks.count > 1 else "none"
    return Machine(device, getattr(torch, dtype), ranks.count, sharing, shard, torch.get_num_threads(), ahead)


def _beside(device: Any) -> Any:
    """Where a process samples for the policy on `device`: on the next GPU if there is one, otherwise on the same device."""
    import torch

    if device.type == "cuda" and torch.cuda.device_count() > 1:
        return torch.device("cuda", (torch.cuda.current_device() + 1) % torch.cuda.device_count())
    return device


@cache
def _threads() -> int:
    """CPU threads that torch began with, before a run of this process set them."""
    import torch

    return torch.get_num_threads()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_memory() -> None:
    """Have glibc hold freed memory, after it gave back what an earlier run held; with another C library, do nothing.

    By default it returns large blocks at once, and the system clears each page anew when the next step asks for them, which
    takes a good part of a step. The most that is held at a time is the same, but it is held to the end of the process.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
        for parameter, value in GLIBC.values():
            libc.mallopt(parameter, value)


def fit_rows(wanted: Any, rows: int, bytes_a_row: float, free: float) -> int:
    """How many rows to take at a time: as asked, or as many as a third of the `free` bytes holds, at most all."""
    if wanted != "auto":
        return min(int(wanted), rows)
    return max(1, min(rows, int(free / 3 / bytes_a_row)))


def free_bytes(device: Any) -> int:
    """Memory that can still be had: the device's on a GPU, otherwise the machine's or the container's."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def describe(machine: Machine) -> dict[str, Any]:
    """The machine for the run card."""
    import torch

    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            cpu = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), cpu)
    card = {
        "device": str(machine.device),
        "dtype": str(machine.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "processes": machine.processes,
        "shard": machine.shard,
        "overlap": int(machine.ahead is not None),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }
    return card | ({"gpu": torch.cuda.get_device_name(machine.device)} if machine.device.type == "cuda" else {})
