"""The default engine: a decoding loop of our own over the policy's weights.

Each prompt is computed once for its G rows, rows that finished leave the batch, and log-probs are taken while sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_exp.rollout import states
from grpo_exp.rollout.draw import Draw, Stepwise

if TYPE_CHECKING:
    from grpo_exp.policy import Policy


@dataclass
class TorchEngine(Stepwise):
    """Decoding with a key/value cache, in eager torch."""

    def decoder(self, policy: Policy) -> Callable[[Draw], None]:
        begin = states.beginning(policy)

        def decode(draw: Draw) -> None:
            state = begin(policy, draw.prompt_tokens, draw.prompt_mask, draw.local, draw.steps)
            while True:
                going = draw.take(policy.head(state.hidden))
                if not len(draw.alive):
                    break
                if going is not None:
                    state.keep(going)
                state.advance(draw.token)

        return decode
