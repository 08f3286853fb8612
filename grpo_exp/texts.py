"""Between text and tokens: prompts as the model sees them, targets, completions."""

from __future__ import annotations

from typing import Any

from grpo_exp.batch import Example, Message
from grpo_exp.errors import ModelError
from grpo_exp.model import ModelOptions


class Texts:
    """What a model's tokenizer makes of texts.

    Attributes:
        eos_ids: the ids that end a completion, the tokenizer's own first.
        pad_id: the id that stands where there is no token.
        max_prompt_tokens: longer prompts lose their beginning; None where none is longer.
        notes: what a person should know of model and tokenizer.
    """

    def __init__(self, options: ModelOptions, model: Any, tokenizer: Any) -> None:
        _check_vocabulary(model, tokenizer, options)
        self.options, self.tokenizer = options, tokenizer
        self.eos_ids = _eos_ids(model, tokenizer)
        self.max_prompt_tokens: int | None = None
        self.notes: list[str] = []
        self._joins_messages = False
        self.pad_id = tokenizer.pad_token_id
        if self.pad_id is None:
            self.pad_id = self.eos_ids[0]
            self.notes.append(
                "the tokenizer has no padding token, so its end of sequence stands for it; masks come from lengths, and an end "
                "that was sampled counts"
            )

    def render(self, prompt: str | list[Message]) -> str:
        """The prompt as the text the model sees."""
        if isinstance(prompt, str):
            return prompt
        if not self._by_template(prompt):
            if self.options.template == "auto" and not self._joins_messages:
                self.notes.append(
                    "the tokenizer has no chat template, so messages are joined by newlines, as model.template=plain"
                )
                self._joins_messages = True
            return "\n".join(message["content"] for message in prompt)
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise ModelError("model.template=chat, but the tokenizer has no chat template; use model.template=plain")
        return str(self.tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True))

    def encode_prompt(self, prompt: str | list[Message], text: str) -> list[int]:
        """Token ids of a rendered prompt; a chat template brings its own special tokens, plain text gets the tokenizer's."""
        return list(self.tokenizer(text, add_special_tokens=not self._by_template(prompt))["input_ids"])

    def prompt_ids(self, example: Example) -> tuple[list[int], str]:
        """An item's prompt as the model sees it: token ids, cut on the left where there are too many, and their text."""
        text = self.render(example.prompt)
        ids, most = self.encode_prompt(example.prompt, text), self.max_prompt_tokens
        if most is None or len(ids) <= most:
            return ids, text
        return ids[-most:], str(self.tokenizer.decode(ids[-most:]))

    def _by_template(self, prompt: str | list[Message]) -> bool:
        """Whether the tokenizer's chat template makes the text of this prompt."""
        wanted = self.options.template
        chat = wanted == "chat" or (wanted == "auto" and getattr(self.tokenizer, "chat_template", None) is not None)
        return chat and not isinstance(prompt, str)

    def encode_target(self, text: str) -> list[int]:
        """Token ids of a completion and the end of sequence; never joined to the prompt as text, so the seam stays in place."""
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.eos_ids[0]]

    def decode(self, tokens: list[list[int]]) -> list[str]:
        """Completions as text, without special tokens."""
        return list(self.tokenizer.batch_decode(tokens, skip_special_tokens=True))


def _check_vocabulary(model: Any, tokenizer: Any, options: ModelOptions) -> None:
    """Raise ModelError where the tokenizer has ids that the model has no embedding for."""
    known, largest = model.get_input_embeddings().num_embeddings, max(tokenizer.get_vocab().values())
    if largest >= known:
        raise ModelError(
            f"model={options.name}: its tokenizer has ids up to {largest} and the model knows {known} tokens, so the two do "
            "not belong together. Put the model's own tokenizer into its folder"
        )


def _eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """The *set* of ids that end a completion, the tokenizer's own first: models such as Llama 3 and Qwen have several."""
    named = getattr(model.generation_config, "eos_token_id", None)
    ids = [tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])]
    known = list(dict.fromkeys(i for i in ids if isinstance(i, int)))
    if not known:
        raise ModelError("neither the tokenizer nor the model's generation config names an end-of-sequence token")
    return known
