"""DPO: which rows it learns from, its loss over rows, stored pairs and their remembered reference, and whole runs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command import ROOT, call
from toy_policy import batch, policy

from grpo_exp import config, run
from grpo_exp.algos.dpo import DPO
from grpo_exp.batch import Example, Outputs, PairBatch
from grpo_exp.compose import compose
from grpo_exp.errors import ConfigError
from grpo_exp.evaluate import EvalOptions
from grpo_exp.kl import Reference
from grpo_exp.memory import Rows
from grpo_exp.pairs import PairEvaluator, Pairs, pair_batch
from grpo_exp.policy import Policy
from grpo_exp.prompt_order import PromptOrder

Row = dict[str, Any]


def dpo(**changes: Any) -> DPO:
    values: Row = {"name": "dpo", "kind": "dpo", "beta": 0.1, "G": 2, "pairs": "mined", "margin": 0.0, "loss_type": "sigmoid"}
    values |= {"label_smoothing": 0.0, "gamma": 0.0, "reference": Reference("fixed", 1, 0.6)}
    return DPO(**(values | changes))


PAIRS = [
    Example(f"p{i}", f"{i}+{2 * i}=?", category="ab"[i % 2], chosen=f"<answer>{3 * i}</answer>", rejected=f"{i}" * (1 + i))
    for i in range(8)
]

# ---- mined


def test_mined_rows_are_the_best_and_the_worst_of_their_prompt() -> None:
    model = policy()
    sampled = batch(model).with_(reward=torch.tensor([0.5, 1.0, 0.0, 0.5, 2.0, 1.0]))  # groups 0 2 1 0 2 1
    algorithm = dpo()
    picked = algorithm.select(sampled)
    assert isinstance(picked, PairBatch)
    assert algorithm.measured() == {"dpo/pairs": 2, "dpo/pair_frac": pytest.approx(2 / 3)}
    for row, of in enumerate([5, 2, 4, 1]):  # group 1, then group 2, each best first; group 0 is a tie
        length = int(sampled.mask[of].sum())
        assert picked.mask[row].sum() == length
        assert torch.equal(picked.tokens[row, :length], sampled.tokens[of, :length])
        mine, theirs = (b.prompt_tokens[b.group[r]][b.prompt_mask[b.group[r]]] for b, r in ((picked, row), (sampled, of)))
        assert torch.equal(mine, theirs)


def test_without_contrast_there_is_nothing_to_learn_from() -> None:
    sampled = batch(policy()).with_(reward=torch.ones(6))
    algorithm = dpo()
    assert len(algorithm.select(sampled)) == 0
    assert algorithm.measured()["dpo/pairs"] == 0


# ---- the loss over rows


def stored(model: Policy, examples: list[Example] = PAIRS, longest: int = 40) -> PairBatch:
    return pair_batch(model, examples, longest)[0]


@pytest.mark.parametrize("loss_type", ["sigmoid", "ipo_mean", "simpo"])
@pytest.mark.parametrize("rows", [2, 3, 6, 16])
def test_micro_batches_and_padding_change_nothing(loss_type: str, rows: int) -> None:
    """The loss of all pairs is that of the parts; a micro-batch has no odd number of rows; more padding adds nothing."""
    model, algorithm = policy("qwen"), dpo(loss_type=loss_type, pairs="stored")
    whole = stored(model)
    noise = torch.linspace(-1, 0.5, whole.tokens.numel()).view(whole.tokens.shape)
    whole = whole.with_(ref_logp=(model.forward(whole, 1.0).logp + noise).masked_fill(~whole.mask, 7.0))
    wanted = algorithm.loss(model.forward(whole, 1.0), whole)
    parts = [(micro, algorithm.loss(model.forward(micro, 1.0), micro)) for _, micro in whole.split(rows)]
    assert all(len(micro) % 2 == 0 for micro, _ in parts)
    torch.testing.assert_close(sum(part.total for _, part in parts), wanted.total, rtol=1e-5, atol=1e-5)
    for name, (total, count) in wanted.sums.items():
        torch.testing.assert_close(sum(p.sums[name][0] for _, p in parts), total, rtol=1e-4, atol=1e-4, msg=name)
        assert sum(int(p.sums[name][1]) for _, p in parts) == int(count) == 8
    grow = {n: torch.nn.functional.pad(getattr(whole, n), (0, 3), value=1) for n in ("tokens", "ref_logp")}
    masks = {n: torch.nn.functional.pad(getattr(whole, n), (0, 3)) for n in ("mask", "loss_mask")}
    padded = whole.with_(**grow, **masks)
    torch.testing.assert_close(algorithm.loss(model.forward(padded, 1.0), padded).total, wanted.total, rtol=1e-5, atol=1e-5)


def test_what_is_logged() -> None:
    """Two pairs of one and two tokens; the reference is one nat below the policy on chosen tokens, equal on rejected ones."""
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 0]], dtype=torch.bool)
    logp = torch.tensor([[-1.0, -2.0], [-3.0, 0.0], [-1.0, -1.0], [-5.0, 0.0]])
    tokens, prompt = torch.zeros(4, 2, dtype=torch.long), torch.zeros(2, 1, dtype=torch.long)
    group = torch.tensor([0, 0, 1, 1])
    pairs = PairBatch(
        prompt, prompt == 0, group, tokens, mask, mask, ref_logp=logp - torch.tensor([1.0, 0.0, 1.0, 0.0])[:, None]
    )
    sums = dpo(pairs="stored").loss(Outputs(logp, logp), pairs).sums
    assert {name: float(total / count) for name, (total, count) in sums.items() if name != "loss/policy"} == pytest.approx(
        {"dpo/margin": 0.2, "dpo/accuracy": 1.0, "logp/chosen": -2.5, "logp/rejected": -4.0}
        | {"length/chosen": 2.0, "length/rejected": 1.0}
    )


def test_much_longer_chosen_completions_are_told_once() -> None:
    algorithm = dpo()
    step = {"dpo/pairs": 16.0, "length/chosen": 31.0, "length/rejected": 20.0}
    assert [algorithm.observe(step) is None for _ in range(3)] == [True, True, True]
    algorithm, saved = dpo(), json.loads(json.dumps(algorithm.state()))
    algorithm.load(saved)
    assert "longer: 31 tokens on average against 20, over 64 pairs" in str(algorithm.observe(step))
    assert algorithm.observe(step) is None
    meaned = dpo(loss_type="simpo")
    said = next(filter(None, (meaned.observe(step) for _ in range(6))))
    assert "longer" in said and "simpo" not in said  # which it is
    even = dpo()
    assert not any(even.observe(step | {"length/chosen": 29.0}) for _ in range(20))
    assert even.observe({"reward/mean": 1.0}) is None  # a step without pairs


# ---- stored pairs


def test_prompt_and_completion_are_joined_as_ids_with_one_end() -> None:
    model = policy()
    made, cut = pair_batch(model, PAIRS[:2], 40)
    for row, text in enumerate([PAIRS[0].chosen, PAIRS[0].rejected, PAIRS[1].chosen, PAIRS[1].rejected]):
        ids = made.tokens[row][made.mask[row]].tolist()
        assert ids == [*model.tokenizer(text, add_special_tokens=False)["input_ids"], model.eos_ids[0]]
    prompt = made.prompt_tokens[1][made.prompt_mask[1]].tolist()
    assert prompt == model.encode_prompt(PAIRS[1].prompt, str(PAIRS[1].prompt))
    assert made.group.tolist() == [0, 0, 1, 1] and not any(cut)


def test_a_completion_that_is_cut_has_no_end_and_is_counted() -> None:
    model = policy()
    made, cut = pair_batch(model, PAIRS[:1], 3)
    assert cut == [True, False]
    assert model.eos_ids[0] not in made.tokens[0].tolist() and made.mask[0].sum() == 3
    source = Pairs(model, PAIRS[:1], PromptOrder(PAIRS[:1], 0, 0), 1, 3, keep_reference=True)
    assert source.draw(1).metrics["length/truncated_frac"] == 0.5


BASE = ["model=tiny_random", "track=quiet", "hardware.threads=1", "eval.start=false", "checkpoint.export=false", "lr=1e-3"]


def pairs_file(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "pairs.jsonl"
    lines = [{"prompt": e.prompt, "chosen": e.chosen, "rejected": e.rejected, "category": e.category} for e in PAIRS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def trained(folder: Path, *words: str) -> list[Row]:
    composed = compose([*BASE, *words])
    plain = config.resolved(composed)
    folder.mkdir(parents=True, exist_ok=True)
    run.train(config.build(composed), plain, set(), folder)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def offline(folder: Path, *words: str) -> list[Row]:
    data = ["data=preferences", f"data.path={pairs_file(folder)}", "data.split=2", "max_new_tokens=24"]
    given = ["prompts_per_step=3", "objective.metric=eval/pair_accuracy", *data, *words]
    return trained(folder / "run", *([] if "algo" in str(words) else ["algo=dpo_offline"]), *given)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each use of the reference."""
    seen: list[int] = []
    reference = Policy.reference

    @contextlib.contextmanager
    def counted(self: Policy) -> Iterator[None]:
        seen.append(1)
        with reference(self):
            yield

    monkeypatch.setattr(Policy, "reference", counted)
    return seen


def test_the_second_epoch_makes_no_reference_pass(tmp_path: Path, passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Six training pairs, three a step: steps 1 and 2 are the first epoch. The last evaluation makes the third pass."""
    found = offline(tmp_path / "kept", "steps=6")
    assert len(passes) == 2 + 1
    keep = Pairs.__init__
    monkeypatch.setattr(Pairs, "__init__", lambda self, *args, keep_reference: keep(self, *args, keep_reference=False))
    again = offline(tmp_path / "anew", "steps=6")
    assert len(passes) == 3 + 6 + 1
    for one, other in zip(found, again, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() & {"loss/total", "dpo/margin", "grad/norm", "eval/pair_margin"}:
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6), name
    assert found[5]["dpo/margin"] > 0.01, "the reference is not what the policy has become"


def test_what_is_remembered_of_the_reference_is_saved() -> None:
    model = policy()
    one, other = (Pairs(model, PAIRS, PromptOrder(PAIRS, 0, 0), 2, 40, keep_reference=True) for _ in range(2))
    assert one.tensors() == {}
    other.load(one.state(), one.tensors())
    while len(one._reference) < len(PAIRS):
        drawn = one.draw(1)
        drawn.keep(drawn.batch.with_(ref_logp=torch.rand(drawn.batch.tokens.shape)))
    other.load(one.state(), {name: x.clone() for name, x in one.tensors().items()})
    (mine, theirs) = (source.draw(2).batch for source in (one, other))
    assert mine.ref_logp is not None and theirs.ref_logp is not None and mine.ref_logp.any()
    assert torch.equal(mine.tokens, theirs.tokens) and torch.equal(mine.ref_logp, theirs.ref_logp)


def test_a_reference_that_moves_is_not_remembered(tmp_path: Path, passes: list[int]) -> None:
    found = offline(tmp_path, "steps=6", "algo=dpo_offline", "algo.reference.update=sync")
    assert len(passes) == 6 + 1
    assert [row["dpo/margin"] for row in found if row["kind"] == "train"] == pytest.approx([0.0] * 6, abs=1e-5)


def test_simpo_makes_no_reference_pass(tmp_path: Path, passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Policy, "freeze_reference", lambda self, moves=False: passes.append(1))
    found = offline(tmp_path, "steps=3", "algo=simpo", "algo.pairs=stored")
    assert not passes
    assert found[-1]["kind"] == "eval" and "eval/pair_accuracy" in found[-1]


def test_stored_pairs_are_learned(tmp_path: Path) -> None:
    found = offline(tmp_path, "steps=12", "lr=3e-3", "optim.warmup_steps=0")
    train = [row for row in found if row["kind"] == "train"]
    assert train[0]["dpo/margin"] == 0 and train[0]["loss/total"] == pytest.approx(0.6931, abs=1e-4)
    assert train[-1]["dpo/margin"] > 0.5 and train[-1]["dpo/accuracy"] == 1
    assert "kl/mean" not in train[-1], "on completions of another policy it would be no KL"
    assert found[-1]["eval/pair_accuracy"] == 1


# ---- online runs


def test_online_pairs_are_mined_from_the_runs_own_samples(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text("def score(completions):\n    return [sum(map(str.isdigit, t)) / 8 for t in completions]\n")
    words = ["reward=custom", f"reward.path={tmp_path}/r.py:score", "data.train=16", "data.heldout=4", "prompts_per_step=8"]
    found = trained(tmp_path / "run", "algo=dpo", *words, "G=4", "steps=12", "max_new_tokens=8", "lr=3e-3", "eval.samples=1")
    train = [row for row in found if row["kind"] == "train"]
    early, late = (sum(row["reward/mean"] for row in part) / 5 for part in (train[:5], train[-5:]))
    assert late > early + 0.15
    assert 0 < train[0]["dpo/pairs"] <= 8 and train[0]["dpo/pair_frac"] == train[0]["dpo/pairs"] / 8
    assert train[0]["kl/mean"] == 0 and train[0]["mismatch/abs_max"] < 1e-3


def test_steps_without_pairs_change_no_weights(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text("def score(completions):\n    return [0.3] * len(completions)\n")
    words = ["reward=custom", f"reward.path={tmp_path}/r.py:score", "data.train=8", "data.heldout=4", "G=2"]
    found = trained(tmp_path / "run", "algo=dpo", *words, "steps=2", "prompts_per_step=2", "max_new_tokens=4", "eval.samples=1")
    assert [row["dpo/pairs"] for row in found if row["kind"] == "train"] == [0, 0]
    assert not any("grad/norm" in row for row in found)


@pytest.mark.parametrize("name", ["dpo", "dpo_offline", "ipo", "simpo", "reward_model"])
def test_every_metric_is_in_the_glossary(name: str, tmp_path: Path) -> None:
    glossary = (ROOT / "docs" / "metrics.md").read_text()
    stored = [f"algo={name}"] if name in ("dpo_offline", "reward_model") else [f"algo={name}", "algo.pairs=stored"]
    found = offline(tmp_path, *stored, "steps=2", "eval.every=1")
    names = {n.removesuffix("_low").removesuffix("_high") for row in found for n in row if "/" in n}
    assert names >= {"loss/total", "length/chosen", "eval/pair_accuracy"}
    assert not [n for n in names if f"`{n}`" not in glossary]


# ---- pairs that are held out


def test_pair_accuracy_by_hand() -> None:
    """The algorithm prefers by what it is told; a tie counts half."""
    model = policy()

    class Told(DPO):
        def preference(self, now: Outputs, batch: Any) -> torch.Tensor:
            return torch.tensor([1.0, -2.0, 0.0, 4.0])[: len(batch) // 2]

    algorithm = Told(**{name: getattr(dpo(pairs="stored"), name) for name in (f.name for f in dataclasses.fields(DPO))})
    options = EvalOptions(every=0, start=True, samples=1, temperature=0.0, max_items=0, max_new_tokens=30, seed=0)
    model.freeze_reference()
    found = PairEvaluator(model, algorithm, PAIRS[:4], options, rows=Rows(100))(7)
    assert found.items["eval/pair_accuracy"].tolist() == [1, 0, 0.5, 1]
    assert found.metrics == {"eval/pair_accuracy": 0.625, "eval/pair_margin": 0.75}
    texts = {"prompt": "1+2=?", "chosen": PAIRS[1].chosen, "rejected": PAIRS[1].rejected}
    assert found.rows[1] == {"step": 7, "category": "b", "id": "p1", "margin": -2.0} | texts
    value, low, high = found.intervals()["eval/pair_accuracy"]
    assert low <= value <= high


# ---- what is refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"G": 1}, "G=1: pairs are mined from each prompt's samples, which needs two at least"),
        ({"loss_type": "ipo", "label_smoothing": 0.1}, "algo.label_smoothing=0.1: algo.loss_type=ipo has none"),
        ({"gamma": 0.5}, "algo.gamma=0.5: algo.loss_type=sigmoid has none"),
        (
            {"loss_type": "simpo", "reference": Reference("ema", 1, 0.5)},
            "algo.reference.update=ema: algo.loss_type=simpo has no",
        ),
    ],
)
def test_options_that_do_not_fit(changes: Row, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        dpo(**changes)


@pytest.mark.parametrize("word", ["beta=0", "beta=-0.1", "beta=nan", "algo.label_smoothing=0.5", "algo.loss_type=dpo"])
def test_options_out_of_range(word: str) -> None:
    with pytest.raises(ConfigError, match=word.split("=")[0].split(".")[-1]):
        config.build(compose(["algo=dpo", "model=tiny_random", word]))


def test_pairs_are_asked_for_before_the_model_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Policy, "load", lambda *args: pytest.fail("the model was loaded"))
    answer = call(capsys, "algo=dpo_offline", "model=tiny_random", "track=quiet")
    assert answer.code == 2
    assert "algo=dpo_offline learns from preference pairs, and 200 of 200 training items have none (train-" in answer.err
    assert "data.chosen= and data.rejected=" in answer.err
    path = pairs_file(tmp_path)
    words = ["algo=dpo_offline", "model=tiny_random", "track=quiet", "data=preferences", f"data.path={path}"]
    answer = call(capsys, *words)
    assert answer.code == 2
    assert "objective.metric='eval/pass@1'" in answer.err and "It measures eval/pair_accuracy" in answer.err
    assert "Use objective.metric=eval/pair_accuracy, or name the field of the answers with data.answer=" in answer.err
    (tmp_path / "held.jsonl").write_text('{"prompt": "1+1=?"}\n')
    answer = call(capsys, *words, "data.split=held.jsonl", "objective.metric=eval/pair_accuracy")
    assert answer.code == 2
    assert "is measured on held-out pairs, and 1 of 1 held-out items have none (heldout-row-1, ...)" in answer.err


def test_the_formula_says_what_is_computed() -> None:
    assert dpo().formula() == (
        "mean over pairs of [-log s(0.1 h)];  h = chosen - rejected, each the sum over tokens of log(pi / ref);  "
        "chosen, rejected: best and worst of 2 samples whose rewards differ by more than 0"
    )
    simpo = dpo(loss_type="simpo", gamma=1.0, pairs="stored").formula()
    assert simpo == "mean over pairs of [-log s(0.1 h - 1)];  h = chosen - rejected, each the mean over tokens of log pi"
    formulas = {dpo(loss_type=kind).formula() for kind in ("sigmoid", "hinge", "ipo", "ipo_mean", "simpo")}
    formulas |= {dpo(loss_type=kind, label_smoothing=0.1).formula() for kind in ("sigmoid", "robust")}
    assert len(formulas) == 7
