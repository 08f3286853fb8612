"""score a run, a checkpoint or a model on held-out items: evaluate RUN [data=... eval.samples=8]

    python -m grpo_exp evaluate RUN                 the newest checkpoint of a run, on what the run itself was evaluated on
    python -m grpo_exp evaluate RUN@50              its checkpoint of step 50; RUN@best: the best one by the run's objective
    python -m grpo_exp evaluate RUN/export          what the run exported; a folder of any model or peft adapter works as well
    python -m grpo_exp evaluate tiny                an option of the group `model`, or a hub id: Qwen/Qwen2.5-0.5B-Instruct
    python -m grpo_exp evaluate RUN eval=greedy data=file data.path=my.jsonl    other items, another way of asking
    python -m grpo_exp evaluate RUN split=train     its training items instead: how hard each is, for data.pass_rates

Options of data, reward, rollout, hardware, eval and model may be changed; all others are the run's. A table goes to the screen;
evaluation.json, eval.jsonl and config.yaml go to outputs/evaluations/TIME_NAME, or to what hydra.run.dir= says.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_exp.errors import DataError, InputError, nearest

if TYPE_CHECKING:
    from grpo_exp.config import Config
    from grpo_exp.evaluate import Evaluation
    from grpo_exp.policy import Policy
    from grpo_exp.subject import Subject

SPLIT = "split="
USAGE = "usage: python -m grpo_exp evaluate RUN_OR_MODEL [KEY=VALUE ...]; python -m grpo_exp help evaluate says more"


def main(words: list[str]) -> int:
    """Evaluate and write the result.

    Raises:
        InputError: nothing of that name, or a wrong option.
        RunError: the result cannot be written.
    """
    from grpo_exp import config as configuration
    from grpo_exp.subject import configuration as configure
    from grpo_exp.subject import find, folder_of
    from grpo_exp.track.wording import clean

    if not words or "=" in words[0] or words[0].startswith("-"):
        raise InputError(USAGE)
    subject = find(words[0])
    split, others = _split(words[1:])
    folder, overrides = folder_of(others, "evaluations", subject.name)
    composed = configure(subject, overrides)
    config = configuration.build(composed, judged=False)
    began = time.perf_counter()
    evaluation, about = _evaluate(config, subject, split)
    about |= {"subject": words[0], "overrides": words[1:], "seconds": round(time.perf_counter() - began, 2)}
    secrets = configuration.secret_values(composed)
    _write(folder, evaluation, about, configuration.resolved(composed), secrets)
    notes = [f"note: {clean(note)}" for note in about["notes"]]
    print(
        "\n".join(
            [_title(about), *_table(evaluation, config.eval.samples), *notes, *_use(about, folder), f"written to {folder}"]
        )
    )
    return 0


def _split(words: list[str]) -> tuple[str, list[str]]:
    """Which items are asked, heldout or train, as split= says, and the other words."""
    named = [word.removeprefix(SPLIT) for word in words if word.startswith(SPLIT)]
    split = named[-1] if named else "heldout"
    if split not in ("heldout", "train"):
        raise InputError(f"{SPLIT}{split}: expected heldout or train.{nearest(split, ['heldout', 'train'])}")
    return split, [word for word in words if not word.startswith(SPLIT)]


def _use(about: dict[str, Any], folder: Path) -> list[str]:
    """What the pass rates of training items are for."""
    if about["split"] != "train" or not about["tokens"]:
        return []
    return [
        f"to train on those neither too hard nor too easy: data.pass_rates={folder / 'eval.jsonl'} data.keep_between=[0.1,0.9]"
    ]


def _evaluate(config: Config, subject: Subject, split: str) -> tuple[Evaluation, dict[str, Any]]:
    """Load what is to be evaluated and ask it the items of a split."""
    from grpo_exp import checkpoint
    from grpo_exp.card import versions
    from grpo_exp.config import measures_pairs
    from grpo_exp.hardware import describe, prepare
    from grpo_exp.policy import Policy
    from grpo_exp.run import check_heldout, check_reward, evaluator, fit_prompts, load_data, rows_at_once
    from grpo_exp.stop import StopSignals

    with StopSignals() as stop, stop.at_once("before the evaluation was done"):
        data = load_data(config)
        if split == "train":
            data = dataclasses.replace(data, train=data.heldout, heldout=data.train, shares=())
        if not data.heldout:
            raise DataError(f"data={config.data.name}: it has no held-out items; data.split= sets some aside")
        by_pairs = measures_pairs(config)
        if by_pairs:
            check_heldout(config, data)
        else:
            config.rollout.check()
            check_reward(config, data.heldout)
        machine = prepare(config.hardware, config.model.dtype)
        policy = Policy.load(config.model, machine.device, machine.dtype, config.root.seed)
        if by_pairs:
            _remember(config, policy)
        step = 0
        if subject.checkpoint is not None:
            state = checkpoint.load(subject.checkpoint)
            policy.load_state(state.weights)
            step = int(state.progress["step"])
        data = fit_prompts(config, data, policy)
        rows = rows_at_once(config, policy, machine, data.heldout)
        told: list[str] = []
        for one in rows.values():
            one.tell = told.append
        evaluation = evaluator(config, policy, data.heldout, rows)(step)
    about = {
        "name": subject.name,
        "step": step if subject.checkpoint is not None else None,
        "checkpoint": None if subject.checkpoint is None else str(subject.checkpoint),
        "model": config.model.name,
        "data": {"name": config.data.name, "source": data.source, "sha256": data.sha256},
        "split": split,
        "reward": config.reward_name,
        "items": len(next(iter(evaluation.items.values()))),
        "samples": config.eval.samples,
        "temperature": config.eval.temperature,
        "tokens": evaluation.tokens,
        "notes": [*data.notes, *policy.notes, *told, *evaluation.notes],
        "hardware": describe(machine),
        "versions": versions(),
    }
    return evaluation, about


def _remember(config: Config, policy: Policy) -> None:
    """What pairs are measured with besides the policy: the reference that it began as, or a reward model's head."""
    if config.algo.needs_reference:
        policy.freeze_reference()
    if config.algo.critic is not None:
        policy.attach_critic(config.algo.critic)


def _write(folder: Path, evaluation: Evaluation, about: dict[str, Any], plain: dict[str, Any], secrets: set[str]) -> None:
    """evaluation.json, eval.jsonl and config.yaml, the files of an earlier evaluation replaced."""
    import yaml

    from grpo_exp.track.files import json_line, json_text, make_folder, write_whole
    from grpo_exp.track.redact import redact

    make_folder(folder)
    metrics = {name: interval._asdict() for name, interval in evaluation.intervals().items()}
    write_whole(folder / "config.yaml", yaml.safe_dump(redact(plain, secrets), sort_keys=False, allow_unicode=True))
    write_whole(folder / "eval.jsonl", b"".join(json_line(row) for row in evaluation.rows).decode("ascii"))
    write_whole(folder / "evaluation.json", json_text(redact({**about, "metrics": metrics}, secrets)))


def _title(about: dict[str, Any]) -> str:
    how = "the likeliest token" if about["temperature"] == 0 else f"temperature {about['temperature']:g}"
    samples = "one sample" if about["samples"] == 1 else f"{about['samples']} samples"
    asked = (
        f"items of {about['data']['name']}, {samples} each, {how}" if about["tokens"] else f"pairs of {about['data']['name']}"
    )
    which = "training" if about["split"] == "train" else "held-out"
    return f"{about['name']}: {about['items']} {which} {asked}"


def _table(evaluation: Evaluation, samples: int) -> list[str]:
    """Each metric with its 95 % interval over items; pass@1 of each category below pass@1."""
    from grpo_exp.track.wording import clean, columns, is_share, number

    cells = [["", "value", "95 % interval"]]
    intervals = evaluation.intervals()
    order = sorted(intervals, key=lambda name: not name.startswith("eval/pass@1"))
    for name in order:
        value, low, high = intervals[name]
        share = is_share(name)
        label = clean(name).removeprefix("eval/").replace("@k", f"@{samples}")
        label = f"  {clean(name).split('/', 2)[2]}" if name.count("/") > 1 else label
        shown = [f"{100 * x:.1f}" if share else number(x) for x in (value, low, high)]
        cells.append([label + (" %" if share else ""), shown[0], f"{shown[1]}–{shown[2]}"])
    return columns(cells)
