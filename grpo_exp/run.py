"""One run: compose -> build -> train -> return the objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from grpo_exp import config as configuration
from grpo_exp import earlier, remedy
from grpo_exp.errors import UNHEALTHY, ConfigError, DataError, ModelError, Pruned, RolledBack, Unhealthy, nearest

if TYPE_CHECKING:
    from grpo_exp.batch import Example
    from grpo_exp.checkpoint import Checkpoints
    from grpo_exp.config import Config
    from grpo_exp.data.base import Dataset
    from grpo_exp.earlier import Earlier
    from grpo_exp.evaluate import HeldOut
    from grpo_exp.experience import Source
    from grpo_exp.hardware import Machine
    from grpo_exp.health.monitor import Monitor
    from grpo_exp.memory import Rows
    from grpo_exp.policy import Policy
    from grpo_exp.stop import StopSignals
    from grpo_exp.track import Tracker
    from grpo_exp.train import Trainer

Hook = Callable[[int, float], None]
MEASURED = ("data.", "eval.", "reward.", "objective.")
"""Options that decide what an evaluation measures."""


def run(composed: DictConfig, config: Config | None = None) -> float | None:
    """What Hydra calls for one job: train and return the objective. `config` is what `composed` builds, where that was done.

    Raises:
        InputError: before the model loads where possible; a folder in which nothing was written is removed.
        RunError: afterwards; run.json says status failed, the traceback is in the folder's error.txt.
        Unhealthy: a health check ended it, after a checkpoint; Pruned in its place in a sweep.
        Stopped: on a signal, after a checkpoint.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    try:
        config = config or configuration.build(composed)
        if hydra.mode == RunMode.MULTIRUN and config.track.group is None:
            config.track.group = Path(hydra.sweep.dir).name
        if hydra.mode == RunMode.MULTIRUN and config.track.job_type == "train":
            config.track.job_type = config.algo.name
        task: Any = OmegaConf.to_container(hydra.overrides.task)  # as typed: an item of a ListConfig would be resolved
        words = [word for word in task if not word.startswith("sweep.")]
        return go_on(config, composed, folder, words, trial=partial(_trial, hydra, config))
    finally:
        _remove_if_empty(folder)


def go_on(
    config: Config,
    composed: DictConfig,
    folder: Path,
    words: Sequence[str],
    back_to: int | None = None,
    force: bool = False,
    trial: Callable[[], Trial | None] = lambda: None,
) -> float | None:
    """Train on in a folder, where there is nothing yet from the start: from its newest checkpoint, or `back_to` that of a step
    in a new branch; with `force` also with other options. Where its health checks send the run back, it goes on from there.

    `trial` is asked for the trial of a sweep that the run is, once there is something to do.

    Raises: as `run`.
    """
    while True:
        now = remedy.applied(composed, folder)
        mine = config if now is composed else replace(configuration.build(now), track=config.track)
        plain, secrets = configuration.anchored(configuration.resolved(now)), configuration.secret_values(now)
        for section in configuration.BEFORE_A_RUN:  # how trials are run is no part of what is run
            plain.pop(section, None)
        waiting = remedy.pending(folder)
        before = earlier.find(folder, plain, secrets, back_to if waiting is None else waiting, force or waiting is not None)
        if before.finished:
            return _nothing_to_do(folder, before)
        try:
            return train(mine, plain, secrets, folder, words, trial(), before)
        except RolledBack:
            back_to, force = None, False  # run.json says where to


def _nothing_to_do(folder: Path, before: Earlier) -> float | None:
    """Say that a run is finished; returns its objective."""
    objective = before.card["objective"]
    print(f"{folder}: finished before, objective {objective}; nothing to do")
    return None if objective is None else float(objective)


def train(
    config: Config,
    plain: dict[str, Any],
    secrets: set[str],
    folder: Path,
    words: Sequence[str] = (),
    trial: Trial | None = None,
    before: Earlier = earlier.NOTHING,
) -> float | None:
    """Load, train, evaluate and write everything into `folder`; returns the objective.

    `words` are the overrides, for the run card; `trial` is the one of a sweep that the run is; `before` is what an earlier call
    left in the folder, to go on with.

    Raises:
        Pruned: in a sweep, also where a health check ends the run.
        Unhealthy, RolledBack: otherwise.
    """
    from grpo_exp import branch, lengths, track
    from grpo_exp import card as cards
    from grpo_exp.checkpoint import Checkpoints
    from grpo_exp.explained import explainer
    from grpo_exp.hardware import prepare
    from grpo_exp.health.monitor import Monitor
    from grpo_exp.policy import Policy
    from grpo_exp.preflight.first_look import FirstLook
    from grpo_exp.record import Record
    from grpo_exp.stop import NOTHING_TO_KEEP, StopSignals
    from grpo_exp.track.files import hold
    from grpo_exp.track.redact import redact

    with StopSignals() as stop, hold(folder), Record(folder, config, before.card) as record:
        with stop.at_once("before it went on; its checkpoints are as they were" if before.state else NOTHING_TO_KEEP):
            if config.algo.online or not configuration.measures_pairs(config):
                config.rollout.check()
            data = load_data(config)
            check_data(config, data)
            check_reward(config, data.train, config.algo.online)
            machine = prepare(config.hardware, config.model.dtype)
            tracker = track.build(config.track, folder)
            looking = config.health.looking(remedy.used_up(before.card, config.health.rollback.times))
            monitor = Monitor(looking, folder, explainer(config.reward))
            tracker.trackers.insert(1, monitor)  # behind the files, from which it recalls what a run that goes on has shown
            if config.preflight is not None and config.preflight.notes:
                tracker.trackers.append(FirstLook(config, config.preflight, tracker.note))
            policy = Policy.load(config.model, machine.device, machine.dtype, config.root.seed)
            if config.algo.critic is not None:
                policy.attach_critic(config.algo.critic)
            data = fit_prompts(config, data, policy)
            data.notes.append(lengths.note(data, policy, config.root.max_new_tokens))
            rows = rows_at_once(config, policy, machine, data.train)
            card = cards.opening(config, data, policy, machine, folder, {name: one.size for name, one in rows.items()})
            checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint, config.objective.direction == "maximize")
            notes = checkpoints.check_room(policy.state().values(), config.root.steps)
            if before.forced:
                _check_fit(policy, config, before)
        card["overrides"] = redact(_by_key(words), secrets)
        notes += _continue(card, before)
        if before.back_to is not None:
            card["branch"] = branch.begin(folder, before.card, before.back_to) | {"changed": before.forced}
        if trial is not None:
            card["trial"] = trial.number
        record.open(tracker, card, redact(plain, secrets))
        hook = _unwatched if trial is None else trial.hook
        trainer = assemble(config, data, policy, tracker, checkpoints, rows, hook, stop, monitor)
        record.trainer = trainer
        for note in [*policy.notes, *notes]:
            tracker.note(note, "warn")
        try:
            result = trainer.run(before.state, bool(before.forced))
        except Unhealthy as error:
            if trial is None or isinstance(error, RolledBack):
                raise
            value = trainer.objective()
            raise Pruned(math.nan if value is None else value, f"{UNHEALTHY}: {error}") from error
        _export(config, policy, folder)
        record.close(result)
    return result.objective


def _continue(card: dict[str, Any], before: Earlier) -> list[str]:
    """Note in the card that the run goes on from a checkpoint; returns what a person should know about that."""
    if before.state is None:
        return before.notes
    progress = before.state.progress
    card |= {"resumed_from": progress["step"], "resumed_evaluation": progress["evaluated"]}
    card |= {"branch": before.card["branch"]} if "branch" in before.card else {}
    card |= {"rollbacks": remedy.done(before.card)} if before.card.get("rollbacks") else {}
    card["overrides"] = (before.card.get("overrides") or {}) | card["overrides"]
    changed = earlier.differences(before.card, card)
    notes = [*before.notes, *([f"not bit for bit the run that it was: {'; '.join(changed[:4])}"] if changed else [])]
    if before.forced:
        sent = remedy.reason(before.card)
        told = f"{sent}; it goes on" if sent else "forced to go on"
        notes.append(f"{told} from step {progress['step']} with other options: {'; '.join(before.forced)}")
    if any(change.startswith(MEASURED) for change in before.forced):  # what was measured before says nothing about it
        progress |= {"before": None, "after": None, "evaluated": -1}
        card["resumed_evaluation"] = progress["step"] - 1
    if not before.same_machine:
        progress["rows"] = {}  # which were asked for anew
    return notes


def _check_fit(policy: Policy, config: Config, before: Earlier) -> None:
    """The weights of a checkpoint, and so their optimizer, fit a model that other options made.

    Raises:
        ModelError: they do not.
    """
    assert before.state is not None
    saved = {name: x.shape for name, x in before.state.weights.items()}
    moved = config.algo.moves_reference and not any(name.startswith("reference.") for name in saved)
    saved = {name: shape for name, shape in saved.items() if not name.startswith("reference.")}
    own = {name: x.shape for name, x in policy.state().items()}
    different = [name for name in {*saved, *own} if saved.get(name) != own.get(name)] + ["reference"] * moved
    if different:
        raise ModelError(
            f"force=true: the checkpoint of step {before.state.progress['step']} does not fit: {', '.join(before.forced)} "
            f"changes {len(different)} tensors ({', '.join(sorted(different)[:3])}). Begin a new run with these options"
        )


def _unwatched(step: int, objective: float) -> None:
    """The hook of a run that no sweep watches."""


@dataclass(frozen=True)
class Trial:
    """The trial of a sweep that a run is: its number, and what tells the sweep how it is doing, raising Pruned to end it."""

    number: int
    hook: Hook


def _trial(hydra: Any, config: Config) -> Trial | None:
    """The trial, where the run is one of a sweep's."""
    if hydra.mode != RunMode.MULTIRUN or hydra.sweeper.get("trial") is None:
        return None
    from grpo_exp.sweep.trial import Reporter

    url = hydra.sweeper.get("storage")
    number = hydra.sweeper.trial
    return Trial(number, Reporter(Path(hydra.sweep.dir), number, config.root.seed, config.root.steps, url))


def _by_key(words: Sequence[str]) -> dict[str, str]:
    """Overrides as they are kept in the run card."""
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def assemble(
    config: Config,
    data: Dataset,
    policy: Policy,
    tracker: Tracker,
    checkpoints: Checkpoints,
    rows: dict[str, Rows],
    hook: Hook,
    stop: StopSignals,
    monitor: Monitor,
) -> Trainer:
    """The trainer with all it needs."""
    from grpo_exp.train import Trainer

    root = config.root
    source = _source(config, data, policy, rows)
    measure = evaluator(config, policy, data.heldout, rows) if data.heldout else None
    return Trainer(
        policy,
        config.algo,
        source,
        measure,
        tracker,
        checkpoints,
        config.optim,
        lr=root.lr,
        steps=root.steps,
        max_tokens=config.experience.max_tokens,
        seed=root.seed,
        temperature=root.temperature,
        rows=rows,
        objective=config.objective.metric,
        hook=hook,
        stop=stop,
        monitor=monitor,
    )


def _source(config: Config, data: Dataset, policy: Policy, rows: dict[str, Rows]) -> Source:
    """Where the run's batches come from."""
    from grpo_exp.experience import TRAIN_STREAM, Offline, Online
    from grpo_exp.pairs import Pairs
    from grpo_exp.prompt_order import order_of
    from grpo_exp.rollout.base import Sampling

    root, algorithm = config.root, config.algo
    order = order_of(data, root.seed, root.prompts_per_step, config.experience.skip_visits)
    if algorithm.learns_from == "targets":
        return Offline(policy, data.train, order, root.prompts_per_step, root.max_new_tokens)
    if algorithm.learns_from == "pairs":
        fixed = not algorithm.moves_reference
        return Pairs(policy, data.train, order, root.prompts_per_step, root.max_new_tokens, keep_reference=fixed)
    sampling = Sampling(root.temperature, root.max_new_tokens, root.G, (root.seed, TRAIN_STREAM, 0))
    return Online(
        policy,
        config.rollout,
        config.reward,
        data.train,
        order,
        sampling,
        root.prompts_per_step,
        rows["rollout_rows"],
        config.experience,
    )


def evaluator(config: Config, policy: Policy, examples: Sequence[Example], rows: dict[str, Rows]) -> HeldOut:
    """What measures the policy on the examples: by the answers it gives, or by the pairs it gets right."""
    from grpo_exp.evaluate import Evaluator
    from grpo_exp.pairs import PairEvaluator

    if configuration.measures_pairs(config):
        return PairEvaluator(policy, config.algo, examples, config.eval, rows["update_rows"])
    return Evaluator(policy, config.rollout, config.reward, examples, config.eval, rows["eval_rows"])


def check_data(config: Config, data: Dataset) -> None:
    """What the algorithm and the objective need from the data.

    Raises:
        DataError: worked targets or preference pairs are missing.
        ConfigError: the objective is of a category that no held-out item has, or no prompt could ever rest.
    """
    metric = config.objective.metric
    category = metric.removeprefix("eval/pass@1/")
    there = list(dict.fromkeys(example.category for example in data.heldout))
    if category != metric and category not in there:
        near = nearest(category, there)
        raise ConfigError(
            f"objective.metric={metric!r}: no held-out item is of that category; there are {', '.join(there)}.{near}"
        )
    if not data.train:
        raise DataError(f"data={config.data.name}: no training items are left")
    stay = 2 * config.root.prompts_per_step
    if config.experience.skip_visits and len(data.train) <= stay:
        raise ConfigError(
            f"experience.skip_visits={config.experience.skip_visits}: twice prompts_per_step={config.root.prompts_per_step} "
            f"prompts stay in every pass over the data, and data={config.data.name} has {len(data.train)}, so that none could "
            "ever rest. Use experience.skip_visits=0, more data, or fewer prompts_per_step"
        )
    needs = {
        "targets": ("target", "worked targets", "Name them with data.target=FIELD_OR_TEMPLATE"),
        "pairs": ("chosen", "preference pairs", "Name theirs with data.chosen= and data.rejected="),
    }
    if needed := needs.get(config.algo.learns_from):
        field, what, way = needed
        _need(field, data.train, f"algo={config.algo.name} learns from {what}", "training", way)
    check_heldout(config, data)


def check_heldout(config: Config, data: Dataset) -> None:
    """Raise DataError where held-out items are to be pairs and some are not."""
    if configuration.measures_pairs(config):
        way = "" if config.algo.product == "reward_model" else ", or the field of the answer, data.answer=, to measure pass@1"
        why = f"algo={config.algo.name} is measured on held-out pairs"
        _need("chosen", data.heldout, why, "held-out", f"Name theirs with data.chosen= and data.rejected={way}")


def _need(field: str, examples: Sequence[Example], why: str, which: str, way: str) -> None:
    """Raise DataError where an example has nothing in a field."""
    if missing := [example.id for example in examples if not getattr(example, field)]:
        raise DataError(
            f"{why}, and {len(missing)} of {len(examples)} {which} items have none ({', '.join(missing[:3])}, ...). {way}"
        )


def check_reward(config: Config, examples: Sequence[Example], needed: bool = True) -> None:
    """Try the reward on the first of the items.

    Raises:
        InputError: it raises, returns no numbers, or `needed`, and the items have nothing of what a part needs, or its outcome
            part never applies to the first.
    """
    from grpo_exp.rewards.base import check

    outcome, example = config.reward.outcome_name, examples[0]
    if needed:
        config.reward.check_data(examples)
    if all(math.isnan(values[outcome]) for _, values in check(config.reward, example)) and needed:
        lacks = ", which has no reference answer; data.answer= names the field" if example.answer is None else ""
        raise ConfigError(
            f"reward={config.reward_name}: its outcome part '{outcome}' does not apply to item {example.id} of "
            f"data={config.data.name}{lacks}. Or choose another reward"
        )


def load_data(config: Config) -> Dataset:
    """The data, of the training items those that are to be used; raises as `DataSource.load` and `difficulty.kept`."""
    from grpo_exp import difficulty

    return difficulty.kept(config.data.load(), config.data)


def fit_prompts(config: Config, data: Dataset, policy: Policy) -> Dataset:
    """The data with prompts that leave room for the longest completion; raises as `prompt_length.fit`."""
    from grpo_exp import prompt_length

    return prompt_length.fit(data, config.data, policy, max(config.root.max_new_tokens, config.eval.max_new_tokens))


def rows_at_once(config: Config, policy: Policy, machine: Machine, examples: Sequence[Example]) -> dict[str, Rows]:
    """How many rows sampling, evaluation and update take at a time, from the sizes of the model and of the longest prompt."""
    from grpo_exp.hardware import fit_rows
    from grpo_exp.memory import Rows

    tokens = longest_prompt(policy, examples) + config.root.max_new_tokens
    sizes = policy.shape
    layers, hidden = sizes.num_hidden_layers, sizes.hidden_size
    inner = getattr(sizes, "intermediate_size", None) or 4 * hidden
    cache = 4 * tokens * layers * 2 * hidden + 16 * sizes.vocab_size
    trunks = 2 if policy.critic is not None and policy.critic.trunk is not None else 1
    activations = 4 * tokens * layers * (14 * hidden + 4 * inner) * trunks
    total = config.root.prompts_per_step * config.root.G
    sampled = len(examples) * config.eval.samples
    hardware, device = config.hardware, machine.device
    sizes = {
        "rollout_rows": fit_rows(hardware.rollout_rows, total, cache, device),
        "eval_rows": fit_rows(hardware.rollout_rows, max(total, sampled), cache, device),
        "update_rows": fit_rows(hardware.update_rows, total, activations, device),
    }
    about = f"prompts_per_step={config.root.prompts_per_step} G={config.root.G}"
    option = {name: f"hardware.{name.replace('eval', 'rollout')}" for name in sizes}
    return {name: Rows(size, option[name], about) for name, size in sizes.items()}


def longest_prompt(policy: Policy, examples: Sequence[Example]) -> int:
    """Tokens of the longest of some 256 prompts."""
    sample = examples[:: max(1, len(examples) // 256)]
    return max(len(policy.prompt_ids(e)[0]) for e in sample)


def _export(config: Config, policy: Policy, folder: Path) -> None:
    from grpo_exp import classifier
    from grpo_exp.checkpoint import write_export

    if config.checkpoint.export:
        writers: dict[str, Callable[[Path], None]] = {
            "policy": policy.export,
            "reward_model": partial(classifier.export, policy),
        }
        write_export(folder / "export", writers[config.algo.product])


def _remove_if_empty(folder: Path) -> None:
    """Remove what Hydra made for a run that never began: the folder, and those above it that are empty now."""
    here = Path.cwd()
    while folder != here and folder.is_relative_to(here) and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
