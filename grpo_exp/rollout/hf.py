"""transformers' `generate`, every row with a prompt of its own: slow, and plain enough to hold other engines against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grpo_exp.rollout.draw import Draw, Stepwise

if TYPE_CHECKING:
    from grpo_exp.policy import Policy


@dataclass
class HFEngine(Stepwise):
    """Generation by transformers with its own cache and nothing of the model's generation config.

    Tokens are drawn from `generate`'s logits as all engines here draw them, not by its multinomial from torch's generator: the
    same numbers give the same samples, and a step that is repeated is the same step.
    """

    def decoder(self, policy: Policy) -> Callable[[Draw], None]:
        from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

        model = policy.language_model

        def decode(draw: Draw) -> None:
            own = model.generation_config  # may hold penalties and ends, which would come before what is drawn here
            model.generation_config = GenerationConfig(pad_token_id=policy.pad_id)
            try:
                model.generate(
                    draw.prompt_tokens[draw.local],
                    attention_mask=draw.prompt_mask[draw.local].long(),
                    max_new_tokens=draw.steps,
                    do_sample=False,  # what `_Drawn` leaves of the logits is one token a row
                    logits_processor=LogitsProcessorList([_Drawn(draw)]),
                    stopping_criteria=StoppingCriteriaList([_Ended(draw)]),
                )
            finally:
                model.generation_config = own

        return decode


class _Drawn:
    """A logits processor that draws."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        """`[n, V] -> [n, V]`: 0 at the token that was drawn, or at padding where a row has ended, minus infinity elsewhere."""
        draw, rows = self.draw, self.draw.alive
        step = draw.done
        draw.take(scores[rows].float())
        return torch.full_like(scores, float("-inf")).scatter_(-1, draw.tokens[:, step, None], 0)


class _Ended:
    """A stopping criterion: bool `[n]`, which rows are at their end."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def __call__(self, tokens: Tensor, *_: Any, **__: Any) -> Tensor:
        ended = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
        ended[self.draw.alive] = False
        return ended
