"""A trained reward model as a sequence-classification model of transformers, which loads without any code of ours."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from grpo_exp.errors import ModelError
from grpo_exp.policy import Policy


def export(policy: Policy, folder: Path) -> None:
    """Write model and tokenizer, the adapter merged into its base: `AutoModelForSequenceClassification`, one label.

    transformers reads the score at the last token that is not padding, so the padding token of the export is one that ends no
    completion. The head has no bias. A tokenizer whose template was not used loses it: texts are joined as in training.

    Raises:
        ModelError: there is no such class for this architecture, it names its head otherwise, or there is no token to pad with.
    """
    from transformers import AutoModelForSequenceClassification

    assert policy.critic is not None
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(_padding(policy))
    if policy.options.template == "plain":
        tokenizer.chat_template = None
    decoder = _merged(policy)
    config = copy.deepcopy(policy.shape)
    config.num_labels, config.pad_token_id = 1, tokenizer.pad_token_id
    try:
        model: Any = AutoModelForSequenceClassification.from_config(config)
    except ValueError as error:
        raise ModelError(f"model {policy.options.name}: transformers has no sequence classifier for it: {error}") from error
    head = getattr(model, "score", None)
    if head is None or head.weight.shape != policy.critic.head.weight.shape:
        raise ModelError(f"model {policy.options.name}: {type(model).__name__} has no linear head 'score' without bias")
    model = model.float()  # trained weights are float32, whatever the configuration's dtype
    getattr(model, model.base_model_prefix).load_state_dict(decoder.state_dict())
    with torch.no_grad():
        head.weight.copy_(policy.critic.head.weight)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _merged(policy: Policy) -> Any:
    """The policy's decoder with its adapter, if it has one, in the weights; the policy itself stays as it is."""
    whole = copy.deepcopy(policy.model).cpu()
    if policy.options.adapter == "lora":
        whole.set_adapter("default")
        whole = whole.float().merge_and_unload()
    return whole.get_decoder()


def _padding(policy: Policy) -> int:
    """A token to pad with that ends no completion."""
    candidates = [policy.tokenizer.pad_token_id, *policy.tokenizer.all_special_ids]
    usable = [i for i in candidates if i is not None and i not in policy.eos_ids]
    if not usable:
        raise ModelError(f"model {policy.options.name}: its only special tokens end a completion, so none can pad one")
    return int(usable[0])
