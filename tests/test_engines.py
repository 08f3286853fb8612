"""Engines besides the default one: transformers' generate against it, and vLLM against a stand-in for its interface."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from command import SMALL, call
from omegaconf import DictConfig
from test_rollout import as_batch, ending, sampled
from toy_policy import move, policy, prompts
from vllm_stand_in import FakeServer, install

from grpo_exp import config
from grpo_exp.batch import Rollout
from grpo_exp.compose import compose
from grpo_exp.errors import ConfigError, RunError
from grpo_exp.options import load_class
from grpo_exp.policy import Policy
from grpo_exp.rollout.base import Engine, Sampling

LETTERS = "def score(completions):\n    return [len(set(text)) for text in completions]\n"
"""A reward that differs within groups, whatever a model says."""


@cache
def composed(*words: str) -> DictConfig:
    return compose(["model=tiny_random", *words])


def engine(*words: str) -> Engine:
    """A new engine for these words, which are composed once."""
    return config.build(composed(*words)).rollout


def drawn(
    model: Policy, used: Engine, temperature: float = 1.3, tokens: int = 10, samples: int = 3, rows: int = 100
) -> Rollout:
    return used.sample(model, prompts(model), Sampling(temperature, tokens, samples, (0, 0, 1)), rows)


pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def names() -> list[str]:
    return sorted(path.stem for path in (Path(__file__).parents[1] / "conf" / "rollout").glob("*.yaml"))


def test_a_file_with_shared_parts_is_no_engine() -> None:
    for name in ("draw", "states", "vllm_link", "base"):
        with pytest.raises(ConfigError, match=r"no such choice\. Valid: hf, torch, vllm\."):
            load_class("grpo_exp.rollout", name, Engine, "rollout.kind")
    assert names() == ["hf", "torch", "vllm"]


# ---- transformers' generate


CASES = list(
    itertools.product(
        ["llama", "qwen", "lora"], [1.3, 0], [(), ("rollout.top_p=0.8", "rollout.top_k=20"), ("rollout.stop=[1,a]",)]
    )
)


def often(case: tuple[str, float, tuple[str, ...]]) -> bool:
    """One architecture in all ways, the others in one that draws; the rest is among the slow tests."""
    architecture, temperature, words = case
    return architecture == "llama" or (temperature > 0 and words[:1] == ("rollout.top_p=0.8",))


@pytest.mark.parametrize(
    ("architecture", "temperature", "words"),
    [case if often(case) else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_generate_draws_the_tokens_of_the_default_engine(architecture: str, temperature: float, words: tuple[str, ...]) -> None:
    model = ending(architecture)
    model.language_model.generation_config.repetition_penalty = 3.0  # of the model's own; it must not count
    model.language_model.generation_config.eos_token_id = 40
    one, other = (drawn(model, engine(f"rollout={name}", *words), temperature, rows=5) for name in ("torch", "hf"))
    assert len(set(one.mask.sum(-1).tolist())) > 1  # rows ended at different times
    assert torch.equal(one.tokens, other.tokens) and torch.equal(one.mask, other.mask)
    assert torch.equal(one.finished, other.finished) and one.texts == other.texts
    torch.testing.assert_close(one.behaviour_logp, other.behaviour_logp, rtol=0, atol=1e-4)
    assert model.language_model.generation_config.repetition_penalty == 3.0


# ---- vLLM


@pytest.fixture(params=["server", "colocated"])
def vllm(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What makes an engine for a policy: at a server that serves its starting weights, or in this process."""
    if request.param == "colocated":
        install(monkeypatch)
        yield lambda model, *words: engine("rollout=vllm", *words)
        return
    servers = []

    def made(model: Policy, *words: str) -> Engine:
        base = tmp_path / f"served{len(servers)}"
        model.export_base(base)
        servers.append(FakeServer(base).__enter__())
        return engine("rollout=vllm", f"rollout.url={servers[-1].url}", "rollout.timeout=5", *words)

    yield made
    for server in servers:
        server.__exit__()


@pytest.mark.parametrize("architecture", ["llama", "qwen", "lora"])
def test_vllm_samples_from_the_weights_as_they_are_now(architecture: str, vllm: Any) -> None:
    """Log-probs while sampling are those of the training forward, before and after the weights move; nothing is left behind."""
    model = ending(architecture)
    used = vllm(model)
    before = drawn(model, used)
    assert before.group.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert before.finished.any() and len(set(before.mask.sum(-1).tolist())) > 1
    torch.testing.assert_close(before.behaviour_logp, model.forward(as_batch(before), 1.3).logp, rtol=0, atol=1e-4)
    assert torch.equal(drawn(model, used).tokens, before.tokens)
    move(model, 0.1, seed=8)
    after = drawn(model, used)
    assert not torch.equal(after.tokens, before.tokens)
    torch.testing.assert_close(after.behaviour_logp, model.forward(as_batch(after), 1.3).logp, rtol=0, atol=1e-4)
    assert (before.behaviour_logp - model.forward(as_batch(before), 1.3).logp).abs().max() > 0.01
    assert len(list(used._place.glob("weights-*"))) == (architecture == "lora")  # what is still to be read


def test_vllm_ends_and_cuts_rows_as_the_default_engine_does(vllm: Any) -> None:
    """At temperature 0 both take the same tokens: alike in ends, masks, texts and padding, and the same for all samples."""
    model = ending()
    one, other = drawn(model, engine(), 0, tokens=12), drawn(model, vllm(model), 0, tokens=12)
    assert torch.equal(one.tokens, other.tokens) and torch.equal(one.mask, other.mask)
    assert torch.equal(one.finished, other.finished) and one.texts == other.texts
    assert one.finished.any() and len({row for row in one.texts}) < 9


def test_seeds_depend_on_the_prompt_and_the_step(vllm: Any) -> None:
    model = ending()
    used, asked = vllm(model), prompts(model)
    found = [
        used.sample(model, asked, Sampling(1.0, 10, 3, key, first), 9).texts
        for key, first in (((0, 0, 1), 0), ((0, 0, 2), 0), ((1, 0, 1), 0), ((0, 0, 1), 3))
    ]
    assert len({tuple(texts) for texts in found}) == 4
    assert len(set(found[0])) > 3


@pytest.mark.parametrize("word", ["rollout.top_p=0.9", "rollout.top_k=5", "rollout.url=localhost", "rollout.timeout=0"])
def test_what_vllm_cannot_do_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=word.replace("[", "").partition("=")[0]):
        engine("rollout=vllm", word)


def test_a_missing_vllm_or_server_is_told_before_a_model_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Policy, "load", lambda *given: pytest.fail("a model loads"))
    for words in (SMALL, ["evaluate", "tiny_random"], ["pairs", "tiny_random"]):
        answer = call(capsys, *words, "rollout=vllm")
        assert answer.code == 2 and "pip install vllm" in answer.err, answer
    answer = call(capsys, *SMALL, "rollout=vllm", "rollout.url=http://127.0.0.1:9", "rollout.timeout=0.2")
    assert answer.code == 2 and "rollout.url=http://127.0.0.1:9: no answer to /v1/models in 0.2 s" in answer.err
    assert "docs/engines.md" in answer.err and (Path(__file__).parents[1] / "docs" / "engines.md").is_file()


def test_a_server_that_stumbles_is_asked_again_and_one_that_refuses_is_told(tmp_path: Path) -> None:
    model = ending()
    model.export_base(tmp_path / "base")
    with FakeServer(tmp_path / "base") as server:
        used = engine("rollout=vllm", f"rollout.url={server.url}", "rollout.timeout=3", "rollout.connections=1")
        calm = drawn(model, used)
        server.faults = [500, 429, "cut", 503]
        assert torch.equal(drawn(model, used).tokens, calm.tokens) and not server.faults
        server.faults = [400]
        with pytest.raises(RunError, match=r"refuses /v1/completions, HTTP 400: busy"):
            drawn(model, used)
        for spoilt, message in (
            ({"token_ids": None}, "needs vLLM 0.14"),
            ({"logprobs": None}, "needs vLLM 0.14"),
            ({"finish_reason": "abort"}, "finish_reason='abort'"),
        ):
            server.spoil = spoilt
            with pytest.raises(RunError, match=message):
                drawn(model, used)


@pytest.mark.parametrize("adapter", ["lora", pytest.param("none", marks=pytest.mark.slow)])
def test_a_run_with_a_server(adapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """GRPO as a person starts it: each step samples from the weights of the step before it, and tokens have weights."""
    monkeypatch.chdir(tmp_path)
    Path("letters.py").write_text(LETTERS)
    words = [
        *SMALL,
        "reward=custom",
        "reward.path=letters.py:score",
        f"model.adapter={adapter}",
        "steps=3",
        "lr=0.01",
        "eval.every=0",
    ]
    start = config.build(compose(words)).model
    model = Policy.load(start, torch.device("cpu"), torch.float32, 0)
    model.export_base(tmp_path / "base")
    with FakeServer(tmp_path / "base") as server:
        answer = call(capsys, *words, "rollout=vllm", f"rollout.url={server.url}", "hydra.run.dir=run")
        assert answer.code == 0, answer.err
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    train = [row for row in rows if row["kind"] == "train"]
    assert len(train) == 3 and all(row["mismatch/abs_max"] < 1e-3 for row in train)
    assert all(row["mismatch/weight_mean"] == pytest.approx(1, abs=1e-3) for row in train)
    card = json.loads(Path("run/run.json").read_text())
    assert "min(pi_old / pi_sampler, 2)" in card["formula"]
    loads = [path for path, _ in server.asked if path in ("/v1/load_lora_adapter", "/collective_rpc")]
    assert len(loads) >= 3


# ---- weights


def test_weights_correct_a_sampler_that_is_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    """A sampler that states log-probs 0.5 too low: without weights nothing changes, with them each token counts e^0.5."""
    from grpo_exp.rollout.torch import TorchEngine

    honest, found = TorchEngine.sample, {}

    def off(self: TorchEngine, *args: Any) -> Rollout:
        rollout = honest(self, *args)
        rollout.behaviour_logp[rollout.mask] -= 0.5
        return rollout

    monkeypatch.setattr(TorchEngine, "sample", off)
    monkeypatch.chdir(tmp_path)
    Path("letters.py").write_text(LETTERS)
    for limit in (0, 1.2, 5):
        words = [*SMALL, "steps=1", "beta=0", f"rollout.weight_max={limit}", "eval.every=0"]
        answer = call(capsys, *words, "reward=custom", "reward.path=letters.py:score", f"hydra.run.dir=run{limit}")
        assert answer.code == 0, answer.err
        lines = Path(f"run{limit}/metrics.jsonl").read_text().splitlines()
        found[limit] = next(row for row in map(json.loads, lines) if row["kind"] == "train")
    assert "mismatch/weight_mean" not in found[0]
    assert found[1.2]["mismatch/weight_mean"] == pytest.approx(1.2)
    assert found[5]["mismatch/weight_mean"] == pytest.approx(2.718281828**0.5, rel=1e-3)
    assert all(row["mismatch/abs_mean"] == pytest.approx(0.5, abs=1e-3) for row in found.values())
    assert found[0]["grad/norm"] > 0
    assert found[1.2]["grad/norm"] == pytest.approx(1.2 * found[0]["grad/norm"], rel=1e-3)
    assert found[5]["grad/norm"] == pytest.approx(2.718281828**0.5 * found[0]["grad/norm"], rel=1e-3)


def test_weights_need_a_loss_that_has_them() -> None:
    with pytest.raises(ConfigError, match=r"rollout.weight_max=2.*Use rollout.weight_max=0"):
        config.build(compose(["model=tiny_random", "algo=dpo", "rollout.weight_max=2"]))
    assert sampled(policy()).mask.any()
