"""Sampling by several ranks: each answers its share of the prompts, and all have all answers afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_exp.batch import Prompts, Rollout
from grpo_exp.errors import OutOfMemoryError
from grpo_exp.memory import Rows, ran_out
from grpo_exp.ranks import Ranks
from grpo_exp.rollout.base import Engine, Sampling

if TYPE_CHECKING:
    from grpo_exp.policy import Policy


def sample(
    engine: Engine, policy: Policy, prompts: Prompts, sampling: Sampling, rows: Rows, ranks: Ranks, doing: str
) -> Rollout:
    """`engine.sample` of all prompts, at most `rows` at a time. A prompt keeps the random numbers that its place among all
    gives it, so that the samples are the same on any number of ranks, up to rounding. `doing` is for messages."""
    if ranks.count > 1 and engine.among == "first":
        with ranks.passes():
            policy.collect(keep=ranks.first)
        asked = ranks.from_first(lambda: Samples.of(engine.sample(policy, prompts, sampling, rows.size)))
        return joined(prompts, [asked], sampling.samples, policy.pad_id)
    share = ranks.share(len(prompts))
    own = None
    with contextlib.ExitStack() as stack:
        with ranks.passes():
            try:
                stack.enter_context(policy.whole())
            except RuntimeError as error:
                if not ran_out(error):
                    raise
                raise OutOfMemoryError(
                    f"out of memory in {doing}: with hardware.shard all weights are whole on every process while it samples. "
                    "Sample by a server (rollout=vllm rollout.url=), or use model.dtype=bfloat16"
                ) from error
        if share:
            sampling = dataclasses.replace(sampling, first_prompt=sampling.first_prompt + share.start)
            draw = partial(engine.sample, policy, _part(prompts, share), sampling)
            own = rows.attempt(draw, doing, prompts.tokens.shape[1], sampling.max_new_tokens)
    if ranks.count == 1:
        assert own is not None
        return own
    found = ranks.exchange(None if own is None else Samples.of(own))
    return joined(prompts, [part for part in found if part is not None], sampling.samples, policy.pad_id)


def _part(prompts: Prompts, share: range) -> Prompts:
    """Some prompts, as wide as all are."""
    if len(share) == len(prompts):
        return prompts
    cut = slice(share.start, share.stop)
    return Prompts(prompts.tokens[cut], prompts.mask[cut], prompts.texts[cut], prompts.examples[cut])


class Samples(NamedTuple):
    """What a process tells of its rollout, on the CPU; fields as in `Rollout`."""

    tokens: Tensor
    mask: Tensor
    behaviour_logp: Tensor
    finished: Tensor
    texts: list[str]
    support: Tensor | None

    @classmethod
    def of(cls, rollout: Rollout) -> Samples:
        support = None if rollout.support is None else rollout.support.cpu()
        tokens, mask, logp = rollout.tokens.cpu(), rollout.mask.cpu(), rollout.behaviour_logp.cpu()
        return cls(tokens, mask, logp, rollout.finished.cpu(), rollout.texts, support)


def joined(prompts: Prompts, parts: Sequence[Samples], samples: int, pad_id: int) -> Rollout:
    """The rollout of all prompts: completions padded to the longest of all parts."""
    device = prompts.tokens.device
    width = max(part.tokens.shape[1] for part in parts)

    def whole(name: str, value: int = 0) -> Tensor:
        values = [getattr(part, name) for part in parts]  # [n, t] or [n, t, V / 8] each
        return torch.cat([pad(x, (0, 0) * (x.dim() - 2) + (0, width - x.shape[1]), value=value) for x in values]).to(device)

    return Rollout(
        prompts,
        torch.arange(len(prompts), device=device).repeat_interleave(samples),  # [N]
        whole("tokens", pad_id),
        whole("mask"),
        whole("behaviour_logp"),
        torch.cat([part.finished for part in parts]).to(device),
        [text for part in parts for text in part.texts],
        None if parts[0].support is None else whole("support"),
    )
