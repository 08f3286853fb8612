"""What a word on the command line names as the thing to evaluate, and the configuration that belongs to it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo_exp.command_line import Request, group_folders, options, parse, read
from grpo_exp.compose import compose
from grpo_exp.errors import ConfigError, DataError, InputError, nearest
from grpo_exp.paths import expanded
from grpo_exp.track.files import read_object
from grpo_exp.track.wording import is_number

FOLDER = "hydra.run.dir="
SECTIONS = ("data", "reward", "rollout", "hardware", "eval", "model")
"""What may be changed for an evaluation; all else, such as beta, belongs to training."""


@dataclass(frozen=True)
class Subject:
    """What is evaluated.

    Attributes:
        name: for the folder and the table.
        saved: the configuration of the run it comes from; None for a model from elsewhere.
        words: overrides that choose the model, where there is no run or its weights are not taken from a checkpoint.
        checkpoint: the checkpoint whose weights are put into the model; None for the model as it is loaded.
    """

    name: str
    saved: dict[str, Any] | None
    words: list[str] = field(default_factory=list)
    checkpoint: Path | None = None


def find(word: str) -> Subject:
    """The subject that a word names: a run, RUN@STEP, RUN@best, a checkpoint, an export, a model's folder, id or name.

    Raises:
        InputError: there is nothing of that name, or it is none of these.
    """
    path, step = expanded(word), ""
    if not path.exists() and "@" in word:
        path, step = expanded(word.rpartition("@")[0]), word.rpartition("@")[2]
    if not path.is_dir():
        return _elsewhere(word)
    path = path.resolve()
    if (path / "run.json").is_file():
        return _of_run(path, step)
    if step:
        raise InputError(f"{word}: {path} is no run's folder, and only a run has several checkpoints")
    if (path / "manifest.json").is_file() and (path.parent.parent / "run.json").is_file():
        run = path.parent.parent
        return Subject(f"{_name(run)}_{path.name}", saved_options(run), checkpoint=path)
    if (path / "adapter_config.json").is_file():
        return _adapter(path)
    if (path / "config.json").is_file():
        return _whole_model(path)
    if (path / "sweep.json").is_file():
        raise InputError(f"{word} is a sweep; name one of its runs, such as {word.rstrip('/')}/0")
    raise InputError(
        f"{word}: neither a run (no run.json), nor a checkpoint of one (no manifest.json), nor a model (no config.json), "
        "nor an adapter (no adapter_config.json)"
    )


def configuration(subject: Subject, words: list[str], verb: str = "evaluate", also: Sequence[str] = ()) -> DictConfig:
    """The subject's configuration with the overrides of an evaluation, or of a verb that takes root options `also`.

    Raises:
        ConfigError: an override does not compose, or has no meaning in an evaluation.
    """
    request = read(words)
    if request.sweep or not request.trains:
        raise ConfigError(f"{verb} {' '.join(request.flags)}: of Hydra's flags, only --config-dir has a meaning here")
    for word in request.overrides:
        key = (parse(word).key_or_group or "").partition("@")[0]
        valid = [*SECTIONS, *also]
        if key.partition(".")[0] not in valid:
            raise ConfigError(f"{word}: {verb} takes options of {', '.join(valid)} alone.{nearest(key, valid)}")
    if subject.saved is None:
        composed = compose(request.with_words([*subject.words, *request.overrides]))
    else:
        composed = _changed(_opened(subject.saved), request.with_words(subject.words))
        composed = _changed(composed, request)
    return composed


def _changed(composed: DictConfig, request: Request) -> DictConfig:
    """A saved configuration with groups replaced by freshly composed ones, then with single values changed."""
    groups = [w for w in request.overrides if parse(w).key_or_group in group_folders(request.config_dir)]
    if groups:
        fresh = compose(request.with_words(groups))
        for word in groups:
            name = str(parse(word).key_or_group)
            composed[name] = OmegaConf.to_container(
                fresh[name], resolve=False
            )  # what it refers to is looked up in the saved one
    OmegaConf.set_struct(composed, True)
    for word in request.overrides:
        if word in groups:
            continue
        parsed = parse(word)
        key = str(parsed.key_or_group)
        if parsed.is_add() or parsed.is_delete() or parsed.is_sweep_override():
            raise ConfigError(f"{word}: expected KEY=VALUE")
        try:
            OmegaConf.update(composed, key, parsed.value(), merge=True)
        except OmegaConfBaseException as error:
            section = OmegaConf.to_container(composed[key.partition(".")[0]], resolve=False)
            top = key.partition(".")[0]
            valid = [f"{top}.{name!s}" for name in (section if isinstance(section, dict) else {})]
            raise ConfigError(f"{key}: no such option. Valid: {', '.join(valid)}.{nearest(key, valid)}") from error
    return composed


def with_changes(saved: dict[str, Any], words: list[str]) -> DictConfig:
    """A run's options with some of them changed.

    Raises:
        ConfigError: a word is no KEY=VALUE, or there is no such option.
    """
    return _changed(_opened(saved), read(words))


def _opened(saved: dict[str, Any]) -> DictConfig:
    try:
        return OmegaConf.create(saved)
    except OmegaConfBaseException as error:  # a date, a list as a key
        raise DataError(f"config.yaml: {error}") from error


def folder_of(words: list[str], kind: str, name: str) -> tuple[Path, list[str]]:
    """The folder that hydra.run.dir= names, else a new one, outputs/KIND/TIME_NAME; and the other words."""
    named = [word.removeprefix(FOLDER) for word in words if word.startswith(FOLDER)]
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{re.sub(r'[^A-Za-z0-9_.+=@-]', '_', name)[:100]}"
    above = Path("outputs", kind)
    free = (f for n in range(1, 1000) if not (f := above / (stem if n == 1 else f"{stem}_{n}")).exists())
    return Path(named[0]) if named else next(free), [word for word in words if not word.startswith(FOLDER)]


# ---- runs


def _of_run(run: Path, step: str) -> Subject:
    saved = saved_options(run)
    sealed = (p.parent for p in (run / "checkpoints").glob("step-*/manifest.json"))
    complete = sorted(p for p in sealed if p.name.removeprefix("step-").isdecimal())
    found = {int(p.name.removeprefix("step-")): p for p in complete}
    if not found:
        if step or not (run / "export").is_dir():
            raise InputError(f"{run} has no checkpoints; the run has to take a step first")
        return find(str(run / "export"))
    if step == "best":
        chosen = _best(complete, saved)
    elif step:
        if not step.isdigit() or int(step) not in found:
            there = ", ".join(str(number) for number in found)
            raise InputError(
                f"{run}@{step}: no checkpoint of that step; there are those of {there}, and @best is the best of them"
            )
        chosen = found[int(step)]
    else:
        chosen = complete[-1]
    return Subject(f"{_name(run)}_{chosen.name}", saved, checkpoint=chosen)


def _name(run: Path) -> str:
    """The run's folder, with the sweep's where it is called by a number."""
    return f"{run.parent.name}_{run.name}" if run.name.isdigit() else run.name


def _best(checkpoints: list[Path], saved: dict[str, Any]) -> Path:
    """The checkpoint with the best objective; the newest of equal ones."""
    objective = saved.get("objective")
    sign = -1.0 if isinstance(objective, dict) and objective.get("direction") == "minimize" else 1.0
    rated = [(read_object(p / "manifest.json").get("objective"), p) for p in checkpoints]
    valued = [(sign * value, p.name, p) for value, p in rated if is_number(value)]
    if not valued:
        raise InputError("no checkpoint of this run was evaluated, so none is the best; name a step")
    return max(valued)[2]


def saved_options(run: Path) -> dict[str, Any]:
    """The options that a run was started with, from its config.yaml.

    Raises:
        DataError: it cannot be read.
    """
    return read_object(run / "config.yaml")


# ---- models


def _whole_model(path: Path) -> Subject:
    kinds = read_object(path / "config.json").get("architectures")
    if isinstance(kinds, list) and kinds and str(kinds[0]).endswith("ForSequenceClassification"):
        raise InputError(
            f"{path} is a reward model, which answers no prompts: use it as reward=model reward.path={path}, and evaluate the "
            "run that trained it by the run's folder"
        )
    words = ["model.source=hub", f"model.path={_quoted(path)}", "model.adapter=none", "model.start_adapter=null"]
    if (path.parent / "run.json").is_file():  # an export: asked what its run was asked
        return Subject(f"{_name(path.parent)}_{path.name}", saved_options(path.parent), words)
    return Subject(path.name, None, ["model=hf", *words])


def _adapter(path: Path) -> Subject:
    start = f"model.start_adapter={_quoted(path)}"
    if (path.parent / "run.json").is_file():
        return Subject(f"{_name(path.parent)}_{path.name}", saved_options(path.parent), [start])
    base = read_object(path / "adapter_config.json").get("base_model_name_or_path")
    if not base:
        raise InputError(f"{path}: its adapter_config.json names no base model; add model.path=FOLDER_OR_ID")
    return Subject(path.name, None, ["model=hf", f"model.path={_quoted(base)}", start])


def _elsewhere(word: str) -> Subject:
    """An option of the group `model`, or a hub id."""
    if word in options("model"):
        return Subject(word, None, [f"model={word}"])
    if word.count("/") == 1 and not word.startswith((".", "/", "~", "outputs")) and all(word.split("/")):
        return Subject(word.rpartition("/")[2], None, ["model=hf", f"model.path={_quoted(word)}", "model.adapter=none"])
    raise InputError(
        f"{word}: no such folder, and no option of model ({', '.join(options('model'))}). Expected a run, RUN@STEP, a "
        f"checkpoint, an export, a model's folder or a hub id.{nearest(word, options('model'))}"
    )


def _quoted(value: object) -> str:
    """A text as an override's value, whatever characters are in it."""
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
