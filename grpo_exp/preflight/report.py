"""All that is looked at before a run, in order, and what comes of it: findings, a verdict, an exit code."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_exp.preflight import cost, rehearsal
from grpo_exp.preflight.base import LEVELS, Finding, Section
from grpo_exp.preflight.contrast import Contrast
from grpo_exp.preflight.first_step import FirstStep
from grpo_exp.preflight.form import Form
from grpo_exp.preflight.gold import Gold
from grpo_exp.preflight.length import Length
from grpo_exp.preflight.pass_rate import PassRate
from grpo_exp.preflight.samples import Samples, draw
from grpo_exp.preflight.seams import Seams
from grpo_exp.stats import Interval

if TYPE_CHECKING:
    from grpo_exp.config import Config
    from grpo_exp.data.base import Dataset
    from grpo_exp.hardware import Machine
    from grpo_exp.memory import Rows
    from grpo_exp.policy import Policy
    from grpo_exp.stop import StopSignals

VERDICTS = {
    "stop": "it cannot work so",
    "warn": "it may run; what follows is worth a change first",
    "note": "ready",
}


@dataclass(frozen=True)
class Report:
    """What was seen.

    Attributes:
        sections: by name.
        findings: the gravest first.
        samples: the samples; None where the algorithm makes a model that answers no prompts.
        about: data, model and machine, as in a run card.
        notes: what data, model and reward said by themselves.
    """

    sections: dict[str, Section]
    findings: list[Finding]
    samples: Samples | None
    about: dict[str, Any]
    notes: list[str]

    @property
    def level(self) -> str:
        """The gravest finding's; note where there is none."""
        return min((finding.level for finding in self.findings), key=LEVELS.index, default="note")

    @property
    def exit_code(self) -> int:
        return 2 if self.level == "stop" else 0

    def facts(self) -> dict[str, Any]:
        """It as preflight.json has it."""
        return {
            "verdict": VERDICTS[self.level],
            "exit_code": self.exit_code,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            **{name: _plain(section) for name, section in self.sections.items()},
            **self.about,
            "notes": self.notes,
        }


def look(config: Config, stop: StopSignals, folder: Path) -> Report:
    """Load what the run would, sample, take a few steps, undo them. `folder` is where the result will be written.

    Raises:
        InputError: as a run before its first step.
        RunError: a reward failed.
    """
    from grpo_exp.card import versions
    from grpo_exp.config import measures_pairs
    from grpo_exp.hardware import describe, free_bytes, prepare
    from grpo_exp.memory import peak_gib
    from grpo_exp.placement import check_packages
    from grpo_exp.run import check_data, check_reward, fit_prompts, load_data, load_policy, longest_prompt, rows_at_once

    started = time.perf_counter()
    config.rollout.check()
    check_packages(config)
    data = load_data(config)
    check_data(config, data)
    check_reward(config, data.train, config.algo.online)
    machine = prepare(config.hardware, config.model.dtype)
    there_is = free_bytes(machine.device) / cost.GIB + peak_gib(machine.device)
    policy = load_policy(config, machine)
    data = fit_prompts(config, data, policy)
    load, loaded = time.perf_counter() - started, peak_gib(machine.device)
    rows = rows_at_once(config, policy, machine, data.train)
    asked = _asked(config, len(data.heldout))
    at_once = min(rows["eval_rows"].size, asked)
    samples, sections = None, dict[str, Section]()
    if config.algo.product == "policy" and not measures_pairs(config):  # it answers, and answers can be scored
        samples = draw(config, policy, data, rows["rollout_rows"])
        sections = of_samples(config, policy, samples, folder)
    taken = _rehearse(config, data, policy, machine, rows, stop)
    held = cost.Held(there_is, loaded, peak_gib(machine.device))
    tokens = longest_prompt(policy, data.heldout or data.train) + config.eval.max_new_tokens
    needed = cost.memory(config, policy, taken, held, at_once, tokens)
    sections["first_step"] = FirstStep.of(taken, config)
    sections["cost"] = cost.measure(config, samples, taken, asked, load, needed)
    found = [finding for section in sections.values() for finding in section.findings(config)]
    about = {
        "name": config.root.name,
        "model": config.model.name,
        "data": {"name": config.data.name, "source": data.source, "sha256": data.sha256},
        "reward": config.reward_name,
        "hardware": describe(machine),
        "versions": versions(),
    }
    notes = [*data.notes, *policy.notes, *(samples.notes if samples else []), *taken.notes]
    return Report(sections, sorted(found, key=lambda one: LEVELS.index(one.level)), samples, about, list(dict.fromkeys(notes)))


def of_samples(config: Config, policy: Policy, samples: Samples, folder: Path) -> dict[str, Section]:
    """What the samples say."""
    options = config.preflight
    assert options is not None
    sections: dict[str, Section] = {"pass_rate": PassRate.of(samples, options, folder)}
    if config.algo.online and config.root.G > 1:
        sections["contrast"] = Contrast.of(samples, config.root.G, options.flat)
    return sections | {
        "length": Length.of(samples, config.root.max_new_tokens, options),
        "form": Form.of(samples, config),
        "gold": Gold.of(samples, config),
        "prompt": Seams.of(samples, policy),
    }


def _rehearse(
    config: Config, data: Dataset, policy: Policy, machine: Machine, rows: dict[str, Rows], stop: StopSignals
) -> rehearsal.Rehearsal:
    """The first steps of the run, undone."""
    from grpo_exp.checkpoint import Checkpoints
    from grpo_exp.health.monitor import Monitor
    from grpo_exp.run import assemble
    from grpo_exp.track.base import Trackers

    options = config.preflight
    assert options is not None
    notebook = rehearsal.Notebook()
    nowhere = Checkpoints(Path("checkpoints"), config.checkpoint, True)  # in which nothing is ever written
    trainer = assemble(config, data, policy, Trackers([notebook]), nowhere, rows, lambda *_: None, stop, Monitor({}))
    return rehearsal.rehearse(trainer, notebook, options.steps)


def _asked(config: Config, heldout: int) -> int:
    """Rows that an evaluation samples; 0 where it measures pairs, or there are no items."""
    from grpo_exp.config import measures_pairs

    return 0 if measures_pairs(config) else min(config.eval.max_items or heldout, heldout) * config.eval.samples


def _plain(value: Any) -> Any:
    """A section and what is in it as plain values; an interval as {value, low, high}, as in evaluation.json."""
    if isinstance(value, Interval):
        return value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
