"""4-bit models and 8-bit moments: what is asked of bitsandbytes, what is said without it; where it is there, the real thing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from command import SMALL, call
from torch import nn
from toy_policy import CPU, batch, llama, options, policy
from transformers import LlamaForCausalLM

from grpo_exp import bits, checkpoint, tiny
from grpo_exp.compose import compose
from grpo_exp.config import build
from grpo_exp.errors import ConfigError
from grpo_exp.optim import Optimizer
from grpo_exp.policy import Policy

REAL = importlib.util.find_spec("bitsandbytes") is not None
real = pytest.mark.skipif(not REAL, reason="needs bitsandbytes")
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
REWARD = "from zlib import crc32\n\ndef half(completions):\n    return [float(crc32(x.encode()) % 2) for x in completions]\n"
WORDS = {
    "model.quantize=4bit": [*SMALL, "model.adapter=lora", "model.quantize=4bit"],
    "optim.name=adamw_8bit": [*SMALL, "optim.name=adamw_8bit"],
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ---- without the package


@pytest.mark.parametrize("option", WORDS)
def test_a_run_without_the_package_is_refused(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(bits.importlib.metadata, "version", missing)
    monkeypatch.setattr(Policy, "load", lambda *_: pytest.fail("the model was loaded"))
    for verb in ([], ["preflight"]):
        answer = call(capsys, *verb, *WORDS[option])
        assert (answer.code, answer.err.count("\n")) == (2, 1)
        assert f"{option}: needs the package bitsandbytes" in answer.err and "pip install 'bitsandbytes>=0.50'" in answer.err
        way_out = answer.err.rpartition("Without it: ")[2].split()[0]
        assert build(compose([*WORDS[option], way_out])) is not None
    assert not Path("outputs").exists()


def test_an_old_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits.importlib.metadata, "version", lambda name: "0.45.3")
    with pytest.raises(ConfigError, match=r"bitsandbytes 0\.45\.3 is too old"):
        bits.check(["optim.name=adamw_8bit"])
    monkeypatch.setattr(bits.importlib.metadata, "version", lambda name: "1.2.0.dev1")
    bits.check(["optim.name=adamw_8bit"])
    bits.check([])


# ---- what is asked of it, by a stand-in for its documented interface


class Params4bit(nn.Parameter):
    """Keeps what it was made of; `to` packs it as the real one does, here into float16."""

    def __new__(cls, data: Any, requires_grad: bool = True, **settings: Any) -> Any:
        made = torch.Tensor._make_subclass(cls, data, requires_grad)
        made.settings = settings
        return made


class Linear4bit(nn.Linear):
    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, inner: int, outer: int, bias: bool = True, **settings: Any) -> None:
        super().__init__(inner, outer, bias, settings["device"])
        Linear4bit.made.append(settings)


class AdamW8bit(torch.optim.AdamW):
    given: ClassVar[dict[str, Any]] = {}

    def __init__(self, groups: Any, **settings: Any) -> None:
        AdamW8bit.given = settings
        super().__init__(groups, **settings)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    package, layers, optim = (types.ModuleType(name) for name in ("bitsandbytes", "bitsandbytes.nn", "bitsandbytes.optim"))
    vars(layers).update(Linear4bit=Linear4bit, Params4bit=Params4bit)
    vars(optim).update(AdamW8bit=AdamW8bit)
    vars(package).update(nn=layers, optim=optim)
    for module in (package, layers, optim):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    Linear4bit.made.clear()


@pytest.mark.usefixtures("stand_in")
def test_every_linear_layer_but_the_head_is_put_in_4_bits() -> None:
    model = llama()
    before = {name: m.weight.detach().clone() for name, m in model.named_modules() if type(m) is nn.Linear}
    bits.to_4bit(model, torch.bfloat16, CPU)
    made: dict[str, Any] = {name: m for name, m in model.named_modules() if isinstance(m, Linear4bit)}
    assert len(made) == 2 * 7 and set(made) == set(before) - {"lm_head"}
    expected = {"compute_dtype": torch.bfloat16, "compress_statistics": True, "quant_type": "nf4", "device": "meta"}
    assert Linear4bit.made == [expected] * 14
    for name, module in made.items():
        settings = module.weight.settings
        assert torch.equal(module.weight, before[name]) and not module.weight.requires_grad
        assert (settings["quant_type"], settings["compress_statistics"], settings["module"]) == ("nf4", True, module)
    assert model.is_loaded_in_4bit


@pytest.mark.usefixtures("stand_in")
def test_the_optimizer_is_given_the_options() -> None:
    made = build(compose(["model=tiny_random", "optim.name=adamw_8bit", "optim.weight_decay=0.01", "optim.beta2=0.9"]))
    optimizer = Optimizer(policy(), made.optim, 1e-3, 10)
    assert isinstance(optimizer._adamw, AdamW8bit)
    assert AdamW8bit.given == {"lr": 1e-3, "betas": (0.9, 0.9), "eps": 1e-8, "weight_decay": 0.01}


# ---- the real thing


def wide() -> Any:
    """The toy Llama with rows of 64, below which bitsandbytes does not pack them on a CPU."""
    config = llama().config
    config.update({"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "initializer_range": 0.1})
    torch.manual_seed(7)
    return LlamaForCausalLM(config)


def whole(**changes: Any) -> Policy:
    torch.manual_seed(9)
    return Policy(options(**changes), wide(), tiny.tokenizer(), CPU, torch.float32)


def in_4bit() -> Policy:
    return whole(adapter="lora", quantize="4bit")


@real
def test_a_model_in_4_bits_says_nearly_the_same_and_learns_by_its_adapter() -> None:
    made, exact = in_4bit(), whole()
    assert (
        not made.streams and not made.model.base_model.model.model.layers[0].mlp.up_proj.base_layer.weight.is_floating_point()
    )
    rows = batch(exact)
    out = made.forward(rows, 1.0, train=True)
    with torch.no_grad():
        gap = (out.logp - exact.forward(rows, 1.0).logp)[rows.mask].abs()
    assert 0 < gap.mean() < 1  # nats; NF4 is some 9 % off in these large random weights
    (-out.logp[rows.mask].mean()).backward()
    learning = [p for p in made.model.parameters() if p.requires_grad]
    assert learning and all(
        p.dtype == torch.float32 and ".lora_" in n for n, p in made.model.named_parameters() if p.requires_grad
    )
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in learning)
    with torch.no_grad(), made.reference():
        assert torch.equal(made.forward(rows, 1.0).logp, out.logp.detach())  # the adapter is at its start, where it adds 0


@real
def test_every_layer_learns_after_sampling() -> None:
    """bitsandbytes would repack a layer on its first pass without gradients, for a product without any."""
    made = in_4bit()
    rows = batch(made)
    with torch.no_grad():
        made.forward(rows, 1.0)
    (-made.forward(rows, 1.0, train=True).logp[rows.mask].mean()).backward()
    ups = {name: p for name, p in made.model.named_parameters() if ".lora_B." in name}
    assert len(ups) == 14
    assert [name for name, p in ups.items() if p.grad is None or p.grad.abs().max() == 0] == []


@real
@pytest.mark.parametrize("trunk", ["own", "detached"])
def test_a_critic_shares_the_packed_weights(trunk: str) -> None:
    from test_critic import critic

    made = in_4bit()
    made.attach_critic(critic(trunk))
    rows = batch(made)
    values = made.forward(rows, 1.0).values
    assert values is not None and torch.equal(values, torch.zeros_like(values))
    if trunk == "own":
        assert made.critic is not None and made.critic.trunk is not None
        packed: Any = [m.layers[0].mlp.up_proj.base_layer.weight for m in (made.body, made.critic.trunk)]
        assert packed[0].data_ptr() == packed[1].data_ptr()


@real
@pytest.mark.parametrize("option", WORDS)
def test_runs_go_on_bit_for_bit(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS[option], "lr=1e-2", "reward=custom", "reward.path=mine.py:half", "checkpoint.every=2", "eval.every=2"]
    Path("mine.py").write_text(REWARD)
    for folder, steps in (("whole", 4), ("parts", 2), ("parts", 4)):
        answer = call(capsys, *words, f"steps={steps}", f"hydra.run.dir={folder}")
        assert answer.code == 0, answer.err
    whole, parts = (checkpoint.load(Path(folder, "checkpoints/step-000004")) for folder in ("whole", "parts"))
    assert whole.weights.keys() == parts.weights.keys()
    assert all(torch.equal(x, parts.weights[name]) for name, x in whole.weights.items())
    rewards = [
        [json.loads(line)["total"] for line in Path(f"{f}/samples.jsonl").read_text().splitlines()] for f in ("whole", "parts")
    ]
    assert rewards[0] == rewards[1] and len(set(rewards[0])) > 1
    assert (torch.uint8 in set(dtypes(whole.optimizer))) == (option == "optim.name=adamw_8bit")


def dtypes(state: Any) -> Iterator[torch.dtype]:
    """Of all tensors in an optimizer's state, however deep."""
    if isinstance(state, torch.Tensor):
        yield state.dtype
    for inner in state.values() if isinstance(state, dict) else state if isinstance(state, list) else ():
        yield from dtypes(inner)


@real
def test_moments_in_8_bits_step_nearly_as_exact_ones() -> None:
    """After 20 steps on one batch the log-probs rise as with AdamW, within a tenth."""
    rises = []
    for name in ("adamw", "adamw_8bit"):
        made = policy("llama")
        config = build(compose(["model=tiny_random", f"optim.name={name}", "optim.warmup_steps=0"]))
        optimizer, rows = Optimizer(made, config.optim, 1e-3, 20), batch(made)
        start = 0.0
        for step in range(1, 21):
            optimizer.set_rate(step)
            optimizer.clear()
            loss = -made.forward(rows, 1.0, train=True).logp[rows.mask].mean()
            start = start or loss.item()
            loss.backward()
            assert optimizer.step(step, loss.item()) is not None
        rises.append(start - loss.item())
    assert rises[0] > 0.5 and rises[1] == pytest.approx(rises[0], rel=0.1) and rises[0] != rises[1]
