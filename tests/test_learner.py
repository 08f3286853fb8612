"""Steps that are not taken since numbers are not finite, and work that is done again since memory ran out."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from toy_loop import Recording, Row, loop, options
from toy_policy import batch, policy

from grpo_exp.batch import LossSum, Outputs, TokenBatch
from grpo_exp.checkpoint import load
from grpo_exp.errors import NumericsError, OutOfMemoryError
from grpo_exp.memory import Rows, ran_out
from grpo_exp.policy import Policy
from grpo_exp.train import Trainer

# ---- numbers that are not finite


@dataclass
class Breaking(Recording):
    """One optimizer step a step; `broken` says which of them, counted from 1, go wrong, and `how` in which way."""

    passes: int = 1
    parts: int = 1
    broken: tuple[int, ...] = ()
    how: str = "loss"

    def loss(self, now: Outputs, batch: TokenBatch) -> LossSum:
        result = super().loss(now, batch)
        if len(self.counts) not in self.broken:
            return result
        if self.how == "loss":
            return dataclasses.replace(result, total=result.total * math.nan)
        # The root of 0 is 0, and its slope is infinite.
        return dataclasses.replace(result, total=result.total + (now.logp.sum() - now.logp.sum().detach()).abs().sqrt())


def contents(trainer: Trainer) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Weights and the moments of AdamW, copied."""
    moments = [x.clone() for one in trainer.optimizer.state()["state"].values() for x in one.values()]
    return {name: p.clone() for name, p in trainer.policy.state().items()}, moments


def equal(one: tuple[dict[str, Tensor], list[Tensor]], other: tuple[dict[str, Tensor], list[Tensor]]) -> bool:
    same = all(torch.equal(one[0][name], other[0][name]) for name in one[0])
    return same and len(one[1]) == len(other[1]) and all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))


@pytest.mark.parametrize("how", ["loss", "gradient"])
def test_a_step_that_is_not_finite_is_as_if_it_had_not_been(tmp_path: Path, how: str) -> None:
    """On a batch that is always the same, four steps of which the second and third fail are two steps, bit for bit."""
    trainer, tracker = loop(tmp_path / "a", Breaking("b", "b", broken=(2, 3), how=how), options(max_skips=2), steps=4)
    trainer.run()
    plain, _ = loop(tmp_path / "b", Breaking("b", "b"), options(max_skips=2), steps=2)
    plain.run()
    assert equal(contents(trainer), contents(plain))
    assert [row["grad/skipped"] for row in tracker.rows] == [0, 1, 1, 0]
    assert ["grad/norm" in row for row in tracker.rows] == [True, False, False, True]
    assert [math.isfinite(row["loss/total"]) for row in tracker.rows] == [True, how != "loss", how != "loss", True]
    assert len(tracker.notes) == 2
    assert "step 3: the loss or the gradient is not finite" in tracker.notes[1] and "2 in a row" in tracker.notes[1]
    assert trainer.optimizer.skipped == 0


def test_one_of_several_optimizer_steps_is_left_out(tmp_path: Path) -> None:
    trainer, tracker = loop(tmp_path, Breaking("b", "b", passes=3, broken=(2,)), options(max_skips=1), steps=1)
    trainer.run()
    assert tracker.rows[0]["grad/skipped"] == 1 and math.isfinite(tracker.rows[0]["grad/norm"])
    assert {int(one["step"]) for one in trainer.optimizer.state()["state"].values()} == {2}


def test_too_many_in_a_row_end_the_run_with_its_batch_on_the_disk(tmp_path: Path) -> None:
    """Single ones before do not count: it is the row that ends it."""
    trainer, _ = loop(tmp_path / "checkpoints", Breaking("b", "b", broken=(1, 3, 4, 5)), options(max_skips=2), steps=9, every=1)
    with pytest.raises(NumericsError, match=r"step 5.*not finite.*2 optimizer steps before") as error:
        trainer.run()
    folder = tmp_path / "not-finite-step-000005"
    assert str(folder) in str(error.value)
    before = load(tmp_path / "checkpoints" / "step-000004")
    assert all(torch.equal(before.weights[name], p) for name, p in trainer.policy.state().items())
    assert not (tmp_path / "checkpoints" / "step-000005").exists()
    tensors, learned = load_file(folder / "batch.safetensors"), batch(policy("llama"))
    for name in ("prompt_tokens", "prompt_mask", "group", "tokens", "mask", "loss_mask"):
        assert torch.equal(tensors[name], getattr(learned, name)), name
    assert torch.equal(tensors["advantages"][:, 0], torch.arange(6.0))
    told = json.loads((folder / "batch.json").read_text())
    assert told["step"] == 5 and "not finite" in told["error"]
    assert [row["ids"] for row in told["rows"]] == [["e0"], ["e2"], ["e1"], ["e0"], ["e2"], ["e1"]]
    assert told["rows"][1]["prompt"] == "what is 100-1"
    completion = learned.tokens[1][learned.mask[1]].tolist()
    assert told["rows"][1]["completion"] == policy("llama").tokenizer.decode(completion)


def test_the_count_goes_on_after_a_checkpoint(tmp_path: Path) -> None:
    """Two of three failed before it: one more is let pass, and the next is not."""
    made = [loop(tmp_path, Breaking("b", "b", broken=(2, 3)), options(max_skips=3), steps=3, every=3)[0]]
    made[0].run()
    state = load(tmp_path / "step-000003")
    assert state.progress["skipped"] == 2
    resumed, tracker = loop(tmp_path, Breaking("b", "b", broken=(1, 2)), options(max_skips=3), steps=9)
    with pytest.raises(NumericsError, match="step 5"):
        resumed.run(state)
    assert [row["step"] for row in tracker.rows] == [4]


def test_weights_that_are_not_finite_are_never_written(tmp_path: Path) -> None:
    trainer, _ = loop(tmp_path, Breaking("b", "b"), options(), steps=3, every=1)
    draw = trainer.source.draw

    def poisoned(step: int) -> Any:
        if step == 3:
            trainer.optimizer.parameters[0].data.view(-1)[5] = math.inf
        return draw(step)

    trainer.source.draw = poisoned  # type: ignore[method-assign]
    trainer.optimizer.options.max_skips = 9
    with pytest.raises(NumericsError, match=r"step 3: 1 of \d+ tensors of weights are no longer finite"):
        trainer.run()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("step")) == ["step-000001", "step-000002"]


# ---- memory


ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to ..."),
    MemoryError(),
]


@dataclass
class Greedy(Recording):
    """Memory runs out in these micro-batches, counted over the whole run from 1, in the forward or in the backward pass."""

    at: Sequence[int] = ()
    places: random.Random = dataclasses.field(default_factory=random.Random)

    def loss(self, now: Outputs, batch: TokenBatch) -> LossSum:
        result = super().loss(now, batch)
        if len(self.seen) in self.at:
            error = self.places.choice(ERRORS)
            if self.places.random() < 0.5:
                raise error

            def fail(gradient: Tensor) -> None:
                raise error

            now.logp.register_hook(fail)  # the gradient of this micro-batch has begun to flow by then
        return result


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 5))])
def test_gradients_are_those_of_an_undisturbed_run(tmp_path: Path, seed: int) -> None:
    """Wherever memory runs out, and with whichever error: nothing counts twice and nothing is lost.

    Bit for bit those of a run that began with as few rows, and to 2e-6 of their norm (rounding) those of one that took all.
    """
    places = random.Random(seed)

    def run(at: Sequence[int], rows: int) -> tuple[Tensor, Row, Trainer, list[str]]:
        algorithm = Greedy("g", "g", passes=2, parts=1, at=at, places=places)
        trainer, tracker = loop(tmp_path, algorithm, options(), update_rows=rows, steps=1, lr=1e-9)
        trainer.run()
        gradient = torch.cat([p.grad.flatten() for p in trainer.optimizer.parameters if p.grad is not None])
        measured = {k: tracker.rows[0][k] for k in ("loss/total", "grad/norm", "x", "y", "entropy/mean")}
        return gradient, measured, trainer, tracker.notes

    at = [places.randint(1, 4), places.randint(5, 6)]  # two passes of two micro-batches, 4 and 2 rows, or three of 2
    gradient, measured, trainer, notes = run(at, rows=4)
    assert trainer.rows["update_rows"].size == 4 // 2 ** len(notes) and len(notes) in (1, 2)
    assert all("out of memory in the update" in note for note in notes)
    assert torch.equal(gradient, run((), trainer.rows["update_rows"].size)[0])
    calm, as_measured, *_ = run((), rows=6)
    assert (gradient - calm).norm() < 2e-6 * calm.norm()
    assert measured == pytest.approx(as_measured, rel=2e-6)


def test_log_probs_are_those_of_an_undisturbed_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer, tracker = loop(tmp_path, Recording("r", "r"), options(), update_rows=6)
    rows = batch(trainer.policy)
    calm = trainer.learner._forward(rows)
    forward = Policy.forward

    def greedy(self: Policy, some: TokenBatch, *args: Any, **more: Any) -> Outputs:
        result = forward(self, some, *args, **more)
        if len(some) > 2:
            raise MemoryError
        return result

    monkeypatch.setattr(Policy, "forward", greedy)
    torch.testing.assert_close(trainer.learner._forward(rows), calm, rtol=0, atol=1e-5)
    assert trainer.rows["update_rows"].size == 1 and len(tracker.notes) == 2  # 6, 3, 1


def test_one_row_that_does_not_fit_ends_it_with_what_could_be_changed() -> None:
    def work(rows: int) -> int:
        tried.append(rows)
        raise ERRORS[1]

    tried: list[int] = []
    rows = Rows(13, "hardware.rollout_rows", "prompts_per_step=4 G=8")
    with pytest.raises(OutOfMemoryError) as error:
        rows.attempt(work, "sampling", prompt=17, completion=5)
    assert tried == [13, 6, 3, 1]
    for part in ("sampling", "a single row", "prompts_per_step=4 G=8", "17 tokens", "of up to 5", "hardware.rollout_rows"):
        assert part in str(error.value)
    for knob in ("max_new_tokens", "model.gradient_checkpointing=true", "model.dtype=bfloat16"):
        assert knob in str(error.value)


def test_random_numbers_begin_anew_and_other_errors_pass_through() -> None:
    def work(rows: int) -> Tensor:
        drawn = torch.rand(3)
        if rows > 2:
            raise MemoryError
        return drawn

    torch.manual_seed(3)
    calm = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(Rows(8).attempt(work, "x", 1, 1), calm)

    def broken(rows: int) -> None:
        raise RuntimeError("shapes do not fit")

    rows = Rows(8)
    with pytest.raises(RuntimeError, match="shapes"):
        rows.attempt(broken, "x", 1, 1)
    assert rows.size == 8 and not ran_out(ValueError("no"))


def test_the_memory_of_an_attempt_is_free_before_the_next() -> None:
    """The error that is caught holds the frames, and so the tensors, of what was tried."""
    alive: list[bool] = []

    class Large:
        count = 0

        def __init__(self) -> None:
            Large.count += 1

        def __del__(self) -> None:
            Large.count -= 1

    def work(rows: int) -> int:
        alive.append(Large.count > 0)
        held = Large()
        if rows > 1:
            raise MemoryError
        return held.count

    assert Rows(8).attempt(work, "x", 1, 1) == 1
    assert alive == [False] * 4


def test_rows_in_effect_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    """A run that goes on rounds as it did: with the rows that it had come to, not with those that it began with."""
    algorithm = Greedy("g", "g", passes=1, parts=1, at=(1,))
    trainer, _ = loop(tmp_path, algorithm, options(), update_rows=6, steps=4, every=2)
    trainer.run()
    weights = trainer.policy.state()
    state = load(tmp_path / "step-000002")
    assert state.progress["rows"] == {"update_rows": 3}
    again, tracker = loop(tmp_path / "again", Recording("g", "g", passes=1, parts=1), options(), update_rows=6, steps=4)
    again.run(state)
    assert again.rows["update_rows"].size == 3 and tracker.notes == []
    assert all(torch.equal(weights[name], p) for name, p in again.policy.state().items())
    small, tracker = loop(tmp_path / "small", Recording("g", "g", passes=1, parts=1), options(), update_rows=2, steps=4)
    small.run(state)
    assert small.rows["update_rows"].size == 2
    assert len(tracker.notes) == 1 and "not bit for bit" in tracker.notes[0] and "was 3" in tracker.notes[0]
