"""The arithmetic of memory: counts against torch's own, published sizes, and what preflight says on paper."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from command import call
from toy_policy import batch, policy

from grpo_exp import footprint, frozen, model
from grpo_exp.compose import compose
from grpo_exp.config import Config, build
from grpo_exp.footprint import Sizes, Way
from grpo_exp.policy import Policy
from grpo_exp.preflight.paper import Sheet, reckon

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
KINDS = ["llama", "qwen", "lora"]


def kept(made: Policy) -> int:
    """Bytes that autograd keeps for the backward pass of a batch, parameters left out, each tensor's memory once."""
    seen: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in made.model.parameters()}

    def pack(x: torch.Tensor) -> torch.Tensor:
        place = x.untyped_storage().data_ptr()
        if place not in own:
            seen[place] = x.untyped_storage().nbytes()
        alive.append(x)  # so that no place is given out twice
        return x

    alive: list[torch.Tensor] = []
    rows = batch(made, lengths=(32, 32, 32, 32, 32, 32))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        made.forward(rows, 1.0, train=True)
    return sum(seen.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("forward", ["stream", "modules"])
@pytest.mark.parametrize("kind", KINDS)
def test_activations_are_those_that_autograd_keeps(kind: str, forward: str, dtype: torch.dtype) -> None:
    """Within a third: what is counted is the layers, not masks, positions and the toy's relatively large head."""
    made = policy(kind, dtype, forward=forward)
    rows = batch(made, lengths=(32, 32, 32, 32, 32, 32))
    asked = int(rows.prompt_mask.sum()) if forward == "stream" else rows.prompt_tokens.numel()
    computed = asked + 6 * 31
    context = 6 * (rows.prompt_tokens.shape[1] + 31)
    said = footprint.activations(Sizes.of(made.model), Way.of(made), computed, context)
    assert said == pytest.approx(kept(made), rel=0.34)


@pytest.mark.parametrize("forward", ["stream", "modules"])
def test_recomputed_activations_are_not_kept(forward: str) -> None:
    made = policy("llama", forward=forward, gradient_checkpointing=True)
    whole = policy("llama", forward=forward)
    layers = 2
    entering = 6 * 31 * 32 * 4 * layers  # bytes of hidden states, prompts left out
    saved, said = kept(whole) - kept(made), {}
    for one in (made, whole):
        said[one] = footprint.activations(Sizes.of(one.model), Way.of(one), 6 * 31, 6 * 31)
    assert said[made] < said[whole] and saved > 0
    assert said[made] > entering


def test_weights_are_those_of_the_tensors() -> None:
    """Of the policy, of each place of a reference, of the moments."""
    for kind in KINDS:
        for dtype in (torch.float32, torch.bfloat16):
            made = policy(kind, dtype)
            sizes, way = Sizes.of(made.model), Way.of(made)
            assert footprint.weights(sizes, way, "none") == sum(p.nbytes for p in made.model.parameters())
            assert sizes.trained == sum(p.numel() for p in made.trainable())
            if kind == "lora":
                continue
            for place, copy in (("same", frozen.copied(made.model, dtype)), ("8bit", frozen.int8(made.model))):
                tensors = {x.data_ptr(): x.nbytes for x in [*copy.parameters(), *copy.state_dict().values()]}
                assert footprint.reference(sizes, way, place, False) == sum(tensors.values())


@pytest.mark.parametrize("size", model.sizes())
def test_published_models_have_as_many_parameters_as_they_say(size: str) -> None:
    assert Sizes.of(model.on_paper(built().model, size)).weights == model.sizes()[size]["parameters"]


@cache
def built(*words: str) -> Config:
    return build(compose(["model=tiny_random", *words]))


def sheet(*words: str) -> Sheet:
    return reckon(built(*words))


def test_paper_knows_what_a_profile_saves() -> None:
    words = ["preflight.size=7b", "hardware.memory_gib=24", "hardware.device=cuda"]
    whole = sheet(*words)
    assert whole.exit_code == 2 and whole.held["weights"] == pytest.approx(4 * 7.615616512e9 / 2**30)
    assert whole.held["optimizer"] == pytest.approx(2 * whole.held["weights"])
    packed = sheet("preflight.size=7b", "hardware=gpu_24gb")
    assert packed.exit_code == 0 and packed.held["weights"] < whole.held["weights"] / 5
    assert "reference" in packed.held and packed.held["reference"] == 0
    assert sheet("preflight.size=70b", "hardware=gpu_24gb").exit_code == 2
    assert sheet("preflight.size=1.5b", "hardware=gpu_24gb_full").exit_code == 0
    assert sheet("preflight.size=7b", "hardware=gpu_24gb_full").exit_code == 2


def test_paper_takes_fewer_rows_where_less_fits() -> None:
    words = ["preflight.size=7b", "hardware=gpu_24gb", "max_new_tokens=512", "G=16"]
    some, more = sheet(*words), sheet(*words, "hardware.memory_gib=80")
    assert 1 <= some.rows["update"] < more.rows["update"] <= 256
    assert sheet(*words, "hardware.update_rows=2").rows["update"] == 2


def test_paper_places_reference_and_critic() -> None:
    words = ["preflight.size=0.5b", "hardware.memory_gib=80"]
    held = {place: sheet(*words, f"hardware.reference={place}").held["reference"] for place in ("same", "8bit", "cpu")}
    assert held["cpu"] == 0 < held["8bit"] < held["same"] / 1.9
    alone, beside = (sheet(*words, f"hardware.overlap={overlap}") for overlap in (0, 1))
    assert alone.held["sampler"] == 0 and beside.held["sampler"] > alone.held["weights"]
    here, there = (sheet(*words, "algo=ppo", f"hardware.critic={place}") for place in ("same", "cpu"))
    assert here.held["critic"] > 1.8 and there.held["critic"] == 0 and here.held["optimizer"] > there.held["optimizer"]


def test_the_verb_on_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder with a config.json and nothing else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Policy, "load", lambda *_: pytest.fail("the model was loaded"))
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 100}
    Path("some").mkdir()
    Path("some/config.json").write_text(json.dumps(config | {"num_attention_heads": 4}))
    words = ["preflight", "preflight.paper=true", "model=hf", "model.path=some", "hydra.run.dir=look"]
    answer = call(capsys, *words, "hardware=gpu_8gb")
    assert (answer.code, answer.err) == (0, "") and "it fits" in answer.out
    facts = json.loads(Path("look/preflight.json").read_text())
    assert facts["there_is"] == 8 and facts["exit_code"] == 0 and facts["device"] == "cuda"
    assert facts["needed"] == max(facts["peak"].values()) < 1.1
    answer = call(capsys, *words, "hardware=gpu_8gb", "preflight.size=32b")
    assert answer.code == 2 and "it does not fit" in answer.out
    Path("some/config.json").unlink()
    answer = call(capsys, *words)
    assert answer.code == 2 and "its configuration cannot be read" in answer.err and answer.err.count("\n") == 1
