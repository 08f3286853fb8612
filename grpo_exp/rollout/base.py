"""What a rollout engine is, and the random numbers that all of them draw from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from grpo_exp.batch import Prompts, Rollout
from grpo_exp.errors import ConfigError
from grpo_exp.options import option

if TYPE_CHECKING:
    from grpo_exp.policy import Policy


@dataclass(frozen=True)
class Sampling:
    """How to sample. `temperature` 0 takes the likeliest token. `key` names the random numbers: (seed, stream, step).

    `first_prompt` is the place of the first prompt among all that are sampled under the key: a second call that begins where
    the first one ended shares no numbers with it.
    """

    temperature: float
    max_new_tokens: int
    samples: int
    key: tuple[int, int, int]
    first_prompt: int = 0


@dataclass
class Engine(ABC):
    """Samples completions from the policy; built from its YAML like an algorithm."""

    kind: str = option("which engine: the name of a file in grpo_exp/rollout")
    top_p: float = option("sample from the smallest set of tokens with this much probability; 1 for all", above=0, high=1)
    top_k: int = option("sample from this many likeliest tokens; 0 for all", low=0)
    weight_max: float = option(
        "each token counts min(pi / pi_sampler, this) in the loss, for a sampler that rounds otherwise; 0: all count the same",
        low=0,
    )
    stop: list[str] = option("strings that end a completion, besides the end of sequence; left out of the text")

    def __post_init__(self) -> None:
        if any(not text for text in self.stop):
            raise ConfigError(f"rollout.stop={self.stop}: an empty text would end every completion; rollout.stop=[] is none")

    def formula(self) -> str:
        """What the engine adds to the algorithm's own formula; empty where that is nothing."""
        return f"each token's terms times min(pi_old / pi_sampler, {self.weight_max:g})" if self.weight_max else ""

    def cut(self, text: str) -> str | None:
        """The text before the first stop string in it; None where there is none."""
        places = [place for stop in self.stop if (place := text.find(stop)) >= 0]
        return text[: min(places)] if places else None

    def check(self) -> None:
        """Refuse, before a model loads, what cannot work here: raise ConfigError."""
        return None

    @property
    def among(self) -> str:
        """Of several processes, who samples: `each` its share, the `first` for all, or `none` where there must be one alone."""
        return "each"

    @abstractmethod
    def sample(self, policy: Policy, prompts: Prompts, sampling: Sampling, rows: int) -> Rollout:
        """`sampling.samples` completions of each prompt, computed at most `rows` rows at a time.

        The result does not depend on `rows`, up to rounding: each row's random numbers depend on the key, the prompt's place
        and the sample's number alone.
        """


def uniforms(sampling: Sampling, prompts: int) -> Tensor:
    """One uniform number in [0, 1) for each row and token: float32 `[prompts x samples, max_new_tokens]`."""
    rows = [
        np.random.Generator(np.random.Philox(np.random.SeedSequence((*sampling.key, prompt, sample)))).random(
            sampling.max_new_tokens, dtype=np.float32
        )
        for prompt in range(sampling.first_prompt, sampling.first_prompt + prompts)
        for sample in range(sampling.samples)
    ]
    return torch.from_numpy(np.stack(rows))
