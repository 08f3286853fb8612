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

from grpo_exp.errors import ConfigError

T = TypeVar("T")
_WORK = "work_whole"


def check(way: str) -> None:
    """Raise ConfigError where this torch cannot share out weights as `hardware.shard` asks."""
    if way == "none":
        return
    from torch.distributed.fsdp import FSDPModule

    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ConfigError(
            f"hardware.shard={way} needs torch 2.13 or newer, and {torch.__version__} is installed. Install that, or use "
            "hardware.shard=none"
        )


def is_part(x: Any) -> bool:
    """Whether a tensor is a rank's part of one."""
    return hasattr(x, "full_tensor")


def share_out(model: nn.Module, layers: Iterable[nn.Module], device: torch.device, dtype: torch.dtype, offload: bool) -> None:
    """Leave this rank its part of every parameter, on `device`, or with `offload` in the CPU's memory.

    With `offload` optimizer steps are taken there too. Layers are whole in `dtype`, what is around them in float32, as without
    parts; gradients are added up over the ranks in float32. All ranks of the process group take part.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    options: dict[str, Any] = {
        "mesh": init_device_mesh(device.type, (torch.distributed.get_world_size(),)),
        # torch would keep the last one whole after a pass without gradient, and so as it was before the next optimizer step
        "reshard_after_forward": True,
    }
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    for unit in [*layers, model]:
        kept = torch.float32 if unit is model else dtype
        exact = MixedPrecisionPolicy(param_dtype=kept, reduce_dtype=torch.float32, cast_forward_inputs=False)
        shared: Any = fully_shard(unit, mp_policy=exact, **options)
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
    roots: list[Any] = [model for model in models if model is not None and _WORK in model.__dict__]
    for unit in (unit for root in roots for unit in root.modules() if _WORK in unit.__dict__):
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for root in roots:
            root.set_reshard_after_forward(True)
            # In parts again, also where a signal came in the middle of a pass; and the order of passes, by which FSDP gathers
            # ahead, is forgotten: it is this rank's alone.
            root.reset_iter_state()


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
