"""What decoding remembers of the rows so far: keys and values, by our own trunk or by transformers' modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo_exp.stream import additive, attention, in_order, padded, positions_of
from grpo_exp.trunk import Frozen

if TYPE_CHECKING:
    from grpo_exp.policy import Policy


class State:
    """Rows being decoded, each prompt computed once for all of its rows.

    Args:
        tokens, mask: `[B, P]`, the prompts, left-padded.
        local: `[n]`, which of them each row continues.
        steps: most tokens of a completion.

    Attributes:
        hidden: `[n, H]`, in which the next token is chosen.
    """

    hidden: Tensor

    def __init__(self, policy: Policy, tokens: Tensor, mask: Tensor, local: Tensor, steps: int) -> None:
        raise NotImplementedError

    def advance(self, token: Tensor) -> None:
        """Go on by one token for each row: `[n]`."""
        raise NotImplementedError

    def keep(self, rows: Tensor) -> None:
        """Forget all rows but these."""
        raise NotImplementedError


def beginning(policy: Policy) -> Callable[[Policy, Tensor, Tensor, Tensor, int], State]:
    """What makes states, by the way in which the policy computes; good for as long as its weights do not change."""
    return partial(StreamState, Frozen(policy.body, policy.dtype)) if policy.streams else ModuleState


class ModuleState(State):
    """The plain twin, for every architecture."""

    def __init__(self, policy: Policy, tokens: Tensor, mask: Tensor, local: Tensor, steps: int) -> None:
        self.policy = policy
        prompt, self.cache = policy.decoder(tokens, mask.long(), positions_of(mask))
        self.hidden = prompt[local, -1]
        self.cache.batch_select_indices(local)
        self.position, self.used = mask.sum(-1)[local], tokens.shape[1]  # [n]
        self.seen = torch.ones((len(local), self.used + steps), dtype=torch.long, device=policy.device)
        self.seen[:, : self.used] = mask[local].long()

    def advance(self, token: Tensor) -> None:
        self.used += 1
        seen, position = self.seen[:, : self.used], self.position[:, None]
        hidden, self.cache = self.policy.decoder(token[:, None], seen, position, self.cache)
        self.hidden, self.position = hidden[:, -1], self.position + 1

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.seen, self.position = self.seen[rows], self.position[rows]


class StreamState(State):
    """Keys and values in buffers that are allocated once, `[n, key heads, P + steps, D]` for each layer."""

    def __init__(self, trunk: Frozen, policy: Policy, tokens: Tensor, mask: Tensor, local: Tensor, steps: int) -> None:
        self.trunk = trunk
        self.mask, self.local, self.room = mask, local, tokens.shape[1] + steps
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        sizes = mask.sum(-1)  # [B]
        self.sees = additive(in_order(mask))
        hidden = self.trunk(tokens[mask], positions_of(mask)[mask], self._prefill)
        self.hidden = hidden[sizes.cumsum(0) - 1][local]
        self.position, self.used = sizes[local], tokens.shape[1]  # [n]
        self.sees = torch.zeros((len(local), 1, 1, self.room), device=tokens.device)
        self.sees[..., : self.used] = additive(mask[local][:, None])

    def advance(self, token: Tensor) -> None:
        self.used += 1
        self.hidden = self.trunk(token, self.position, self._attend)
        self.position = self.position + 1

    def keep(self, rows: Tensor) -> None:
        self.keys, self.values = [k[rows] for k in self.keys], [v[rows] for v in self.values]
        self.sees, self.position = self.sees[rows], self.position[rows]

    def _prefill(self, _: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (padded(x.float() if x.device.type == "cpu" else x, self.mask) for x in (q, k, v))  # [B, heads, P, D]
        for x, buffers in ((k, self.keys), (v, self.values)):
            buffer = x.new_empty(len(self.local), x.shape[1], self.room, x.shape[3])
            buffer[:, :, : x.shape[2]] = x[self.local]
            buffers.append(buffer)
        return attention(q, k, v, self.sees).transpose(1, 2)[self.mask].flatten(1).to(self.trunk.dtype)

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, self.used - 1], values[:, :, self.used - 1] = k, v
        keys, values = keys[:, :, : self.used], values[:, :, : self.used]  # [n, key heads, s, D]
        folded = q.to(keys.dtype).unflatten(1, (keys.shape[1], -1))  # [n, key heads, shared, D]
        scores = (folded * q.shape[-1] ** -0.5) @ keys.transpose(2, 3) + self.sees[..., : self.used]
        return (torch.softmax(scores.float(), -1).to(keys.dtype) @ values).flatten(1).to(q.dtype)
