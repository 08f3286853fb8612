"""make preference pairs: pairs MODEL, the best and worst samples of training items [G=16]

    python -m grpo_exp pairs tiny                   the embedded model's pairs on its own task
    python -m grpo_exp pairs RUN                    of a run's newest checkpoint; RUN@50, RUN@best and others as in evaluate
    python -m grpo_exp pairs tiny data=file data.path=my.jsonl reward=custom reward.path=my_rewards.py:score

Each training item is sampled G times; its best sample by reward is chosen and its worst rejected, where they differ. Options of
data, reward, rollout, hardware, eval and model may be changed, and of the root G, temperature, seed, max_new_tokens and
prompts_per_step. pairs.jsonl, heldout.jsonl (the held-out items with their answers) and config.yaml go to
outputs/pairs/TIME_NAME, or to what hydra.run.dir= says. The last line is the command that trains on them: algo=dpo_offline ...
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_exp.errors import ConfigError, DataError, InputError

if TYPE_CHECKING:
    from grpo_exp.batch import Example
    from grpo_exp.config import Config
    from grpo_exp.data.base import Dataset
    from grpo_exp.memory import Rows
    from grpo_exp.policy import Policy
    from grpo_exp.subject import Subject

USAGE = "usage: python -m grpo_exp pairs RUN_OR_MODEL [KEY=VALUE ...]; python -m grpo_exp help pairs says more"
ROOT_OPTIONS = ("G", "temperature", "seed", "max_new_tokens", "prompts_per_step")
Row = dict[str, Any]


def main(words: list[str]) -> int:
    """Sample, pick, write.

    Raises:
        InputError: nothing of that name, a wrong option, or no pair among the samples.
        RunError: the result cannot be written.
    """
    from grpo_exp import config as configuration
    from grpo_exp.subject import configuration as configure
    from grpo_exp.subject import find, folder_of

    if not words or "=" in words[0] or words[0].startswith("-"):
        raise InputError(USAGE)
    subject = find(words[0])
    folder, overrides = folder_of(words[1:], "pairs", subject.name)
    composed = configure(subject, overrides, "pairs", ROOT_OPTIONS)
    config = configuration.build(composed, judged=False)
    if config.root.G < 2:
        raise ConfigError(f"G={config.root.G}: a pair is two samples of one prompt. Use G=2 or more")
    if config.algo.product != "policy":
        raise ConfigError(f"{words[0]} is a reward model, which answers no prompts; name a policy")
    rows, data = _made(config, subject)
    if not rows:
        raise DataError(
            f"no pair: in none of the {len(data.train)} groups of G={config.root.G} samples do the rewards differ. Use a "
            "larger G, easier items or another reward"
        )
    heldout = [_item(example) for example in data.heldout]
    _write(folder, rows, heldout, configuration.resolved(composed), configuration.secret_values(composed))
    command = shlex.join(["python", "-m", "grpo_exp", "algo=dpo_offline", "data=preferences", *_words(folder, rows, heldout)])
    print(
        f"{len(rows)} pairs of {len(data.train)} training items, {len(heldout)} held-out items\nwritten to {folder}\n{command}"
    )
    return 0


def _made(config: Config, subject: Subject) -> tuple[list[Row], Dataset]:
    """Load what is to be sampled, and the pairs of its samples."""
    from grpo_exp import checkpoint
    from grpo_exp.hardware import prepare
    from grpo_exp.policy import Policy
    from grpo_exp.run import check_reward, fit_prompts, load_data, rows_at_once
    from grpo_exp.stop import StopSignals

    with StopSignals() as stop, stop.at_once("before the pairs were made"):
        config.rollout.check()
        data = load_data(config)
        check_reward(config, data.train)
        machine = prepare(config.hardware, config.model.dtype)
        policy = Policy.load(config.model, machine.device, machine.dtype, config.root.seed)
        if subject.checkpoint is not None:
            policy.load_state(checkpoint.load(subject.checkpoint).weights)
        data = fit_prompts(config, data, policy)
        at_once = rows_at_once(config, policy, machine, data.train)["rollout_rows"]
        at_once.tell = _note
        for note in [*data.notes, *policy.notes]:
            _note(note)
        return list(_pairs(config, policy, data.train, at_once)), data


def _pairs(config: Config, policy: Policy, examples: Sequence[Example], rows: Rows) -> Iterator[Row]:
    """The pair of each item whose samples differ in reward; none where one of the two says nothing, or both say the same."""
    from grpo_exp.experience import TRAIN_STREAM
    from grpo_exp.preferences import best_and_worst
    from grpo_exp.rollout.base import Sampling

    root = config.root
    for first in range(0, len(examples), root.prompts_per_step):
        prompts = policy.prompts(list(examples[first : first + root.prompts_per_step]))
        key = (root.seed, TRAIN_STREAM, 0)  # a run's steps are counted from 1
        sampling = Sampling(root.temperature, root.max_new_tokens, root.G, key, first)
        rollout = rows.attempt(
            partial(config.rollout.sample, policy, prompts, sampling), "sampling", prompts.tokens.shape[1], root.max_new_tokens
        )
        scored = config.reward(rollout.completions())
        for note in scored.notes:
            _note(note)
        reward, group = scored.total, rollout.group.cpu()  # [N]
        normalized = config.reward.normalized(scored, group)
        index = best_and_worst(reward if normalized is None else normalized, group, margin=0.0).tolist()  # [2 M]
        for best, worst in zip(index[0::2], index[1::2], strict=True):
            chosen, rejected = rollout.texts[best], rollout.texts[worst]
            if chosen.strip() and rejected.strip() and chosen != rejected:
                rewards = {"chosen_reward": reward[best].item(), "rejected_reward": reward[worst].item()}
                item = _item(prompts.examples[int(rollout.group[best])])
                yield {**item, "chosen": chosen, "rejected": rejected, **{k: round(v, 6) for k, v in rewards.items()}}


def _note(text: str) -> None:
    from grpo_exp.track.wording import clean

    print(f"note: {clean(text)}", file=sys.stderr)


def _item(example: Example) -> Row:
    """An item as a row of a file, with the fields that rewards may ask for."""
    named = {"answer": example.answer, "category": example.category or None}
    return {**example.columns, "id": example.id, "prompt": example.prompt, **{k: v for k, v in named.items() if v is not None}}


def _words(folder: Path, rows: list[Row], heldout: list[Row]) -> list[str]:
    """The options of data=preferences that fit the files."""
    both = [*rows, *heldout]
    split = [f"data.split={folder / 'heldout.jsonl'}"] if heldout else []
    fields = [f"data.{name}={name}" for name in ("answer", "category") if all(name in row for row in both)]
    plain = ["data.chat=false"] if any(isinstance(row["prompt"], str) for row in both) else []
    return [f"data.path={folder / 'pairs.jsonl'}", *split, *fields, *plain]


def _write(folder: Path, rows: list[Row], heldout: list[Row], plain: dict[str, Any], secrets: set[str]) -> None:
    import yaml

    from grpo_exp.track.files import json_line, make_folder, write_whole
    from grpo_exp.track.redact import redact

    make_folder(folder)
    write_whole(folder / "config.yaml", yaml.safe_dump(redact(plain, secrets), sort_keys=False, allow_unicode=True))
    for name, lines in (("pairs.jsonl", rows), ("heldout.jsonl", heldout)):
        write_whole(folder / name, b"".join(json_line(line) for line in lines).decode("ascii"))
