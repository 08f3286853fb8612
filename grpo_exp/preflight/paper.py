"""What a run would hold on one device, reckoned from its model's configuration: nothing is loaded, no GPU is asked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_exp import footprint
from grpo_exp.errors import ConfigError
from grpo_exp.footprint import GIB, Sizes, Way
from grpo_exp.preflight.base import percent
from grpo_exp.preflight.cost import held_by

if TYPE_CHECKING:
    from grpo_exp.config import Config

LIBRARIES = 0.5
"""GiB on a GPU for its context and the libraries' workspaces."""
PROCESS = 0.38
"""GiB of a process on a CPU with torch, transformers and Hydra loaded, measured on Linux."""


@dataclass(frozen=True)
class Sheet:
    """GiB on one device.

    Attributes:
        model, parameters, trained: what it was reckoned for.
        held: what is held all along, by part.
        sampling, update: what is held besides while sampling, and in the update, by part; gradients only then.
        rows: how many are sampled, and learned from, at a time.
        there_is: the device's memory.
        share: how much of it a run may need.
        device: cpu, or cuda.
        parts: devices that what is held is shared out over.
    """

    name: str
    model: str
    parameters: int
    trained: int
    held: dict[str, float]
    sampling: dict[str, float]
    update: dict[str, float]
    rows: dict[str, int]
    there_is: float
    share: float
    device: str
    parts: int

    @property
    def peak(self) -> dict[str, float]:
        """By phase."""
        held = sum(self.held.values())
        return {"sampling": held + sum(self.sampling.values()), "update": held + sum(self.update.values())}

    @property
    def needed(self) -> float:
        return max(self.peak.values())

    @property
    def exit_code(self) -> int:
        return 0 if self.needed <= self.share * self.there_is else 2

    def facts(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"peak": self.peak, "needed": self.needed, "exit_code": self.exit_code}

    def lines(self) -> list[str]:
        verdict = "it fits" if self.exit_code == 0 else "it does not fit"
        left = self.there_is * self.share - self.needed
        room = f"{left:.1f} GiB left of" if left >= 0 else f"{-left:.1f} GiB more than"
        where = f"one {self.device} device" if self.parts == 1 else f"each of {self.parts} {self.device} devices"
        return [
            f"{self.name}: {self.model}, {self.parameters:,} parameters, {self.trained:,} trained, on {where}",
            f"  always    {_told(self.held)}",
            f"  sampling  {_told(self.sampling)} for {self.rows['sampling']} rows at a time",
            f"  update    {_told(self.update)} for {self.rows['update']} rows at a time",
            f"  needed    {self.needed:.2f} GiB of {self.there_is:.1f} GiB: {verdict}, {room} "
            f"the {percent(self.share)} that count",
            "on paper, from sizes alone: preflight without paper tries it, and docs/scale.md says how far off the paper was",
        ]


def reckon(config: Config) -> Sheet:
    """The sheet of a run.

    Raises:
        ModelError: the model's configuration is not to be had.
        ConfigError: it is not known how much memory there is.
    """
    import torch

    from grpo_exp import model as source
    from grpo_exp.hardware import free_bytes
    from grpo_exp.policy import adapted
    from grpo_exp.trunk import fits

    options, about = config.hardware, config.preflight
    assert about is not None
    device = (
        options.device if options.device != "auto" else "cuda" if options.memory_gib or torch.cuda.is_available() else "cpu"
    )
    plain = dataclasses.replace(config.model, quantize="none", start_adapter=None)
    dtype = torch.bfloat16 if (config.model.dtype, device) in (("bfloat16", device), ("auto", "cuda")) else torch.float32
    model = adapted(source.on_paper(config.model, about.size), plain, dtype, torch.device("meta"))
    base = model.get_base_model() if config.model.adapter == "lora" else model
    wanted = config.model.forward
    stream = wanted == "stream" or (
        wanted == "auto" and device == "cpu" and config.model.quantize == "none" and fits(base.get_decoder())
    )
    sizes, way = Sizes.of(model), Way(dtype.itemsize, stream, config.model.gradient_checkpointing)
    if device == "cuda" and not options.memory_gib and not torch.cuda.is_available():
        raise ConfigError(
            f"hardware={options.name}: there is no GPU here whose memory could be asked for. Say how much one has: "
            "hardware.memory_gib=24"
        )
    there_is = options.memory_gib * GIB or free_bytes(torch.device(device))
    held = held_by(config, sizes, way)
    parts = options.processes if options.shard != "none" else 1
    elsewhere = parts > 1 and options.shard == "offload" and device == "cuda"
    held = {name: 0.0 if elsewhere else size / parts for name, size in held.items()}
    gradients = held.pop("gradients")
    held["process" if device == "cpu" else "libraries"] = (PROCESS if device == "cpu" else LIBRARIES) * GIB
    if device == "cuda" and options.reference == "cpu":
        held["reference"] = 0.0  # it comes for its pass, when there are neither gradients nor activations
    waits = sum(held.values())
    whole = footprint.whole(sizes, way) if parts > 1 else footprint.Whole(0, 0)
    if config.rollout.kind == "vllm":  # which has them itself
        whole = whole._replace(all=0.0)
    sampling, sampled = _sampling(config, sizes, way, there_is, waits + whole.all)
    update, learned = _update(config, sizes, way, there_is, waits + gradients + whole.unit)
    return Sheet(
        config.root.name if about.size is None else f"{config.root.name} at {about.size}",
        config.model.name if about.size is None else source.sizes()[about.size]["model"],
        sizes.weights + sizes.trained * sizes.adapted,
        sizes.trained,
        _gib(held),
        _gib({"whole weights": whole.all} | sampling),
        _gib({"gradients": gradients, "whole layers": whole.unit} | update),
        {"sampling": sampled, "update": learned},
        there_is / GIB,
        about.memory,
        device,
        parts,
    )


def _sampling(config: Config, sizes: Sizes, way: Way, there_is: float, held: float) -> tuple[dict[str, float], int]:
    """What sampling holds besides, and for how many rows at a time; vLLM takes a share of its own, or is elsewhere."""
    total, tokens = config.root.prompts_per_step * config.root.G, _tokens(config)
    if config.rollout.kind == "vllm":
        shared = getattr(config.rollout, "url", None) is None
        return {"vLLM": vars(config.rollout)["gpu_memory"] * there_is if shared else 0.0}, total
    copies = footprint.merged(sizes, way)
    row = footprint.sampling(sizes, way, tokens)
    rows = _rows(config.hardware.rollout_rows, total, row, there_is, held + copies)
    return {"merged weights": float(copies), "keys, values and logits": float(rows * row)}, rows


def _update(config: Config, sizes: Sizes, way: Way, there_is: float, held: float) -> tuple[dict[str, float], int]:
    """What the update holds besides, and for how many rows at a time."""
    critic = config.algo.critic
    own = critic is not None and critic.trunk == "own" and config.hardware.critic == "same"
    row = footprint.activations(sizes, way, _tokens(config), _tokens(config)) * (2 if own else 1)
    total = config.root.prompts_per_step * config.root.G
    head = footprint.head(sizes, not sizes.adapted, total * config.root.max_new_tokens)
    rows = _rows(config.hardware.update_rows, total, row, there_is, held + head)
    return {"activations": float(rows * row), "logits": float(head)}, rows


def _rows(wanted: Any, total: int, row: float, there_is: float, held: float) -> int:
    """As a run chooses them; where these do not fit either, a run halves them when memory runs out, down to one."""
    from grpo_exp.hardware import fit_rows

    rows = fit_rows(wanted, total, row, max(0.0, there_is - held))
    while rows > 1 and held + rows * row > there_is:
        rows //= 2
    return rows


def _tokens(config: Config) -> int:
    assert config.preflight is not None
    return config.preflight.prompt_tokens + config.root.max_new_tokens


def _gib(parts: dict[str, float]) -> dict[str, float]:
    return {name: size / GIB for name, size in parts.items()}


def _told(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {size:.2f}" for name, size in parts.items() if size) + " GiB"
