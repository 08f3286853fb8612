"""The torch engine against transformers' own decoding, the training forward, and the distribution it claims to sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toy_policy import examples, move, plain_logp, policy, prompts

from grpo_exp import tiny
from grpo_exp.batch import Prompts, Rollout, TokenBatch
from grpo_exp.ops import unpack
from grpo_exp.policy import Policy
from grpo_exp.rollout.base import Sampling, uniforms
from grpo_exp.rollout.torch import TorchEngine

VOCABULARY = len(tiny.tokenizer())
KEY = (0, 0, 1)
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def engine(**changes: Any) -> TorchEngine:
    return TorchEngine(**({"kind": "torch", "top_p": 1.0, "top_k": 0, "weight_max": 0.0, "stop": []} | changes))


def sampled(
    model: Policy,
    temperature: float = 1.0,
    tokens: int = 12,
    samples: int = 4,
    key: tuple[int, int, int] = KEY,
    rows: int = 100,
    asked: Prompts | None = None,
    **changes: Any,
) -> Rollout:
    return engine(**changes).sample(model, asked or prompts(model), Sampling(temperature, tokens, samples, key), rows)


def as_batch(rollout: Rollout) -> TokenBatch:
    asked = rollout.prompts
    return TokenBatch(
        asked.tokens, asked.mask, rollout.group, rollout.tokens, rollout.mask, rollout.mask, support=rollout.support
    )


def ending(architecture: str = "qwen") -> Policy:
    """A model that ends its completions after a few tokens: a quarter of the vocabulary ends them."""
    model = policy(architecture)
    model.eos_ids = [2, *range(3, VOCABULARY, 4)]
    return model


@pytest.mark.parametrize("architecture", ["llama", "qwen", "lora"])
@pytest.mark.parametrize("sampler", [{}, {"top_p": 0.8}, {"top_k": 5}, {"top_p": 0.7, "top_k": 10}])
def test_log_probs_while_sampling_are_those_of_the_training_forward(architecture: str, sampler: dict[str, Any]) -> None:
    model = ending(architecture)
    rollout = sampled(model, temperature=1.3, **sampler)
    assert len(set(rollout.mask.sum(-1).tolist())) > 1  # rows left at different times
    again = model.forward(as_batch(rollout), 1.3).logp
    torch.testing.assert_close(rollout.behaviour_logp, again, rtol=0, atol=1e-4)
    assert (rollout.behaviour_logp[rollout.mask] < 0).any()
    assert not rollout.behaviour_logp[~rollout.mask].any()
    assert (rollout.support is None) == (not sampler)
    if not sampler:
        torch.testing.assert_close(again, plain_logp(model, as_batch(rollout), 1.3), rtol=0, atol=1e-4)


@pytest.mark.parametrize("sampler", [{}, {"top_p": 0.8, "top_k": 20}])
def test_the_same_samples_however_many_rows_at_a_time(sampler: dict[str, Any]) -> None:
    model = ending()
    whole = sampled(model, **sampler)
    for rows in (1, 3, 5, 11):
        part = sampled(model, rows=rows, **sampler)
        assert torch.equal(part.tokens, whole.tokens)
        assert torch.equal(part.mask, whole.mask)
        assert torch.equal(part.finished, whole.finished)
        assert part.texts == whole.texts
        torch.testing.assert_close(part.behaviour_logp, whole.behaviour_logp, rtol=0, atol=1e-5)
        if sampler:
            assert part.support is not None and whole.support is not None
            assert torch.equal(part.support, whole.support)


def test_a_sample_depends_on_seed_step_prompt_and_number_alone() -> None:
    model = ending()
    asked = prompts(model)
    few = sampled(model, samples=2)
    many = sampled(model, samples=5, rows=4)
    for prompt in range(3):
        for sample in range(2):
            one, other = few.tokens[2 * prompt + sample], many.tokens[5 * prompt + sample]
            width = min(len(one), len(other))
            assert torch.equal(one[:width], other[:width])
    # Other prompts beside it, or a longer limit, do not touch a row either.
    alone = sampled(model, samples=2, asked=Prompts(asked.tokens[:1], asked.mask[:1], asked.texts[:1], asked.examples[:1]))
    assert alone.texts == few.texts[:2]
    longer = sampled(model, samples=2, tokens=30)
    assert all(text == short or text.startswith(short) for text, short in zip(longer.texts, few.texts, strict=True))
    assert torch.equal(longer.tokens[:, :4], few.tokens[:, :4])
    # Seed, stream and step all matter, and so do prompt and number.
    numbers = [uniforms(Sampling(1.0, 6, 2, key), 3) for key in ((0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 2))]
    rows = torch.cat(numbers).tolist()
    assert len({tuple(row) for row in rows}) == len(rows) == 24
    assert all(0 <= u < 1 for row in rows for u in row)


def test_uniforms_are_uniform() -> None:
    u = uniforms(Sampling(1.0, 100, 10, KEY), 10).flatten().double()
    counts = torch.histc(u, bins=20, min=0, max=1)
    assert ((counts - 500) ** 2 / 500).sum() < 43.8  # chi-square with 19 degrees of freedom, 1 in 1000
    assert abs(torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1].item()) < 0.04


@pytest.mark.parametrize("architecture", ["llama", "qwen"])
def test_temperature_zero_is_greedy_decoding(architecture: str) -> None:
    model = policy(architecture)
    asked = prompts(model)
    for ends in ([2], [2, 20, 33, 47, 60, 71]):
        model.eos_ids = ends
        ours = sampled(model, temperature=0, samples=1, tokens=15, asked=asked)
        theirs = model.model.generate(
            asked.tokens,
            attention_mask=asked.mask.long(),
            do_sample=False,
            max_new_tokens=15,
            eos_token_id=ends,
            pad_token_id=model.pad_id,
        )[:, asked.tokens.shape[1] :]
        assert torch.equal(ours.tokens, theirs)
        torch.testing.assert_close(ours.behaviour_logp, model.forward(as_batch(ours), 1.0).logp, rtol=0, atol=1e-4)
    assert ours.finished.any()  # the second set of ends was met


def chi_square(tokens: torch.Tensor, probability: torch.Tensor) -> float:
    """Pearson's statistic in standard deviations above its mean, tokens expected less than five times pooled."""
    expected = probability.double() * len(tokens)
    observed = torch.bincount(tokens, minlength=len(probability)).double()
    rare = expected < 5
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    observed = torch.cat([observed[~rare], observed[rare].sum()[None]])
    kept = expected > 0
    assert observed[~kept].sum() == 0
    degrees = int(kept.sum()) - 1
    assert degrees > 0
    return float((((observed - expected)[kept] ** 2 / expected[kept]).sum() - degrees) / (2 * degrees) ** 0.5)


@pytest.mark.parametrize(
    ("temperature", "sampler"),
    [(1.0, {}), (2.0, {}), (1.0, {"top_k": 6}), (1.5, {"top_p": 0.6}), (1.5, {"top_k": 12, "top_p": 0.7})],
)
def test_frequencies_follow_the_distribution(temperature: float, sampler: dict[str, Any]) -> None:
    """The first token of many samples, against probabilities that transformers' own warpers make."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    model = policy("qwen")
    asked = model.prompts(examples("9+9=?"))
    rollout = sampled(model, temperature, tokens=1, samples=4000, rows=4000, asked=asked, **sampler)
    logits = model.model(asked.tokens).logits[:, -1].detach()
    logits = TemperatureLogitsWarper(temperature)(asked.tokens, logits)
    if "top_k" in sampler:
        logits = TopKLogitsWarper(sampler["top_k"])(asked.tokens, logits)
    if "top_p" in sampler:
        logits = TopPLogitsWarper(sampler["top_p"])(asked.tokens, logits)
    probability = torch.softmax(logits[0], -1)
    tokens = rollout.tokens[:, 0]
    assert chi_square(tokens, probability) < 3.5
    torch.testing.assert_close(rollout.behaviour_logp[:, 0], probability.log()[tokens], rtol=0, atol=1e-5)
    if sampler:
        assert rollout.support is not None
        kept = unpack(rollout.support, VOCABULARY)[:, 0]
        assert torch.equal(kept, torch.isfinite(logits).expand_as(kept))
        assert 1 < kept[0].sum() < VOCABULARY
    else:
        assert chi_square(tokens, torch.softmax(logits[0] * 1.3, -1)) > 10  # the test can tell another temperature


def test_frequencies_of_the_second_token() -> None:
    """Drawn after the cache was used: the sum over first tokens of p(first) p(second | first)."""
    model = policy("llama")
    model.eos_ids = [2]
    asked = model.prompts(examples("9+9=?"))
    rollout = sampled(model, tokens=2, samples=4000, rows=1500, asked=asked)
    first = torch.softmax(model.model(asked.tokens).logits[0, -1].detach(), -1)  # [V]
    first[2] = 0  # those ended
    both = torch.cat([asked.tokens.expand(VOCABULARY, -1), torch.arange(VOCABULARY)[:, None]], 1)
    second = torch.softmax(model.model(both).logits[:, -1].detach(), -1)  # [V, V]
    going = rollout.mask[:, 1]
    assert chi_square(rollout.tokens[going, 1], (first / first.sum()) @ second) < 3.5


def test_a_token_that_was_cut_off_is_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where rounding puts a step into the cumulative distribution at a token of probability 0."""
    model = policy()
    last = VOCABULARY - 1
    monkeypatch.setattr(torch, "searchsorted", lambda cumulative, point, right: torch.full_like(point, last, dtype=torch.long))
    rollout = sampled(model, top_k=3, tokens=4)
    assert rollout.support is not None
    kept = unpack(rollout.support, VOCABULARY).gather(-1, rollout.tokens[..., None]).squeeze(-1)
    assert kept[rollout.mask].all()
    assert torch.isfinite(rollout.behaviour_logp).all()


# ---- how completions end


@pytest.mark.parametrize("pad_is_eos", [False, True])
def test_the_first_end_of_sequence_counts_and_ends_the_row(pad_is_eos: bool) -> None:
    model = ending()
    if pad_is_eos:
        model.pad_id = model.eos_ids[0]
    rollout = sampled(model, samples=8, tokens=6)
    ends = torch.isin(rollout.tokens, torch.tensor(model.eos_ids))
    for row in range(24):
        length = int(rollout.mask[row].sum())
        assert rollout.mask[row, :length].all() and not rollout.mask[row, length:].any()
        assert not ends[row, : length - 1].any()
        assert rollout.finished[row] == ends[row, length - 1]
        assert rollout.finished[row] or length == 6
        assert (rollout.tokens[row, length:] == model.pad_id).all()
    assert 0 < rollout.finished.sum() < 24
    assert len({rollout.tokens[row, int(rollout.mask[row].sum()) - 1].item() for row in range(24) if rollout.finished[row]}) > 3
    completions = rollout.completions()
    assert [len(ids) for ids in completions.token_ids] == rollout.mask.sum(-1).tolist()
    assert completions.finished == rollout.finished.tolist()
    assert [e.id for e in completions.examples] == [f"e{g}" for g in rollout.group.tolist()]


def test_rows_are_ordered_by_prompt_and_as_wide_as_the_longest() -> None:
    model = policy()
    model.eos_ids = list(range(VOCABULARY))
    rollout = sampled(model, samples=2, tokens=9)
    assert rollout.group.tolist() == [0, 0, 1, 1, 2, 2]
    assert rollout.tokens.shape == (6, 1)
    assert rollout.finished.all()
    model.eos_ids = [10**6]
    rollout = sampled(model, samples=2, tokens=9)
    assert rollout.mask.all() and rollout.tokens.shape == (6, 9) and not rollout.finished.any()


def test_special_tokens_are_not_in_the_text() -> None:
    model = policy()
    rollout = sampled(model, samples=30, tokens=12)
    ended = [i for i in range(90) if rollout.finished[i]]
    assert ended  # about one in eight
    for i in range(90):
        ids = [t for t in rollout.tokens[i][rollout.mask[i]].tolist() if t > 3]
        assert rollout.texts[i] == "".join(model.tokenizer.convert_ids_to_tokens(ids))


def test_stop_strings_end_a_row_and_are_left_out_of_the_text() -> None:
    """The same samples as without them, cut at the first token that completes one, before the earliest it completes."""
    model = policy()
    free = sampled(model, samples=10, tokens=16)
    words = free.texts[4]
    last = max(k for k in range(1, len(words)) if words.find(words[k]) == k)
    stop = [words[last], words[last - 1 : last + 1]]  # one token completes both
    rollout = sampled(model, samples=10, tokens=16, stop=stop)
    hits = 0
    for i in range(30):
        every, ids = free.tokens[i][free.mask[i]], rollout.tokens[i][rollout.mask[i]]
        said = model.decode([every[:n].tolist() for n in range(1, len(every) + 1)])
        length, text = next(((n, t) for n, t in enumerate(said, 1) if any(s in t for s in stop)), (len(every), said[-1]))
        places = [text.find(s) for s in stop if s in text]
        hits += bool(places)
        assert torch.equal(ids, every[:length])  # the mask holds the stop string
        assert rollout.texts[i] == (text[: min(places)] if places else text)
        assert rollout.finished[i] == (bool(places) or free.finished[i])
        torch.testing.assert_close(rollout.behaviour_logp[i, :length], free.behaviour_logp[i, :length], rtol=0, atol=1e-5)
    assert 0 < hits < 30
    assert rollout.texts[4] == words[: last - 1]


def test_the_smallest_random_number_draws_the_first_token_that_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_exp.rollout import draw as module

    model = policy()
    monkeypatch.setattr(module, "uniforms", lambda sampling, n: torch.zeros(n * sampling.samples, sampling.max_new_tokens))
    rollout = sampled(model, top_k=3, tokens=4)
    assert rollout.support is not None
    first = unpack(rollout.support, VOCABULARY).int().argmax(-1)
    assert torch.equal(rollout.tokens[rollout.mask], first[rollout.mask])


def test_dropout_is_off_while_sampling_and_the_model_is_left_as_it_was() -> None:
    model = policy("lora", lora_dropout=0.5)
    one = sampled(model)
    torch.manual_seed(123)
    assert torch.equal(sampled(model).tokens, one.tokens)
    model.forward(as_batch(one), 1.0, train=True)  # turns dropout on, and off again
    assert torch.equal(sampled(model).tokens, one.tokens)
    assert not any(p.grad is not None for p in model.model.parameters())
    move(model, 0.5)
    assert not torch.equal(sampled(model).tokens, one.tokens)  # the adapter's weights matter


def test_bfloat16_sampling_is_near_its_training_forward() -> None:
    model = policy("qwen", torch.bfloat16)
    rollout = sampled(model)
    gap = (rollout.behaviour_logp - model.forward(as_batch(rollout), 1.0).logp)[rollout.mask].abs()
    assert rollout.behaviour_logp.dtype == torch.float32
    assert gap.mean() < 0.05
