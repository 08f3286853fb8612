"""Typed, shape-checked containers: what travels between data, rollout, rewards, algorithm and policy.

B prompts, G samples a prompt, N = B x G rows; P prompt tokens (left-padded), T completion tokens (right-padded), V vocabulary.
Masks are bool and come from lengths, never from the pad id, since pad may be an end-of-sequence token. A step of credit
makes a new container with a new field; `reward` never changes meaning.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from typing_extensions import Self

Batch = TypeVar("Batch", bound="TokenBatch")
Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}


@dataclass(frozen=True)
class Example:
    """One item of a data set.

    Attributes:
        id: unique within the data set and stable over runs.
        prompt: plain text, or chat messages.
        answer: the reference answer, None where the data has none.
        category: the stratum the item belongs to (a difficulty, a topic); "" where there is none.
        target: a worked completion for supervised training, None where the data has none.
        columns: the other fields of the row; a reward receives those it names.
        chosen, rejected: the completions of a preference pair, None where the data has none.
        held: the fields of the row that answer, target and category hold whole, as they are, since a reward may ask for them by
            the names that the data gives them. They say nothing new of the item, and are no part of its hash.
    """

    id: str
    prompt: str | list[Message]
    answer: str | None = None
    category: str = ""
    target: str | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    chosen: str | None = None
    rejected: str | None = None
    held: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Completions:
    """What a reward sees of N samples, and when. All lists have length N.

    Attributes:
        examples: the data item each sample belongs to.
        prompts: the prompts as the model saw them, rendered to text.
        texts: the completions, decoded, without end-of-sequence tokens and without the stop string.
        token_ids: the completions' token ids, padding excluded, the end-of-sequence token included.
        finished: True where the sample ended by itself (end of sequence or stop string), False where it was cut off.
        steps: training steps that were over when they were sampled; 0 before training.
        outcome: what the outcome part gave each sample, for parts with `Reward.after_outcome`; None for all others.
    """

    examples: list[Example]
    prompts: list[str]
    texts: list[str]
    token_ids: list[list[int]]
    finished: list[bool]
    steps: int = 0
    outcome: list[float | None] | None = None

    LISTS: ClassVar[tuple[str, ...]] = ("examples", "prompts", "texts", "token_ids", "finished", "outcome")

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name in self.LISTS if (values := getattr(self, name)) is not None}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"Completions: lists of different lengths {lengths}")

    def __len__(self) -> int:
        return len(self.texts)

    def alone(self, row: int) -> Completions:
        """One sample by itself."""
        lists = {name: values[row : row + 1] for name in self.LISTS if (values := getattr(self, name)) is not None}
        return dataclasses.replace(self, **lists)


@dataclass(frozen=True)
class Rewards:
    """What the reward functions returned, `[N]` float32 each.

    Attributes:
        total: the weighted sum of the parts, what the algorithm learns from.
        parts: each part's own value before weighting and whatever the gates say; NaN where the part does not apply to the row.
        outcome: the part that says right or wrong, and what `parts.Gate` says where a gate is closed.
        failed: bool `[N]`, True where a part failed and added nothing; None where that would have ended the run.
        notes: what a person should know of these failures.
        timeouts: how many comparisons of answers took too long and were counted as not equal, and how many programs did.
        closed: bool `[N]`, True where a gate is closed, so that the other parts count nothing; None without gates.
    """

    total: Tensor
    parts: dict[str, Tensor]
    outcome: Tensor
    failed: Tensor | None = None
    notes: list[str] = field(default_factory=list)
    timeouts: int = 0
    closed: Tensor | None = None

    def __post_init__(self) -> None:
        some = {name: (x, ("N",)) for name in ("failed", "closed") if (x := getattr(self, name)) is not None}
        parts = {k: (v, ("N",)) for k, v in self.parts.items()}
        _check(total=(self.total, ("N",)), outcome=(self.outcome, ("N",)), **some, **parts)


@dataclass(frozen=True)
class Prompts:
    """Tokenised prompts of one step.

    Attributes:
        tokens: long `[B, P]`, left-padded.
        mask: bool `[B, P]`, True on prompt tokens.
        texts: the rendered prompts (B).
        examples: the data items (B).
    """

    tokens: Tensor
    mask: Tensor
    texts: list[str]
    examples: list[Example]

    def __post_init__(self) -> None:
        _check(tokens=(self.tokens, ("B", "P")), mask=(self.mask, ("B", "P")))
        if not len(self.texts) == len(self.examples) == self.tokens.shape[0]:
            raise ValueError(f"Prompts: {len(self.texts)} texts, {len(self.examples)} examples, {self.tokens.shape[0]} rows")

    def __len__(self) -> int:
        return self.tokens.shape[0]


@dataclass(frozen=True)
class Rollout:
    """G samples of each of B prompts, in rows ordered by prompt: row n belongs to prompt `group[n]`.

    Attributes:
        prompts: what was asked.
        group: long `[N]`, index of each row's prompt.
        tokens: long `[N, T]`, right-padded.
        mask: bool `[N, T]`, True on sampled tokens, the first end-of-sequence token included.
        behaviour_logp: float32 `[N, T]`, log-probs of the distribution that was sampled from; 0 outside the mask.
        finished: bool `[N]`.
        texts: the decoded completions (N).
        support: uint8 `[N, T, ceil(V / 8)]`, the packed set of tokens that top-p or top-k kept; None at full support.
    """

    prompts: Prompts
    group: Tensor
    tokens: Tensor
    mask: Tensor
    behaviour_logp: Tensor
    finished: Tensor
    texts: list[str]
    support: Tensor | None = None

    def __post_init__(self) -> None:
        _check(
            group=(self.group, ("N",)),
            tokens=(self.tokens, ("N", "T")),
            mask=(self.mask, ("N", "T")),
            behaviour_logp=(self.behaviour_logp, ("N", "T")),
            finished=(self.finished, ("N",)),
        )

    def completions(self, steps: int = 0) -> Completions:
        """The view of this rollout that rewards are given, sampled after `steps` steps of training."""
        lengths = self.mask.sum(-1).tolist()
        groups = self.group.tolist()
        return Completions(
            examples=[self.prompts.examples[g] for g in groups],
            prompts=[self.prompts.texts[g] for g in groups],
            texts=self.texts,
            token_ids=[row[:n] for row, n in zip(self.tokens.tolist(), lengths, strict=True)],
            finished=self.finished.tolist(),
            steps=steps,
        )


@dataclass(frozen=True)
class TokenBatch:
    """The rows one or more optimizer steps learn from: `[N, ...]`, prompts stored once for their group.

    Attributes:
        prompt_tokens, prompt_mask: long and bool `[B, P]`, left-padded.
        group: long `[N]`, index of each row's prompt.
        tokens, mask: long and bool `[N, T]`, completions, right-padded.
        loss_mask: bool `[N, T]`, the part of `mask` that the loss is taken over.
        finished: bool `[N]`, True where the sample ended by itself; None for stored data.
        reward, outcome: `[N]`, the rewards' total and the part that says right or wrong; None for stored data.
        normalized: `[N]`, the weighted sum of the parts once each is normalised within its group; None where none is.
        behaviour_logp: `[N, T]`, from the rollout; None for stored data.
        old_logp: `[N, T]`, of the policy before the first update on this batch; None where it equals the policy's own
            (one optimizer step a rollout), and then the ratio is exactly 1.
        entropy: `[N, T]`, the policy's before the first update on this batch; None where no loss asks for it.
        ref_logp: `[N, T]`, of the reference; None where no KL is asked for.
        values: `[N, T]`, the critic's before the first update, of the state in which each token was chosen; None without one.
        advantages: `[N, T]`.
        returns: `[N, T]`, what the critic is to predict; None without one.
        support: as in `Rollout`.
        age: long `[N]`, steps since the row was sampled, 0 in the step that sampled it; None where that holds for all.
        weights: `[N, T]`, importance weights of replayed rows, 1 elsewhere; None where all are 1.
    """

    prompt_tokens: Tensor
    prompt_mask: Tensor
    group: Tensor
    tokens: Tensor
    mask: Tensor
    loss_mask: Tensor
    finished: Tensor | None = None
    reward: Tensor | None = None
    outcome: Tensor | None = None
    normalized: Tensor | None = None
    behaviour_logp: Tensor | None = None
    old_logp: Tensor | None = None
    entropy: Tensor | None = None
    ref_logp: Tensor | None = None
    values: Tensor | None = None
    advantages: Tensor | None = None
    returns: Tensor | None = None
    support: Tensor | None = None
    age: Tensor | None = None
    weights: Tensor | None = None

    unit: ClassVar[int] = 1
    """Consecutive rows that belong together: a micro-batch or minibatch holds all of them or none."""

    def __post_init__(self) -> None:
        _check(
            prompt_tokens=(self.prompt_tokens, ("B", "P")),
            prompt_mask=(self.prompt_mask, ("B", "P")),
            group=(self.group, ("N",)),
            **{name: (getattr(self, name), ("N",)) for name in self._ROWS if getattr(self, name) is not None},
            **{name: (getattr(self, name), ("N", "T")) for name in self._ROW_TOKENS if getattr(self, name) is not None},
        )

    _ROWS = ("finished", "reward", "outcome", "normalized", "age")
    _ROW_TOKENS = (
        *("tokens", "mask", "loss_mask", "behaviour_logp", "old_logp", "entropy", "ref_logp"),
        *("values", "advantages", "returns", "weights"),
    )

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def credited(self) -> Tensor:
        """What credit is given for: the normalised sum where there is one, otherwise the reward: `[N]`."""
        credited = self.reward if self.normalized is None else self.normalized
        assert credited is not None
        return credited

    def with_(self, **fields: Any) -> Self:
        """A copy with some fields replaced."""
        return dataclasses.replace(self, **fields)

    def rows(self, index: Tensor) -> Self:
        """The given rows (long `[n]`), with only their prompts, padding trimmed to their longest; none is an empty batch."""
        kept, group = torch.unique(self.group[index], return_inverse=True)
        p = int(self.prompt_mask[kept].sum(-1).max()) if len(index) else 0
        t = max(1, int(self.mask[index].sum(-1).max())) if len(index) else 1
        by_row: dict[str, Any] = {
            **{name: None if (x := getattr(self, name)) is None else x[index] for name in self._ROWS},
            **{name: None if (x := getattr(self, name)) is None else x[index, :t] for name in (*self._ROW_TOKENS, "support")},
        }
        width = self.prompt_tokens.shape[1]
        return type(self)(
            prompt_tokens=self.prompt_tokens[kept, width - p :],
            prompt_mask=self.prompt_mask[kept, width - p :],
            group=group,
            **by_row,
        )

    def split(self, size: int) -> Iterator[tuple[Tensor, Self]]:
        """Micro-batches of at most `size` consecutive rows (or one unit), each with the indices of its rows."""
        size = max(1, size // self.unit) * self.unit
        for start in range(0, len(self), size):
            index = torch.arange(start, min(start + size, len(self)), device=self.tokens.device)
            yield index, self.rows(index)

    def to(self, device: torch.device | str) -> Self:
        """The batch on another device."""
        moved = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return type(self)(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in moved.items()})


def concatenate(batches: Sequence[Batch]) -> Batch:
    """One batch of the rows of several, in order: prompts padded on the left and completions on the right to a common width.

    Their groups stay apart, also where two have the same prompt. A batch without `age` counts as fresh.

    Raises:
        ValueError: some have a field and some do not.
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    if any(batch.age is not None for batch in batches):
        batches = [b if b.age is not None else b.with_(age=torch.zeros_like(b.group)) for b in batches]
    p, t = (max(getattr(b, name).shape[1] for b in batches) for name in ("prompt_tokens", "tokens"))
    offsets = itertools.accumulate([len(b.prompt_tokens) for b in batches[:-1]], initial=0)
    joined: dict[str, Any] = {"group": torch.cat([b.group + offset for b, offset in zip(batches, offsets, strict=True)])}
    for f in dataclasses.fields(first):
        parts = [getattr(b, f.name) for b in batches]
        if f.name == "group" or all(x is None for x in parts):
            continue
        if any(x is None for x in parts):
            raise ValueError(f"{f.name}: some of the batches have it and some do not")
        if f.name in ("prompt_tokens", "prompt_mask"):
            parts = [nn.functional.pad(x, (p - x.shape[1], 0)) for x in parts]
        elif f.name not in TokenBatch._ROWS:  # [N, T] or [N, T, V / 8]
            parts = [nn.functional.pad(x, (0, 0) * (x.dim() - 2) + (0, t - x.shape[1])) for x in parts]
        joined[f.name] = torch.cat(parts)
    return type(first)(**joined)


@dataclass(frozen=True)
class PairBatch(TokenBatch):
    """M preference pairs as 2 M rows: row 2 m is the chosen completion of pair m, row 2 m + 1 the rejected one.

    Both belong to the same prompt, which is computed once for the two.
    """

    unit: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self) % 2 or not torch.equal(self.group[0::2], self.group[1::2]):
            raise ValueError(f"PairBatch: {len(self)} rows are not pairs of the same prompt each")


class Outputs(NamedTuple):
    """What a forward pass says of a batch's tokens, `[N, T]` each, float32, 0 outside the mask.

    Attributes:
        logp: log-probs of the tokens.
        entropy: entropy in nats of the policy's distribution at each token, over the whole vocabulary also where top-p or top-k
            sampled from a part of it.
        values: the critic's estimate of the state in which each token was chosen; None without a critic.
    """

    logp: Tensor
    entropy: Tensor
    values: Tensor | None = None


@dataclass(frozen=True)
class LossSum:
    """A loss before division, with what is to be logged.

    Attributes:
        total: scalar, the *sum* that is divided once by the optimizer batch's global count.
        sums: metric name -> (sum, count); their ratio over all micro-batches is the exact mean.
        maxima: metric name -> value; the largest over all micro-batches is logged.
    """

    total: Tensor
    sums: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)

    def told(self, total: Tensor) -> LossSum:
        """The numbers alone, on the CPU and without gradient, with another total."""
        sums = {name: (x.detach().cpu(), count.detach().cpu()) for name, (x, count) in self.sums.items()}
        return LossSum(total.detach().cpu(), sums, {name: x.detach().cpu() for name, x in self.maxima.items()})


def _check(**named: tuple[Tensor, tuple[str, ...]]) -> None:
    """Raise ValueError unless every tensor has the named dimensions and equal names have equal sizes."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, (x, dims) in named.items():
        if x.dim() != len(dims):
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected [{', '.join(dims)}]")
        for size, dim in zip(x.shape, dims, strict=True):
            known, first = sizes.setdefault(dim, (size, name))
            if size != known:
                raise ValueError(f"{name} has {dim} = {size}, but {first} has {dim} = {known}")
