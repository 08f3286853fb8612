"""The first prompt as the model sees it, and the tokens at its seams, where templates go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_exp.preflight.base import Finding, Line
from grpo_exp.preflight.samples import Samples
from grpo_exp.track.wording import clean, cut

if TYPE_CHECKING:
    from grpo_exp.config import Config
    from grpo_exp.policy import Policy

SHOWN, WIDTH = 5, 160
Token = tuple[int, str]


@dataclass(frozen=True)
class Seams:
    """A prompt and its first sample.

    Attributes:
        prompt, completion: as text, special tokens of the prompt included.
        first, last: the first and the last tokens of the prompt.
        begins, ends: those of the completion.
        faults: what is wrong at the seams.
    """

    prompt: str
    completion: str
    first: list[Token]
    last: list[Token]
    begins: list[Token]
    ends: list[Token]
    faults: list[str]

    @classmethod
    def of(cls, samples: Samples, policy: Policy) -> Seams:
        def tokens(ids: list[int]) -> list[Token]:
            return [(token, str(policy.tokenizer.decode([token]))) for token in ids]

        prompt, completion, row = samples.prompt, samples.completion, samples.rows[0]
        ends = completion[SHOWN:][-SHOWN:]
        faults = list(_faults(samples, policy))
        return cls(
            row["prompt"],
            row["completion"],
            tokens(prompt[:SHOWN]),
            tokens(prompt[SHOWN:][-SHOWN:]),
            tokens(completion[:SHOWN]),
            tokens(ends),
            faults,
        )

    def lines(self) -> list[Line]:
        return [
            ("prompt", cut(clean(self.prompt), WIDTH)),
            ("completion", cut(clean(self.completion), WIDTH) or "(empty)"),
            ("  tokens", f"{_joined(self.first, self.last)} | {_joined(self.begins, self.ends)}"),
        ]

    def findings(self, config: Config) -> Iterator[Finding]:
        for fault in self.faults:
            yield Finding("warn", fault)


def _faults(samples: Samples, policy: Policy) -> Iterator[str]:
    """What is known to go wrong where prompts are put together."""
    ids, text, tokenizer = samples.prompt, samples.rows[0]["prompt"], policy.tokenizer
    if len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos_token_id:
        yield "the prompt begins with two beginnings of sequence: the template writes one, and the tokenizer adds another"
    if ids[-1] in policy.eos_ids and ids[-1] != tokenizer.bos_token_id and len(ids) > 1:
        yield "the prompt ends with an end of sequence, after which the model has nothing to say: leave it out of the template"
    if text.endswith(" ") and len(text) > 1:
        yield (
            "the prompt ends with a blank, which most tokenizers put at the beginning of the next word: what follows is then a "
            "rare continuation. Let the prompt end without it"
        )
    if getattr(tokenizer, "chat_template", None) and isinstance(samples.examples[0].prompt, str):
        yield "the model has a chat template, and the prompts are plain text, a form that it was hardly trained on"


def _joined(first: list[Token], last: list[Token]) -> str:
    def written(tokens: list[Token]) -> str:
        return " ".join(f"{token}:{clean(text) or repr(text)}" for token, text in tokens)

    return f"{written(first)} … {written(last)}" if last else written(first)
