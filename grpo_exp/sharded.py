"""Weights, gradients and moments shared out over the ranks of a run: torch's FSDP2 (ZeRO stage 3, arXiv 1910.02054).

Each rank keeps its part of every tensor, a DTensor. A unit, which is a layer of the model or what is left around its layers, is
whole while it computes and in parts otherwise; its gradients are added up over the ranks as they come. So all ranks must come
to the same passes in the same order. What is not shared out passes through everything here as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
WAYS = ("none", "full", "offload")
_WORK = "work_whole"


def is_part(x: Any) -> bool:
    """Whether a tensor is a rank's part of one."""
    return hasattr(x, "full_tensor")


def share_out(model: nn.Module, layers: Iterable[nn.Module], device: torch.device, dtype: torch.dtype, offload: bool) -> None:
    """Leave this rank its part of every parameter, on `device`, or with `offload` in the CPU's memory.

    With `offload` optimizer steps are taken there too. Units are whole in `dtype`; their gradients are added up in float32. All
    ranks of the process group take part.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    options: dict[str, Any] = {
        "mesh": init_device_mesh(device.type, (torch.distributed.get_world_size(),)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False),
        # torch would keep the last one whole after a pass without gradient, and so as it was before the next optimizer step
        "reshard_after_forward": True,
    }
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    for unit in [*layers, model]:
        shared: Any = fully_shard(unit, **options)
        shared.set_gradient_divide_factor(1.0)  # the loss is divided by the count of all ranks
        shared.set_force_sum_reduction_for_comms(True)  # since gloo knows no other
        setattr(unit, _WORK, _call)
        register_fsdp_forward_method(unit, _WORK)
    within(model, lambda: None)  # torch takes the unit that computes first for the root


def within(unit: nn.Module, work: Callable[..., T], *args: Any) -> T:
    """`work(*args)` while the unit's own weights are whole, in the backward pass too; units in it are taken care of apart."""
    whole: Callable[..., T] | None = unit.__dict__.get(_WORK)
    return work(*args) if whole is None else whole(work, *args)


@contextlib.contextmanager
def whole(models: Iterable[nn.Module | None]) -> Iterator[None]:
    """Within, all weights of the models are whole on every rank, and passes need no other rank. Nothing may be learned."""
    units: list[Any] = [unit for model in models if model is not None for unit in model.modules() if _WORK in unit.__dict__]
    for unit in units:
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()
            unit.set_reshard_after_forward(True, recurse=False)


def gathered(x: Tensor) -> Tensor:
    """The whole of a tensor, in the CPU's memory, if this is a part of it; all ranks must ask."""
    part: Any = x
    full: Tensor = part.full_tensor().cpu() if is_part(x) else x
    return full


def put(x: Tensor, value: Tensor) -> None:
    """Set a tensor, or this rank's part of it, to the whole `value`, without asking other ranks."""
    part: Any = x
    if is_part(x):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value, part.device_mesh, part.placements, src_data_rank=None).to_local()
        x = part.to_local()
    x.copy_(value)


def gathered_state(state: dict[str, Any], keep: bool) -> dict[str, Any]:
    """An optimizer's `state_dict` with the whole of every tensor; all ranks must ask. Without `keep` nothing is held of it."""
    known: dict[Any, dict[str, Any]] = {}
    for key, values in state["state"].items():
        found = {name: gathered(x) if isinstance(x, Tensor) else x for name, x in values.items()}
        if keep:
            known[key] = found
    return state | {"state": known}


def parts_of_state(state: dict[str, Any], parameters: list[nn.Parameter]) -> dict[str, Any]:
    """What an optimizer of these parameters loads to have the moments of a whole `state_dict`."""
    return state | {"state": {key: _parts(values, parameters[key]) for key, values in state["state"].items()}}


def _parts(values: Mapping[str, Any], parameter: nn.Parameter) -> dict[str, Any]:
    if not is_part(parameter):
        return dict(values)
    parts = dict(values)
    for name, x in values.items():
        if isinstance(x, Tensor) and x.shape == parameter.shape:
            parts[name] = torch.zeros_like(parameter, requires_grad=False)
            put(parts[name], x)
    return parts


def _call(work: Callable[..., T], *args: Any) -> T:
    return work(*args)
