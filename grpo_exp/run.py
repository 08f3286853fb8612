"""One run: compose -> build -> train -> return the objective."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from grpo_exp import config as configuration
from grpo_exp import earlier, placement, remedy
from grpo_exp.errors import UNHEALTHY, ConfigError, DataError, ModelError, Pruned, RolledBack, Unhealthy, nearest
from grpo_exp.job import Hook, InSweep, Job, Trial, begin, unwatched
from grpo_exp.ranks import ALONE, Ranks

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
    from grpo_exp.rollout.ahead import Sampler
    from grpo_exp.stop import StopSignals
    from grpo_exp.track.base import Tracker, Trackers
    from grpo_exp.train import Trainer

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
        tracked, place = {}, None
        if hydra.mode == RunMode.MULTIRUN:
            tracked["group"] = config.track.group or Path(hydra.sweep.dir).name
            if config.track.job_type == "train":
                tracked["job_type"] = config.algo.name
            if (number := hydra.sweeper.get("trial")) is not None:
                place = InSweep(number, Path(hydra.sweep.dir), hydra.sweeper.get("storage"))
        task: Any = OmegaConf.to_container(hydra.overrides.task)  # as typed: an item of a ListConfig would be resolved
        words = [word for word in task if not word.startswith("sweep.")]
        return begin(Job(composed, folder, words, place, tracked), config)
    finally:
        _remove_if_empty(folder)


def go_on(
    config: Config, composed: DictConfig, folder: Path, words: Sequence[str], back_to: int | None = None, force: bool = False
) -> float | None:
    """Train on in the folder of a run, outside of Hydra: from its newest checkpoint, or `back_to` that of a step in a new
    branch; with `force` also with other options.

    Raises: as `run`.
    """
    return begin(Job(composed, folder, words, back_to=back_to, force=force), config)


def train(
    config: Config,
    plain: dict[str, Any],
    secrets: set[str],
    folder: Path,
    words: Sequence[str] = (),
    trial: Trial | None = None,
    before: Earlier = earlier.NOTHING,
    ranks: Ranks = ALONE,
) -> float | None:
    """Load, train, evaluate and write everything into `folder`; returns the objective.

    `words` are the overrides, for the run card; `trial` is the one of a sweep that the run is; `before` is what an earlier call
    left in the folder, to go on with. Of several ranks the first writes.

    Raises:
        Pruned: in a sweep, also where a health check ends the run.
        Unhealthy, RolledBack: otherwise.
    """
    from grpo_exp import branch, lengths, overlap
    from grpo_exp import card as cards
    from grpo_exp import model as models
    from grpo_exp.explained import explainer
    from grpo_exp.hardware import prepare
    from grpo_exp.health.monitor import Monitor
    from grpo_exp.record import Record
    from grpo_exp.stop import NOTHING_TO_KEEP, StopSignals
    from grpo_exp.track.redact import redact

    ends = contextlib.ExitStack()
    with StopSignals(ranks) as stop, _held(folder, ranks), Record(folder, config, before.card, ranks) as record, ends:
        with stop.at_once("before it went on; its checkpoints are as they were" if before.state else NOTHING_TO_KEEP):
            if config.algo.online or not configuration.measures_pairs(config):
                config.rollout.check()
            placement.check_packages(config)
            data = load_data(config)
            check_data(config, data)
            ranks.from_first(lambda: check_reward(config, data.train, config.algo.online))
            machine = prepare(config.hardware, config.model.dtype, ranks, bool(config.hardware.overlap))
            looking = config.health.looking(remedy.used_up(before.card, config.health.rollback.times))
            monitor = Monitor(looking, folder, explainer(config.reward))
            tracker = _tracker(config, folder, monitor, ranks)
            ranks.from_first(lambda: models.prepare(config.model))
            policy = load_policy(config, machine)
            data = fit_prompts(config, data, policy)
            data.notes.append(lengths.note(data, policy, config.root.max_new_tokens))
            rows = rows_at_once(config, policy, machine, data.train, ranks)
            card = cards.opening(config, data, policy, machine, folder, {name: one.size for name, one in rows.items()})
            checkpoints = _checkpoints(config, folder, ranks)
            kept = overlap.kept_bytes(config, policy)
            notes = ranks.from_first(lambda: checkpoints.check_room(policy.held().values(), config.root.steps, kept))
            if before.forced:
                _check_fit(policy, config, before)
        card["overrides"] = redact(_by_key(words), secrets)
        notes += _continue(card, before)
        if (back_to := before.back_to) is not None:
            begun = ranks.from_first(lambda: branch.begin(folder, before.card, back_to))
            card["branch"] = begun | {"changed": before.forced}
        if trial is not None:
            card["trial"] = trial.number
        ranks.from_first(lambda: record.open(tracker, card, redact(plain, secrets)))
        hook = unwatched if trial is None else trial.hook
        sampler = ends.enter_context(overlap.sampler(config, machine, policy))
        trainer = assemble(config, data, policy, tracker, checkpoints, rows, hook, stop, monitor, ranks, sampler)
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
        _export(config, policy, folder, ranks)
        record.close(result)
    return result.objective


@contextlib.contextmanager
def _held(folder: Path, ranks: Ranks) -> Iterator[None]:
    """Other runs kept out of the folder."""
    from grpo_exp.track.files import hold

    with contextlib.ExitStack() as stack:
        ranks.first_alone(lambda: stack.enter_context(hold(folder)), None)
        yield


def _tracker(config: Config, folder: Path, monitor: Monitor, ranks: Ranks) -> Trackers:
    """Where the run is recorded, and who listens to that; nowhere by other ranks than the first."""
    from grpo_exp import track
    from grpo_exp.preflight.first_look import FirstLook
    from grpo_exp.track.base import Trackers

    def made() -> Trackers:
        tracker = track.build(config.track, folder)
        tracker.trackers.insert(1, monitor)  # behind the files, from which it recalls what a run that goes on has shown
        if config.preflight is not None and config.preflight.notes:
            tracker.trackers.append(FirstLook(config, config.preflight, tracker.note))
        return tracker

    return ranks.first_alone(made, Trackers([]))


def _checkpoints(config: Config, folder: Path, ranks: Ranks) -> Checkpoints:
    """The run's checkpoints, which the first rank writes."""
    from grpo_exp.checkpoint import Checkpoints, Unwritten

    kind = Checkpoints if ranks.first else Unwritten
    return kind(folder / "checkpoints", config.checkpoint, config.objective.direction == "maximize")


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
    own = {name: x.shape for name, x in policy.held().items()}
    different = [name for name in {*saved, *own} if saved.get(name) != own.get(name)] + ["reference"] * moved
    if different:
        raise ModelError(
            f"force=true: the checkpoint of step {before.state.progress['step']} does not fit: {', '.join(before.forced)} "
            f"changes {len(different)} tensors ({', '.join(sorted(different)[:3])}). Begin a new run with these options"
        )


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
    ranks: Ranks = ALONE,
    sampler: Sampler | None = None,
) -> Trainer:
    """The trainer with all it needs; without a `sampler` it samples itself, whatever `hardware.overlap` says."""
    from grpo_exp.train import Trainer

    root = config.root
    source = _source(config, data, policy, rows, ranks, sampler)
    measure = evaluator(config, policy, data.heldout, rows, ranks) if data.heldout else None
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
        ranks=ranks,
    )


def _source(
    config: Config, data: Dataset, policy: Policy, rows: dict[str, Rows], ranks: Ranks, sampler: Sampler | None
) -> Source:
    """Where the run's batches come from."""
    from grpo_exp.experience import TRAIN_STREAM, Offline, Online
    from grpo_exp.overlap import Ahead, weight_max
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
    what = (policy, config.rollout, config.reward, data.train, order, sampling, root.prompts_per_step)
    if sampler is not None:
        limit = weight_max(config)
        return Ahead(*what, rows["rollout_rows"], config.experience, sampler=sampler, last=root.steps, weight_max=limit)
    return Online(*what, rows["rollout_rows"], config.experience, ranks)


def evaluator(
    config: Config, policy: Policy, examples: Sequence[Example], rows: dict[str, Rows], ranks: Ranks = ALONE
) -> HeldOut:
    """What measures the policy on the examples: by the answers it gives, or by the pairs it gets right."""
    from grpo_exp.evaluate import Evaluator
    from grpo_exp.pairs import PairEvaluator

    if configuration.measures_pairs(config):
        return PairEvaluator(policy, config.algo, examples, config.eval, rows["update_rows"], ranks)
    return Evaluator(policy, config.rollout, config.reward, examples, config.eval, rows["eval_rows"], ranks)


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


def load_policy(config: Config, machine: Machine) -> Policy:
    """The policy, with its critic if there is one, each part where the options place it.

    Raises:
        ModelError: something cannot be loaded or does not fit together.
    """
    import torch

    from grpo_exp.policy import Policy

    shared = machine.shard != "none"
    policy = Policy.load(config.model, torch.device("cpu") if shared else machine.device, machine.dtype, config.root.seed)
    policy.reference_place = placement.reference_place(config)
    if config.algo.critic is not None:
        policy.attach_critic(config.algo.critic, config.hardware.critic)
    if shared:
        if config.algo.keeps_reference:
            policy.freeze_reference(config.algo.moves_reference)
        policy.share_out(machine.device, machine.shard == "offload")
    return policy


def fit_prompts(config: Config, data: Dataset, policy: Policy) -> Dataset:
    """The data with prompts that leave room for the longest completion; raises as `prompt_length.fit`."""
    from grpo_exp import prompt_length

    return prompt_length.fit(data, config.data, policy, max(config.root.max_new_tokens, config.eval.max_new_tokens))


def rows_at_once(
    config: Config, policy: Policy, machine: Machine, examples: Sequence[Example], ranks: Ranks = ALONE
) -> dict[str, Rows]:
    """How many rows sampling, evaluation and update take at a time, from the sizes of the model and of the longest prompt;
    the same on every rank, as few as on the one that has the least memory."""
    from grpo_exp import footprint
    from grpo_exp.hardware import fit_rows, free_bytes
    from grpo_exp.memory import Rows

    tokens = longest_prompt(policy, examples) + config.root.max_new_tokens
    sizes, way = footprint.Sizes.of(policy.model), footprint.Way.of(policy)
    cache = footprint.sampling(sizes, way, tokens)
    trunks = 2 if policy.critic is not None and policy.critic.trunk is not None else 1
    activations = footprint.activations(sizes, way, tokens, tokens) * trunks
    total = config.root.prompts_per_step * config.root.G
    sampled = len(examples) * config.eval.samples
    hardware, free = config.hardware, free_bytes(machine.device) / machine.sharing
    whole = footprint.whole(sizes, way) if policy.shared else footprint.Whole(0, 0)
    fitting = {
        "rollout_rows": fit_rows(hardware.rollout_rows, total, cache, free - whole.all),
        "eval_rows": fit_rows(hardware.rollout_rows, max(total, sampled), cache, free - whole.all),
        "update_rows": fit_rows(hardware.update_rows, total, activations, free - whole.unit),
    }
    everywhere = ranks.exchange(fitting)
    fitted = {name: min(one[name] for one in everywhere) for name in fitting}
    about = f"prompts_per_step={config.root.prompts_per_step} G={config.root.G}"
    option = {name: f"hardware.{name.replace('eval', 'rollout')}" for name in fitted}
    rows = {name: Rows(size, option[name], about) for name, size in fitted.items()}
    rows["update_rows"].halves = not policy.shared
    return rows


def longest_prompt(policy: Policy, examples: Sequence[Example]) -> int:
    """Tokens of the longest of some 256 prompts."""
    sample = examples[:: max(1, len(examples) // 256)]
    return max(len(policy.prompt_ids(e)[0]) for e in sample)


def _export(config: Config, policy: Policy, folder: Path, ranks: Ranks) -> None:
    """Write export/, which the first rank does. Weights that are shared out go into a policy that is not."""
    if not config.checkpoint.export:
        return
    whole: dict[str, Any] | None = None
    if policy.shared:
        whole = dict(held for held in policy.weights() if ranks.first)
    ranks.from_first(lambda: _write_export(config, policy, whole, folder))


def _write_export(config: Config, policy: Policy, whole: dict[str, Any] | None, folder: Path) -> None:
    import torch

    from grpo_exp import classifier
    from grpo_exp.checkpoint import write_export
    from grpo_exp.hardware import Machine

    if whole is not None:
        policy = load_policy(config, Machine(torch.device("cpu"), policy.dtype))
        policy.load_state(whole)
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
