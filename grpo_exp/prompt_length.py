"""Prompts that are longer than the model, or the user, has room for: refused, left out or cut, and always counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grpo_exp.batch import Example
from grpo_exp.data.base import Dataset, DataSource, only
from grpo_exp.errors import ConfigError, DataError
from grpo_exp.policy import Policy


def fit(data: Dataset, options: DataSource, policy: Policy, completion: int) -> Dataset:
    """The data with prompts that leave room for `completion` tokens, as `data.long_prompts` says; a note tells the counts.

    Raises:
        ConfigError: the model has no room for prompt and completion, or not for as long ones as are allowed.
        DataError: a prompt is too long, or all are.
    """
    limit = _limit(options, policy, completion)
    if limit is None:
        return data
    sets = {"training": data.train, "held-out": data.heldout}
    tokens = {name: _longer(items, policy, limit) for name, items in sets.items()}
    found = ", ".join(f"{len(long)} of {len(sets[name])} {name} prompts" for name, long in tokens.items() if long)
    if not found:
        return data
    name, place, most = max(((name, i, n) for name, long in tokens.items() for i, n in long.items()), key=lambda one: one[2])
    what = f"{found} have more than {limit} tokens (the longest, {sets[name][place].id}, has {most})"
    if options.long_prompts == "error":
        raise DataError(
            f"data={options.name}: {what}. Use data.long_prompts=drop to leave them out, or truncate_left to cut off their "
            f"beginning{'' if options.max_prompt_tokens else ', or a smaller max_new_tokens'}"
        )
    if options.long_prompts == "truncate_left":
        policy.max_prompt_tokens = limit
        return dataclasses.replace(data, notes=[*data.notes, f"{what}: their beginning is cut off"])
    stay = {name: [i for i in range(len(items)) if i not in tokens[name]] for name, items in sets.items()}
    for name, left in stay.items():
        if sets[name] and not left:
            raise DataError(f"data={options.name}: no {name} item is left: {what}, and data.long_prompts=drop leaves those out")
    fitting = data.training_on(stay["training"])
    if fitting.exhausted:
        raise DataError(f"data={options.name}: no training item of data.sources.{fitting.exhausted} is left: {what}")
    return dataclasses.replace(fitting, heldout=only(data.heldout, stay["held-out"]), notes=[*data.notes, f"{what}: left out"])


def _longer(items: Sequence[Example], policy: Policy, limit: int) -> dict[int, int]:
    """The prompts with more than `limit` tokens: place -> tokens."""
    return {i: n for i, e in enumerate(items) if (n := len(policy.prompt_ids(e)[0])) > limit}


def _limit(options: DataSource, policy: Policy, completion: int) -> int | None:
    """The longest prompt in tokens; None where nothing limits it."""
    positions = getattr(policy.shape, "max_position_embeddings", None)
    wanted = options.max_prompt_tokens
    if positions is None:
        return wanted
    room = int(positions) - completion
    if room < (wanted or 1):
        prompt = f"data.max_prompt_tokens={wanted}" if wanted else "any prompt"
        raise ConfigError(
            f"max_new_tokens={completion}: the model has {positions} positions, which leaves {max(room, 0)} tokens for the "
            f"prompt, too few for {prompt}. Lower max_new_tokens or eval.max_new_tokens{' or that' if wanted else ''}"
        )
    return wanted or room
