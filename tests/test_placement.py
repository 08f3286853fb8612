"""Where models are kept and in how many bits: what that changes, which is little or nothing, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from command import SMALL, call
from test_critic import critic
from torch import Tensor, nn
from toy_policy import batch, move, policy

from grpo_exp import frozen
from grpo_exp.compose import compose
from grpo_exp.config import build
from grpo_exp.errors import ConfigError
from grpo_exp.frozen import Int8Embedding, Int8Linear, int8_rows
from grpo_exp.placement import reference_place
from grpo_exp.policy import Policy

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
FORWARDS = ["stream", "modules"]


def placed(place: str, architecture: str = "qwen", moves: bool = False, **changes: Any) -> Policy:
    """A policy that has moved away from its reference."""
    made = policy(architecture, **changes)
    made.reference_place = place
    made.freeze_reference(moves)
    move(made, 0.05)
    return made


@torch.no_grad()
def said(made: Policy) -> Tensor:
    """The reference's log-probs `[N, T]`."""
    with made.reference():
        return made.forward(batch(made), 1.0).logp


# ---- int8


def test_rows_are_rounded_to_the_nearest_of_127_steps() -> None:
    weight = torch.tensor([[127.0, -63.4, 0.6], [0.0, 0.0, 0.0], [-2.54, 0.03, 1.27]])
    whole, scale = int8_rows(weight)
    assert whole.dtype == torch.int8
    assert whole.tolist() == [[127, -63, 1], [0, 0, 0], [-127, 2, 64]]  # 1.27 / 0.02 = 63.5, to the even one
    assert scale.tolist() == pytest.approx([1.0, 0.0, 0.02])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_that_of_the_rounded_matrix(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(7, 33), torch.randn(7), torch.randn(4, 33).to(dtype)
    whole, scale = int8_rows(weight)
    found = Int8Linear(whole, scale, bias)(x)
    exact = x.double() @ (whole.double() * scale.double()[:, None]).T + bias.double()
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.1)
    assert (whole.double() * scale[:, None] - weight).abs().amax(-1).le(scale / 2 * 1.0001).all()


@pytest.mark.parametrize("tied", [True, False])
def test_every_matrix_becomes_int8_and_the_original_stays(tied: bool) -> None:
    made = policy("llama" if tied else "qwen")
    before = {name: x.clone() for name, x in made.model.state_dict().items()}
    copy = frozen.int8(made.model)
    assert not [m for m in copy.modules() if type(m) in (nn.Linear, nn.Embedding)]
    assert isinstance(copy.get_output_embeddings(), Int8Linear) and isinstance(copy.get_input_embeddings(), Int8Embedding)
    assert (copy.get_output_embeddings().weight is copy.get_input_embeddings().weight) == tied
    assert not any(p.requires_grad for p in copy.parameters()) and all(p.requires_grad for p in made.model.parameters())
    assert all(torch.equal(x, before[name]) for name, x in made.model.state_dict().items())
    held = {id(x): x.nbytes for x in [*copy.parameters(), *copy.buffers()]}
    assert sum(held.values()) < 0.4 * sum(p.nbytes for p in made.model.parameters())  # rows here are short, scales weigh


# ---- the reference


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("architecture", ["llama", "qwen"])
def test_a_reference_in_8_bits_is_near(architecture: str, forward: str) -> None:
    exact, rounded = (said(placed(place, architecture, forward=forward)) for place in ("same", "8bit"))
    gap = (exact - rounded)[batch(policy(architecture)).mask].abs()
    assert 0 < gap.mean() < 0.1  # nats; these weights are far larger than a trained model's


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("place", ["same", "cpu"])
def test_a_copy_says_what_the_policy_said_to_the_bit(place: str, dtype: torch.dtype, forward: str) -> None:
    """Also in bfloat16, where its matrices are kept as they are multiplied."""
    start = policy("qwen", dtype, forward=forward)
    with torch.no_grad():
        expected = start.forward(batch(start), 1.0).logp
    assert torch.equal(said(placed(place, dtype=dtype, forward=forward)), expected)
    assert torch.equal(
        said(placed(place, "llama", dtype=dtype, forward=forward)), said(placed("same", "llama", dtype=dtype, forward=forward))
    )


def test_in_bfloat16_a_copy_takes_half() -> None:
    made = placed("same", dtype=torch.bfloat16)
    assert made._frozen.lm_head.weight.dtype == torch.bfloat16  # which is not the embeddings' here
    assert made._frozen.get_input_embeddings().weight.dtype == torch.float32
    assert placed("same", moves=True, dtype=torch.bfloat16)._frozen.lm_head.weight.dtype == torch.float32  # small steps


@pytest.mark.parametrize("place", ["same", "cpu"])
def test_a_reference_that_moves_moves_wherever_it_is(place: str) -> None:
    made = placed(place, moves=True)
    expected = {
        name: x.lerp(made.state()[name.removeprefix("reference.")], 0.25)
        for name, x in made.state().items()
        if "reference." in name
    }
    made.update_reference(0.25)
    assert expected and all(torch.equal(made.state()[name], x) for name, x in expected.items())
    made.update_reference(1.0)
    with torch.no_grad():
        assert torch.equal(said(made), made.forward(batch(made), 1.0).logp)


# ---- the critic


def test_a_critic_on_the_cpu_is_the_same_critic() -> None:
    values = []
    for place in ("same", "cpu"):
        made = policy("qwen")
        made.attach_critic(critic("own"), place)
        assert made.critic is not None and {p.device.type for p in made.critic.parameters()} == {"cpu"}
        nn.init.constant_(made.critic.head.weight, 0.3)
        values.append(made.forward(batch(made), 1.0).values)
    assert values[0] is not None and values[1] is not None and torch.equal(values[0], values[1])


# ---- options


def test_auto_is_the_base_under_an_adapter_and_a_copy_without() -> None:
    assert reference_place(build(compose(["model=tiny_random", "model.adapter=lora"]))) == "adapter_off"
    assert reference_place(build(compose(["model=tiny_random"]))) == "same"
    assert reference_place(build(compose(["model=tiny_random", "hardware.reference=8bit"]))) == "8bit"


REFUSED = {
    "model.adapter=lora hardware.reference=same": "there is no copy to place",
    "model.adapter=lora hardware.reference=cpu": "there is no copy to place",
    "model.adapter=lora hardware.reference=8bit": "there is no copy to place",
    "hardware.reference=adapter_off": "there is no adapter",
    "hardware.reference=8bit algo.reference.update=ema": "smaller than int8 can hold",
    "hardware.reference=gpu": "hardware.reference='gpu': ",
    "algo=ppo algo.critic.trunk=detached hardware.critic=cpu": "reads the policy's hidden states",
    "algo=ppo algo.critic.trunk=shared hardware.critic=cpu": "reads the policy's hidden states",
    "algo=ppo algo.critic.trunk=own model.adapter=lora hardware.critic=cpu": "shares the policy's frozen weights",
    "hardware.critic=8bit": "hardware.critic='8bit': ",
    "model.quantize=4bit": "weights in 4 bits do not learn",
    "model.quantize=4bit model.adapter=lora model.forward=stream": "computes plain linear layers alone",
    "model.quantize=4bit model.adapter=lora algo=reward_model": "writes its model whole",
    "model.quantize=4bit model.adapter=lora rollout=vllm": "given the packed weights",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_has_no_meaning_is_refused(words: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(compose(["model=tiny_random", *words.split()]), judged=False)
    assert REFUSED[words] in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words", ["algo=sft hardware.reference=8bit", "algo=dr_grpo beta=0 hardware.reference=cpu hardware.critic=cpu"]
)
def test_a_profile_may_place_what_a_run_does_not_have(words: str) -> None:
    assert build(compose(["model=tiny_random", *words.split()])) is not None


def test_a_reward_model_is_where_the_profile_says(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}')
    words = ["model=tiny_random", "reward=model", f"reward.path={tmp_path}", "hardware.reward_model=8bit"]
    assert vars(build(compose(words)).reward.parts["model"])["place"] == "8bit"
    own = [*words, "reward.parts.model.place=cpu"]
    assert vars(build(compose(own)).reward.parts["model"])["place"] == "cpu"


@pytest.mark.parametrize("words", ["hardware.reference=8bit", "hardware.reference=cpu", "algo=ppo hardware.critic=cpu"])
def test_a_run(words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, *SMALL, *words.split(), "hydra.run.dir=run")
    assert answer.code == 0, answer.err
