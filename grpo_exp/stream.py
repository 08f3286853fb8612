"""A batch as one stream of tokens: each prompt once, then the completions, nothing else; and who attends to whom."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grpo_exp.batch import TokenBatch


class Stream:
    """Prompts and completions laid out for `Trunk`.

    The last token of a completion predicts nothing, so it is not computed.

    Attributes:
        tokens, positions: long `[n]`.
        predicts: for each completion token of the batch's mask, in its order, the place in the stream that predicts it.
    """

    def __init__(self, batch: TokenBatch) -> None:
        asked, group, device = batch.prompt_mask, batch.group, batch.tokens.device  # [B, P], [N]
        length = batch.mask.sum(-1)  # [N]
        steps = torch.arange(batch.tokens.shape[1], device=device)
        inner = steps < length[:, None] - 1  # [N, T]
        inner = inner[:, : int(inner.any(0).sum())]  # [N, T']
        self.asked, self.inner, self.group = asked, inner, group
        self.full = bool(inner.all())
        sizes = asked.sum(-1)  # [B]
        self.prompts = int(sizes.sum())
        self.tokens = torch.cat([batch.prompt_tokens[asked], batch.tokens[:, : inner.shape[1]][inner]])
        self.positions = torch.cat([positions_of(asked)[asked], (sizes[group, None] + steps[: inner.shape[1]])[inner]])
        places = torch.full(batch.mask.shape, -1, device=device)  # [N, T], of the token before
        places[:, 0] = (sizes.cumsum(0) - 1)[group]
        after = places[:, 1:][:, : inner.shape[1]]
        after[inner] = torch.arange(self.prompts, len(self.tokens), device=device)
        self.predicts = places[batch.mask]
        t = inner.shape[1]
        self.prompt_sees = additive(in_order(asked))
        own = torch.cat([asked[group, None].expand(-1, t, -1), in_order(inner)], -1)  # [N, T', P + T']
        self.sees = additive(own)

    def attend(self, _: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Prompts see themselves, completions their prompt and themselves."""
        n, dtype = self.prompts, q.dtype
        if q.device.type == "cpu":  # whose bfloat16 attention is slower
            q, k, v = q.float(), k.float(), v.float()
        prompt = [padded(x[:n], self.asked) for x in (q, k, v)]  # [B, heads, P, D]
        out = attention(prompt[0], prompt[1], prompt[2], self.prompt_sees).transpose(1, 2)[self.asked]
        if self.inner.any():
            own = [padded(x[n:], self.inner, self.full) for x in (q, k, v)]  # [N, heads, T', D]
            keys, values = (torch.cat([prompt[i][self.group], own[i]], 2) for i in (1, 2))  # [N, key heads, P + T', D]
            rest = attention(own[0], keys, values, self.sees).transpose(1, 2)
            out = torch.cat([out, rest.flatten(0, 1) if self.full else rest[self.inner]])
        return out.flatten(1).to(dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> Tensor:
    """Softmax attention: `[b, heads, t, D]`, `[b, key heads, s, D]` twice, `[b, 1, t, s]` -> `[b, heads, t, D]`."""
    out: Tensor = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=sees.to(q.dtype), enable_gqa=True)
    return out


def positions_of(mask: Tensor) -> Tensor:
    """Position ids that count tokens and not padding: bool `[rows, t] -> long [rows, t]`."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def in_order(mask: Tensor) -> Tensor:
    """Which tokens of its row each one sees: itself and those before it, bool `[b, t] -> [b, t, t]`.

    Padding sees itself too, for a softmax over nothing is not a number.
    """
    t, device = mask.shape[1], mask.device
    before = torch.ones(t, t, dtype=torch.bool, device=device).tril()
    return before & mask[:, None] | torch.eye(t, dtype=torch.bool, device=device)


def additive(sees: Tensor) -> Tensor:
    """0 where a token is seen and minus infinity elsewhere, for `attention`: bool `[b, t, s] -> [b, 1, t, s]`."""
    return torch.zeros(sees.shape, device=sees.device).masked_fill_(~sees, float("-inf"))[:, None]


def padded(x: Tensor, mask: Tensor, full: bool = False) -> Tensor:
    """Rows of a stream: `[n, heads, D]`, `[rows, t]` -> `[rows, heads, t, D]`, 0 where the mask is false."""
    if full:
        return x.view(*mask.shape, *x.shape[1:]).transpose(1, 2)
    empty = x.new_zeros(*mask.shape, *x.shape[1:])
    return empty.masked_scatter(mask[..., None, None], x).transpose(1, 2)
