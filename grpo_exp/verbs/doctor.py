"""what went wrong in a run, and since when: doctor RUN, of TRL, verl, OpenRLHF too [--strict]

    python -m grpo_exp doctor outputs/runs/RUN                finished, stopped or still going; the folder of a sweep: each run
    python -m grpo_exp doctor trl-output                      TRL: trainer_state.json in it, or in its newest checkpoint
    python -m grpo_exp doctor verl.log                        verl: its console's log, or the .jsonl of its file logger
    python -m grpo_exp doctor wandb.csv mapping=openrlhf      CSV or JSON lines of TRL, verl (recognised) or OpenRLHF
    python -m grpo_exp doctor my.csv metrics.reward/mean=my_reward metrics.length/truncated_frac=0.01*cut metrics.step=iter
    python -m grpo_exp doctor my.csv mapping=my.yaml          the same from a file of lines `reward/mean: my_reward`
    python -m grpo_exp doctor RUN --json -                    for machines; - is standard output
    python -m grpo_exp doctor RUN --strict                    exit code 3 where a finding of action warn or graver exists

The detectors of the group `health` see the run step by step, as while it went: what each found, since which step, what was
seen, why, what to try; and which could not look, and the metric that is missing. Thresholds are a run's own, of another
program's run those of conf/health; options of health change them. Exit code 0 whatever is found, unless --strict is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_exp.errors import DataError, GrpoError, InputError, nearest
from grpo_exp.flags import Flags, write
from grpo_exp.health.log import Examined
from grpo_exp.paths import expanded

if TYPE_CHECKING:
    from grpo_exp.health.options import Health
    from grpo_exp.report.runs import Run
    from grpo_exp.track.base import Row

USAGE = "usage: python -m grpo_exp doctor RUN [RUN ...] [health...=VALUE] [metrics.NAME=COLUMN] [--json FILE] [--strict]"
METRICS, MAPPING = "metrics.", "mapping="
FILES = ("run.json", "metrics.jsonl")
"""Files that stand for the run in whose folder they are."""


def main(words: list[str]) -> int:
    """Read, look, tell.

    Raises:
        InputError: there is no such run, it is no log, or a word is not understood.
        RunError: a file cannot be written.
    """
    from grpo_exp.health import screen

    asked = _parser().parse_intermixed_args(words)
    request = _request(asked)
    examined = [one for path in request.paths for one in _examined(expanded(path), request)]
    if asked.json is not None:
        write(asked.json, screen.as_json(examined))
    if asked.json != "-":
        print("\n".join(screen.lines(examined)))
    grave = screen.gravest(examined) not in ("off", "note")
    return 3 if asked.strict and grave else 0


# ---- words


def _parser() -> Flags:
    parser = Flags("doctor", USAGE)
    parser.add_argument("words", nargs="+", metavar="RUN")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--config-dir", metavar="DIR")
    return parser


@dataclass(frozen=True)
class _Request:
    """What was asked for.

    Attributes:
        overrides: options of health, `--config-dir DIR` before them.
        own, named: the user's names of metrics, and the built-in mapping that was named.
    """

    paths: list[str]
    overrides: list[str]
    own: dict[str, str]
    named: str | None


def _request(asked: argparse.Namespace) -> _Request:
    """The words by what they are; one that names a file is a path, whatever else is in it.

    Raises:
        InputError: one is none of these.
    """
    from grpo_exp.health.names import BUILT_IN, of_file

    paths, overrides, own, named = [], [], dict[str, str](), None
    for word in asked.words:
        name, equals, value = word.partition("=")
        if not equals or expanded(word).exists():
            paths.append(word)
        elif word.startswith(METRICS):
            own[name.removeprefix(METRICS)] = value
        elif word.startswith(MAPPING):
            named = value if value in BUILT_IN else named
            own = own if value in BUILT_IN else of_file(expanded(value)) | own
        elif name.partition(".")[0] == "health":
            overrides.append(word)
        else:
            known = ["health", "metrics.NAME", "mapping"]
            raise InputError(
                f"{word}: doctor takes health..., metrics.NAME=COLUMN and mapping=NAME.{nearest(name, known)} {USAGE}"
            )
    if not paths:
        raise InputError(f"doctor: no run is named. {USAGE}")
    flags = ["--config-dir", asked.config_dir] if asked.config_dir else []
    return _Request(paths, [*flags, *overrides], own, named)


# ---- runs


def _examined(path: Path, request: _Request) -> list[Examined]:
    """The runs that a word names, looked at."""
    from grpo_exp.health import foreign
    from grpo_exp.health.log import examine

    if not path.exists():
        raise InputError(f"{path}: no such file or folder. Give a run's folder, or a log: {foreign.KINDS}")
    state = foreign.trainer_state(path) if path.is_dir() else None
    if state is None and (path.is_dir() or (path.name in FILES and (path.parent / "run.json").is_file())):
        runs = _runs(path if path.is_dir() else path.parent)
        return [_of_ours(run, request) if len(runs) == 1 else _of_several(run, request) for run in runs]
    detectors = _fresh(request).detectors
    return [examine(log, detectors) for log in foreign.read(state or path, request.own, request.named)]


def _runs(folder: Path) -> list[Run]:
    from grpo_exp.health.foreign import KINDS
    from grpo_exp.report.runs import find

    try:
        return find([folder])
    except InputError as error:
        raise InputError(f"{error}. Of another program, give a folder with {KINDS} in it, or the file") from error


def _of_ours(run: Run, request: _Request) -> Examined:
    """A run of this program, with its own thresholds."""
    from grpo_exp.health.log import examine, of_folder
    from grpo_exp.track.files import read_object

    notes = [f"{run.status}: {run.reason}"] if run.reason else []
    try:
        config: Mapping[str, Any] = read_object(run.folder / "config.yaml")
    except GrpoError as error:
        config, notes = {}, [*notes, str(error)]
    health = _own(config, request, notes)
    state = ", ".join(str(part) for part in (run.config.get("algo"), run.status) if part)
    log = of_folder(run.folder, run.card, config, state, notes)
    explain = _explain(config) if log.samples else None
    return examine(log, health.detectors, explain)


def _of_several(run: Run, request: _Request) -> Examined:
    """The same; a damaged one does not keep the others from being looked at."""
    from grpo_exp.health.log import Log

    try:
        return _of_ours(run, request)
    except DataError as error:
        return Examined(Log(str(run.folder), "grpo_exp", run.status, notes=[str(error)]), [], {}, [], [])


def _own(config: Mapping[str, Any], request: _Request, notes: list[str]) -> Health:
    """The run's own thresholds with what was asked for; those of conf/health where it had none, or looked for nothing."""
    from grpo_exp.config import build_health, resolved
    from grpo_exp.subject import with_changes

    saved = config.get("health")
    if not isinstance(saved, Mapping) or not saved.get("active"):
        return _fresh(request)
    try:
        build_health(saved)
    except InputError as error:  # of another version
        notes.append(f"its own thresholds are not those of this version, so conf/health counts ({error})")
        return _fresh(request)
    return _active(build_health(resolved(with_changes({"health": dict(saved)}, request.overrides))["health"]))


def _fresh(request: _Request) -> Health:
    """The thresholds of conf/health with what was asked for."""
    from grpo_exp.command_line import read
    from grpo_exp.compose import compose
    from grpo_exp.config import build_health, resolved

    return _active(build_health(resolved(compose(read(request.overrides)))["health"]))


def _active(health: Health) -> Health:
    if not health.active:
        raise InputError("health.active=false: then there is nothing to look for; leave it out")
    return health


def _explain(config: Mapping[str, Any]) -> Callable[[Row], str] | None:
    """What the run's reward read in a sample; None where the run cannot be composed any more."""
    from grpo_exp import config as configuration
    from grpo_exp.explained import explainer
    from grpo_exp.subject import with_changes

    try:
        return explainer(configuration.build(with_changes(dict(config), []), judged=False).reward)
    except GrpoError:  # a file that is gone, another version
        return None
