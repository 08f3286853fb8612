"""Where models are kept and in how many bits: which of these options have a meaning together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_exp import bits
from grpo_exp.errors import ConfigError

if TYPE_CHECKING:
    from grpo_exp.config import Config


def check(config: Config) -> None:
    """Refuse what has no meaning.

    Raises:
        ConfigError: naming the options and the way out.
    """
    _check_reference(config)
    _check_critic(config)
    if config.hardware.shard != "none":
        _check_shard(config)
    if config.model.quantize == "4bit":
        _check_4bit(config)


def check_packages(config: Config) -> None:
    """Raise ConfigError where a package that the options need is not installed."""
    from grpo_exp import sharded  # which imports torch

    sharded.check(config.hardware.shard)
    asked = {"model.quantize": config.model.quantize, "optim.name": config.optim.name}
    bits.check([word for word in (f"{key}={value}" for key, value in asked.items()) if word in bits.PLAIN])


def reference_place(config: Config) -> str:
    """What `hardware.reference` comes to: adapter_off, same, cpu or 8bit."""
    wanted = config.hardware.reference
    if wanted != "auto":
        return wanted
    return "adapter_off" if config.model.adapter == "lora" else "same"


def _check_reference(config: Config) -> None:
    place, adapter = config.hardware.reference, config.model.adapter
    if place == "auto":
        return
    if adapter == "lora" and place != "adapter_off":
        raise ConfigError(
            f"hardware.reference={place}: with model.adapter=lora the reference is the model with its adapter off, or with the "
            "one it started from, and there is no copy to place. Use hardware.reference=auto, or model.adapter=none"
        )
    if adapter == "none" and place == "adapter_off":
        raise ConfigError(
            "hardware.reference=adapter_off: with model.adapter=none there is no adapter, and the reference is a copy. Use "
            "hardware.reference=auto, same, cpu or 8bit, or model.adapter=lora"
        )
    if place == "8bit" and config.algo.moves_reference:
        raise ConfigError(
            "hardware.reference=8bit: the reference of this run follows the policy, by steps smaller than int8 can hold. Use "
            "hardware.reference=cpu, or algo.reference.update=fixed"
        )


def _check_critic(config: Config) -> None:
    critic = config.algo.critic
    if config.hardware.critic == "same" or critic is None:
        return
    if critic.trunk != "own":
        raise ConfigError(
            f"hardware.critic={config.hardware.critic}: with algo.critic.trunk={critic.trunk} the critic reads the policy's "
            "hidden states, so that there is nothing to place but one row of weights. Use hardware.critic=same"
        )
    if config.model.adapter == "lora":
        raise ConfigError(
            f"hardware.critic={config.hardware.critic}: with model.adapter=lora the critic shares the policy's frozen weights, "
            "and so its device. Use hardware.critic=same"
        )


def _check_shard(config: Config) -> None:
    """Parts are of exact tensors that are where their policy is."""
    wanted = f"hardware.shard={config.hardware.shard}"
    others = {
        "model.quantize": (config.model.quantize, "none", "weights in 4 bits are packed, and have no parts"),
        "optim.name": (config.optim.name, "adamw", "moments in 8 bits are packed by blocks, and have no parts"),
        "hardware.critic": (config.hardware.critic, "same", "a critic is shared out as the policy is"),
    }
    for key, (value, needed, why) in others.items():
        if value != needed:
            raise ConfigError(f"{wanted}: {key}={value} does not go with it, since {why}. Use {key}={needed}")
    if config.hardware.reference in ("cpu", "8bit"):
        raise ConfigError(
            f"{wanted}: hardware.reference={config.hardware.reference} does not go with it, since a reference is shared out as "
            "the policy is. Use hardware.reference=auto"
        )


def _check_4bit(config: Config) -> None:
    if config.model.adapter != "lora":
        raise ConfigError(
            "model.quantize=4bit: weights in 4 bits do not learn, so it needs an adapter: model.adapter=lora, or "
            "model.quantize=none"
        )
    if config.model.forward == "stream":
        raise ConfigError(
            "model.quantize=4bit: model.forward=stream computes plain linear layers alone. Use model.forward=auto"
        )
    if config.algo.product == "reward_model":
        raise ConfigError(
            f"model.quantize=4bit: algo={config.algo.name} writes its model whole, its adapter added to exact weights. Use "
            "model.quantize=none"
        )
    if config.rollout.kind == "vllm" and getattr(config.rollout, "url", None) is None:
        raise ConfigError(
            "model.quantize=4bit: vLLM in this process would be given the packed weights, which it cannot read. Use a server "
            "(rollout.url=) of the model itself, model.quantize=none, or rollout=torch"
        )
