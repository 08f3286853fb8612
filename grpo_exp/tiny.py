"""The embedded model: its tokenizer, made in code, and its architecture. The weights are package data, see `assets/tiny`."""

from __future__ import annotations

import string
from typing import Any

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
CHARACTERS = string.digits + " +-*/=().,:;?!'\"<>\n" + string.ascii_lowercase + string.ascii_uppercase


def tokenizer() -> Any:
    """One token a character, and one for each answer tag: a `PreTrainedTokenizerFast` of 89 tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *TAGS, *CHARACTERS))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"</?(?:think|answer)>|[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def config(vocabulary: int) -> Any:
    """Llama of 4 layers and width 128: about 0.9 million parameters."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
