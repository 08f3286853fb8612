"""look before a run: preflight [overrides of the run] says what will fail and what it costs

    python -m grpo_exp preflight                                    the default run
    python -m grpo_exp preflight algo=grpo G=16 temperature=0.7     any other: what stands after the verb is the run's own
    python -m grpo_exp preflight preflight.prompts=0                sample all training prompts, not a few dozen
    python -m grpo_exp preflight preflight.price=2.5                and say what run and sweep cost at 2.5 an hour
    python -m grpo_exp preflight preflight.paper=true hardware=gpu_24gb preflight.size=7b    on paper, without that machine

It samples training prompts with the starting policy, tries the reward on what is known to be right, and takes the run's first
steps, which are undone. Reported: pass@1, groups without contrast by G, lengths, format, diversity, the first prompt, what the
first step must show (KL 0, ratio 1, a gradient), memory, time, cost; then a verdict, each finding with overrides to try.
preflight.json, pass_rates.jsonl (what became of each sample of each item), samples.jsonl and config.yaml go to
outputs/preflight/TIME_NAME, or to what hydra.run.dir= says. Exit code 2 where the run cannot work, otherwise 0. The options of
the section `preflight` say how much is looked at and what counts as a finding: python -m grpo_exp help preflight

With preflight.paper=true nothing is loaded or tried: memory by part is reckoned from the configuration of the run's model, or
of a published one of preflight.size, for a device of hardware.memory_gib. Weights need not be there; only preflight.json is
written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_exp.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from grpo_exp.config import Config
    from grpo_exp.preflight.report import Report


def main(words: list[str]) -> int:
    """Look, write, tell.

    Raises:
        InputError: what the run itself would refuse before its first step.
        RunError: a reward failed, or the result cannot be written.
    """
    import time

    from grpo_exp import config as configuration
    from grpo_exp.preflight import report as reports
    from grpo_exp.preflight import screen
    from grpo_exp.stop import StopSignals
    from grpo_exp.subject import folder_of

    started = time.perf_counter()
    overrides = folder_of(words, "preflight", "")[1]
    composed = _composed(overrides)
    config = configuration.build(composed)
    folder = folder_of(words, "preflight", config.root.name)[0]
    assert config.preflight is not None
    if config.preflight.paper:
        return _on_paper(config, folder)
    with StopSignals() as stop, stop.at_once("before the look was over; nothing is written"):
        report = reports.look(config, stop, folder)
    about = {"overrides": overrides, "seconds": round(time.perf_counter() - started, 2)}
    _write(folder, report, about, configuration.resolved(composed), configuration.secret_values(composed))
    print("\n".join(screen.lines(report, folder)))
    return report.exit_code


def _on_paper(config: Config, folder: Path) -> int:
    """Reckon, write, tell."""
    from grpo_exp.preflight import paper
    from grpo_exp.track.files import json_text, make_folder, write_whole

    sheet = paper.reckon(config)
    make_folder(folder)
    write_whole(folder / "preflight.json", json_text(sheet.facts()))
    print("\n".join([*sheet.lines(), f"written to {folder}"]))
    return sheet.exit_code


def _composed(words: list[str]) -> DictConfig:
    """The configuration of the run.

    Raises:
        ConfigError: it does not compose, or is of several runs.
    """
    from grpo_exp.command_line import read
    from grpo_exp.compose import compose

    request = read(words)
    if request.sweep or not request.trains:
        raise ConfigError(
            f"preflight {' '.join(request.flags)}: it looks at one run; of Hydra's flags, only --config-dir has a meaning here"
        )
    return compose(request)


def _write(folder: Path, report: Report, about: dict[str, Any], plain: dict[str, Any], secrets: set[str]) -> None:
    """preflight.json, pass_rates.jsonl, samples.jsonl and config.yaml, the files of an earlier look replaced."""
    import yaml

    from grpo_exp.track.files import json_line, json_text, make_folder, write_whole
    from grpo_exp.track.redact import redact

    make_folder(folder)
    write_whole(folder / "config.yaml", yaml.safe_dump(redact(plain, secrets), sort_keys=False, allow_unicode=True))
    write_whole(folder / "preflight.json", json_text(redact(report.facts() | about, secrets)))
    if report.samples is not None:
        for name, rows in (("pass_rates", report.samples.rates()), ("samples", report.samples.rows)):
            write_whole(folder / f"{name}.jsonl", b"".join(json_line(row) for row in rows).decode("ascii"))
