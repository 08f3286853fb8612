"""The reward model: where its score is read, that it learns, what it exports, and that `reward=model` gives the same scores."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command import call
from toy_policy import llama, move, options, policy

from grpo_exp import classifier
from grpo_exp.algos.reward_model import RewardModel, at_end
from grpo_exp.batch import Completions, Example
from grpo_exp.errors import ConfigError
from grpo_exp.frozen import Int8Linear, Waiting
from grpo_exp.pairs import pair_batch
from grpo_exp.policy import Policy
from grpo_exp.rewards.base import RewardSum
from grpo_exp.rewards.model import ModelReward

Row = dict[str, Any]
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
WORDS = ["seven", "a few", "none at all", "many", "some", "it is so", "who knows", "ask me later"]
PAIRS = [Example(f"p{i}", f"{i}+{7 * i}=?", chosen=f"<answer>{8 * i}</answer>", rejected=text) for i, text in enumerate(WORDS)]


def reward_model(centring: float = 0.0) -> RewardModel:
    return RewardModel("reward_model", "reward_model", centring, 10.0)


def with_head(architecture: str) -> Policy:
    """A toy policy with a head that is no longer zero; `lora` is llama with an adapter, as the tokenizer wants it."""
    made = policy(architecture)
    if architecture == "lora":
        made = Policy(options(adapter="lora"), llama(), made.tokenizer, made.device, torch.float32)
        move(made, 0.1)
    critic = reward_model().critic
    assert critic is not None
    made.attach_critic(critic)
    assert made.critic is not None
    torch.nn.init.normal_(made.critic.head.weight, generator=torch.Generator().manual_seed(2))
    return made


def rewards_of(model: Policy, examples: list[Example], longest: int = 40) -> torch.Tensor:
    """Ours, `[2 M]`."""
    batch = reward_model().select(pair_batch(model, examples, longest)[0])
    with torch.no_grad():
        return at_end(model.forward(batch, 1.0), batch)


def completions(examples: list[Example], finished: bool = True) -> Completions:
    """Chosen and rejected texts alternating."""
    texts = [str(text) for e in examples for text in (e.chosen, e.rejected)]
    both = [e for e in examples for _ in range(2)]
    return Completions(both, [str(e.prompt) for e in both], texts, [[0]] * len(texts), [finished] * len(texts))


def part(path: Path | None, **changes: Any) -> ModelReward:
    where = None if path is None else str(path)
    values: Row = {"kind": "model", "weight": 1.0, "role": "outcome", "path": where, "rows": 32, "device": "cpu"}
    return ModelReward(**(values | {"output": "score", "threshold": 0.0, "place": "same"} | changes))


# ---- where the score is read


@pytest.mark.parametrize("architecture", ["llama", "qwen", "lora"])
def test_the_score_is_read_at_the_end_of_sequence(architecture: str) -> None:
    """Against the model given one row at a time, whole: the head on the last hidden state of prompt, completion and eos."""
    model = with_head(architecture)
    assert model.critic is not None
    batch, _ = pair_batch(model, PAIRS, 40)
    wanted = []
    for row, g in enumerate(batch.group.tolist()):
        ids = torch.cat([batch.prompt_tokens[g][batch.prompt_mask[g]], batch.tokens[row][batch.mask[row]]])[None]
        assert ids[0, -1] == model.eos_ids[0]
        with torch.no_grad():
            hidden, _ = model.decoder(ids, torch.ones_like(ids), torch.arange(ids.shape[1])[None], use_cache=False)
            wanted.append(model.critic(hidden[:, -1]))
    torch.testing.assert_close(rewards_of(model, PAIRS), torch.cat(wanted), rtol=1e-4, atol=1e-4)
    cut = rewards_of(model, PAIRS, 3)
    assert not torch.allclose(cut[1], rewards_of(model, PAIRS)[1]), "a cut completion is another one"


def test_the_loss_pushes_the_rewards_of_a_pair_apart() -> None:
    model = with_head("llama")
    algorithm = reward_model()
    batch = algorithm.select(pair_batch(model, PAIRS, 40)[0])
    now = model.forward(batch, 1.0)
    assert now.values is not None
    now.values.retain_grad()
    found = algorithm.loss(now, batch)
    found.total.backward()
    assert now.values.grad is not None
    gradient = at_end(now._replace(values=now.values.grad), batch)
    assert (gradient[0::2] < 0).all() and (gradient[1::2] > 0).all()
    assert now.values.grad.count_nonzero() == 16, "no other token's value is in the loss"
    total, count = found.sums["length/chosen"]
    assert float(total / count) == pytest.approx(sum(len(model.encode_target(str(e.chosen))) for e in PAIRS) / 8)


@pytest.mark.parametrize("rows", [2, 6])
def test_micro_batches_change_nothing(rows: int) -> None:
    model, algorithm = with_head("qwen"), reward_model(0.1)
    batch = algorithm.select(pair_batch(model, PAIRS, 40)[0])
    whole = algorithm.loss(model.forward(batch, 1.0), batch).total
    parts = [algorithm.loss(model.forward(micro, 1.0), micro).total for _, micro in batch.split(rows)]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-5, atol=1e-5)


# ---- the export


@pytest.mark.parametrize("architecture", ["llama", "lora"])
@pytest.mark.parametrize("pad", ["own", "eos"])
def test_the_export_gives_the_same_rewards_without_our_code(architecture: str, pad: str, tmp_path: Path) -> None:
    """Loaded by transformers alone, its tokenizer padding in batches; also where the policy pads with its end of sequence."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = with_head(architecture)
    if pad == "eos":
        model.tokenizer.pad_token, model.pad_id = model.tokenizer.eos_token, model.eos_ids[0]
    before = {name: p.clone() for name, p in model.model.named_parameters()}
    classifier.export(model, tmp_path)
    assert all(torch.equal(p, before[name]) for name, p in model.model.named_parameters()), "the policy stays as it is"
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.config.num_labels == 1 and loaded.config.pad_token_id == tokenizer.pad_token_id not in model.eos_ids
    assert torch.equal(loaded.score.weight.detach(), model.critic.head.weight.detach())  # type: ignore[union-attr]
    texts = [f"{e.prompt}{text}{tokenizer.eos_token}" for e in PAIRS for text in (e.chosen, e.rejected)]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right")
    with torch.no_grad():
        theirs = loaded(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, 0]
    torch.testing.assert_close(theirs, rewards_of(model, PAIRS), rtol=1e-4, atol=1e-4)


# ---- as a reward


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """A folder with a reward model, and the rewards that its policy gives to PAIRS."""
    folder = tmp_path_factory.mktemp("model") / "export"
    model = with_head("llama")
    move(model, 0.02)
    classifier.export(model, folder)
    return folder, rewards_of(model, PAIRS)


@pytest.mark.parametrize("rows", [1, 3, 32])
def test_the_reward_is_the_models_own_however_many_at_a_time(rows: int, exported: tuple[Path, torch.Tensor]) -> None:
    folder, wanted = exported
    found = torch.tensor(part(folder, rows=rows).score(completions(PAIRS)))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_chat_messages_are_joined_as_the_policy_joins_them(exported: tuple[Path, torch.Tensor]) -> None:
    folder, wanted = exported
    chat = [Example(e.id, [{"role": "user", "content": str(e.prompt)}], chosen=e.chosen, rejected=e.rejected) for e in PAIRS]
    torch.testing.assert_close(torch.tensor(part(folder).score(completions(chat))), wanted, rtol=1e-4, atol=1e-4)


def test_a_sample_that_was_cut_off_has_no_end(exported: tuple[Path, torch.Tensor]) -> None:
    folder, wanted = exported
    found = torch.tensor(part(folder).score(completions(PAIRS, finished=False)))
    assert (found - wanted).abs().min() > 1e-3


def test_between_calls_it_may_wait_in_the_cpus_memory(
    exported: tuple[Path, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it comes and goes is recorded; that it really moves needs a GPU."""
    folder, wanted = exported
    seen: list[str] = []
    here = Waiting.here

    @contextlib.contextmanager
    def watched(self: Waiting) -> Iterator[None]:
        seen.append("comes")
        with here(self):
            yield
        seen.append("goes")

    monkeypatch.setattr(Waiting, "here", watched)
    for place, expected in (("same", []), ("cpu", ["comes", "goes"] * 2)):
        seen.clear()
        scorer = part(folder, place=place)
        for _ in range(2):
            torch.testing.assert_close(torch.tensor(scorer.score(completions(PAIRS))), wanted, rtol=1e-4, atol=1e-4)
        assert seen == expected


def test_in_8_bits_it_says_nearly_the_same(exported: tuple[Path, torch.Tensor]) -> None:
    folder, wanted = exported
    scorer = part(folder, place="8bit")
    found = torch.tensor(scorer.score(completions(PAIRS)))
    assert not torch.equal(found, wanted)
    assert (found - wanted).abs().mean() < 0.1 * wanted.std()  # the toy's weights are far larger than a trained model's
    assert scorer._loaded is not None and isinstance(scorer._loaded[0].model.layers[0].mlp.up_proj, Int8Linear)


def test_output_and_threshold(exported: tuple[Path, torch.Tensor]) -> None:
    folder, wanted = exported
    middle = wanted.median().item()
    shifted = torch.tensor(part(folder, threshold=middle).score(completions(PAIRS)))
    torch.testing.assert_close(shifted, wanted - middle, rtol=1e-4, atol=1e-4)
    rewards = RewardSum({"model": part(folder, output="sigmoid", threshold=middle)})(completions(PAIRS))
    torch.testing.assert_close(rewards.outcome, (wanted - middle).sigmoid(), rtol=1e-4, atol=1e-4)
    clear = (wanted - middle).abs() > 1e-3
    assert torch.equal((rewards.outcome > 0.5)[clear], (wanted > middle)[clear])


def change(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text()) | values
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def test_what_is_no_reward_model_is_refused_at_once(exported: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(exported[0], folder)
    with pytest.raises(ConfigError, match=r"reward.path=null: the model reward needs a folder"):
        part(None)
    with pytest.raises(ConfigError, match=r"nowhere.*there is no .*config.json"):
        part(tmp_path / "nowhere")
    change(folder, id2label={"0": "a", "1": "b"})
    with pytest.raises(ConfigError, match=r"LlamaForSequenceClassification has 2 labels"):
        part(folder)
    change(folder, architectures=["LlamaForCausalLM"])
    with pytest.raises(ConfigError, match=r"it holds LlamaForCausalLM. algo=reward_model trains"):
        part(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config.json cannot be read"):
        part(folder)


def test_what_does_not_belong_together_is_refused_at_first_use(exported: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    folder = tmp_path / "vocabulary"
    shutil.copytree(exported[0], folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"<extra{i}>" for i in range(50)])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"its tokenizer has ids up to \d+ and the model knows \d+ tokens"):
        part(folder).score(completions(PAIRS))
    folder = tmp_path / "headless"
    shutil.copytree(exported[0], folder)
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if k != "score.weight"}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"the weights of score.weight are missing"):
        part(folder).score(completions(PAIRS))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"the reward model cannot be loaded"):
        part(folder).score(completions(PAIRS))


# ---- whole runs


BASE = ["model=tiny_random", "track=quiet", "hardware.threads=1"]


def test_from_pairs_to_a_reward(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on pairs, evaluate the run again, and train a policy towards what was exported."""
    monkeypatch.chdir(tmp_path)
    lines = [{"prompt": e.prompt, "chosen": e.chosen, "rejected": e.rejected} for e in PAIRS]
    Path("pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = ["data=preferences", "data.path=pairs.jsonl", "data.split=3", "data.chat=false"]
    few = ["steps=10", "prompts_per_step=5", "lr=3e-4", "optim.warmup_steps=0", "max_new_tokens=24"]
    answer = call(capsys, "algo=reward_model", *BASE, *data, *few, "hydra.run.dir=rm")
    assert (answer.code, answer.err) == (0, "")
    rows = [json.loads(line) for line in Path("rm/metrics.jsonl").read_text().splitlines()]
    train = [row for row in rows if row["kind"] == "train"]
    assert train[0]["loss/total"] == pytest.approx(0.6931, abs=1e-4)
    assert train[-1]["loss/total"] < 0.1 and train[-1]["pair/accuracy"] == 1
    assert json.loads(Path("rm/run.json").read_text())["objective"] == rows[-1]["eval/pair_accuracy"] == 1

    margins = {
        row["id"]: row["margin"] for row in map(json.loads, Path("rm/eval.jsonl").read_text().splitlines()) if row["step"]
    }
    held = [e for i, e in enumerate(PAIRS) if f"row-{i + 1}" in margins]
    scores = torch.tensor(part(Path("rm/export")).score(completions(held)))
    ours = torch.tensor([margins[f"row-{PAIRS.index(e) + 1}"] for e in held])
    torch.testing.assert_close(scores[0::2] - scores[1::2], ours, rtol=1e-4, atol=1e-4)

    answer = call(capsys, "evaluate", "rm")
    assert (answer.code, answer.err) == (0, "")
    assert "3 held-out pairs of preferences" in answer.out and "pair_accuracy %" in answer.out

    online = ["steps=1", "prompts_per_step=2", "G=2", "max_new_tokens=6", "data.train=4", "data.heldout=4"]
    answer = call(capsys, *BASE, *online, "reward=model", "reward.path=rm/export", "hydra.run.dir=online")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(Path("online/metrics.jsonl").read_text().splitlines()[1])["reward/part/model"] != 0


def test_wrong_uses_of_a_reward_model(
    exported: tuple[Path, torch.Tensor], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Policy, "load", lambda *args: pytest.fail("the policy was loaded"))
    for words in (["evaluate"], ["pairs"]):
        answer = call(capsys, *words, str(exported[0]))
        assert answer.code == 2
        assert "is a reward model, which answers no prompts: use it as reward=model" in answer.err
    answer = call(capsys, *BASE, "reward=model", "reward.path=nowhere")
    assert answer.code == 2 and "reward.path='nowhere'" in answer.err
    answer = call(capsys, *BASE, "algo=reward_model")
    assert answer.code == 2 and "algo=reward_model learns from preference pairs, and 200 of 200" in answer.err
