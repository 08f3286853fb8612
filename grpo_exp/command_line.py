"""The words of a command line: taken apart and checked as far as can be without composing, and what conf/ and sweeps/ offer.

Nothing here imports torch, so a slip of the keyboard is answered at once.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Sweep
from hydra.errors import HydraException

from grpo_exp.errors import ConfigError, nearest
from grpo_exp.paths import expanded

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE if (PACKAGE / "conf").is_dir() else PACKAGE.parent
"""Holds conf/ and sweeps/: the package where it was installed from a wheel, otherwise the checkout."""

PLACES = {"reward/part": "reward.parts.", "data": "data.sources."}
"""Groups of which several options may be chosen, each at a place of its own."""
QUOTES = """put text with special characters in quotes, and those in quotes for the shell: 'data.prompt="{Body} {Question}"'"""


@dataclass(frozen=True)
class Request:
    """A command line, taken apart.

    Attributes:
        overrides: the words `KEY=VALUE`, `+KEY=VALUE`, `~KEY`.
        flags: all other words, Hydra's.
        config_dir: the folder of the user's own options, from `--config-dir`.
        sweep: `-m` was given.
        trains: False where a flag asks Hydra to show something instead.
    """

    overrides: list[str]
    flags: list[str]
    config_dir: Path | None
    sweep: bool
    trains: bool

    def with_words(self, overrides: list[str]) -> Request:
        """The same flags with other overrides, for one run."""
        return Request(overrides, self.flags, self.config_dir, False, self.trains)


def read(words: Sequence[str]) -> Request:
    """Take a command line apart and check what can be seen without composing: flags, groups, options of groups.

    Raises:
        ConfigError: naming the word.
    """
    parser = get_args_parser()
    parser.__class__ = _Parser
    found = parser.parse_intermixed_args(list(words))
    config_dir = None if found.config_dir is None else expanded(found.config_dir).resolve()
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(
            f"--config-dir {found.config_dir}: no such folder. It holds your own options, such as reward/mine.yaml"
        )
    for flag in ("--config-path, -cp", "--config-name, -cn", "--experimental-rerun"):
        if getattr(found, flag.partition(",")[0][2:].replace("-", "_")) is not None:
            raise ConfigError(
                f"{flag}: a run is composed from conf/config.yaml alone. Options of your own are files in a folder that "
                "--config-dir names, such as DIR/algo/mine.yaml; a run goes on with resume RUN"
            )
    rest = list(words)
    for word in found.overrides:
        rest.remove(word)
    shows = found.cfg or found.info or found.hydra_help or found.shell_completion or found.experimental_rerun
    request = Request(list(found.overrides), rest, config_dir, bool(found.multirun), not shows)
    for word in request.overrides:
        _check_word(word, config_dir)
    return request


class _Parser(argparse.ArgumentParser):
    """Hydra's parser, with errors as ours."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. python -m grpo_exp --help shows the usage, --hydra-help Hydra's flags")


# ---- what there is


FROM_PLUGINS = ("hydra/launcher",)
"""Groups to which installed packages add options that no folder shows: Hydra says which there are."""


def group_folders(config_dir: Path | None = None) -> dict[str, list[Path]]:
    """The config groups and the folders that hold their options: those of conf/, `sweeps`, and those of `--config-dir`."""
    folders: dict[str, list[Path]] = {}
    for top in [ROOT / "conf", *([config_dir] if config_dir else [])]:
        for folder in sorted(p for p in top.rglob("*") if p.is_dir()):
            if any(folder.glob("*.yaml")):
                folders.setdefault(folder.relative_to(top).as_posix(), []).append(folder)
    folders.setdefault("sweeps", []).append(ROOT / "sweeps")
    return folders


def options(group: str, config_dir: Path | None = None) -> list[str]:
    """The options of a config group, by listing its folders."""
    return sorted({p.stem for folder in group_folders(config_dir).get(group, []) for p in folder.glob("*.yaml")})


def _check_word(word: str, config_dir: Path | None) -> None:
    """An override can be read, and a group's option exists: a name, never a path, which would load a file from elsewhere.

    Raises:
        ConfigError: naming the word.
    """
    parsed = parse(word)
    group = parsed.key_or_group or ""
    if group not in group_folders(config_dir):
        return
    builtin = group in group_folders()
    if parsed.is_delete():
        if builtin and group not in ("sweeps", "reward/part"):
            raise ConfigError(f"{word}: a run needs one; choose {group}={' or '.join(options(group, config_dir))}")
        return
    placed = parsed.package is not None and parsed.package.startswith(PLACES.get(group, "/"))
    if parsed.is_add() and builtin and group != "reward/part" and not placed:
        raise ConfigError(f"{word}: write {word.lstrip('+')}, without the +")
    if parsed.package and builtin and group != "reward/part" and not placed:
        places = " and ".join(f"{name}@{place}NAME" for name, place in PLACES.items())
        raise ConfigError(f"{word}: no such option. Choose {group}=NAME; only {places} have a place")
    if group == "reward/part" and not parsed.package:
        raise ConfigError(f"{word}: a part needs a place; write +reward/part@reward.parts.NAME=OPTION")
    valid = options(group, config_dir)
    for value in _values(parsed):
        name = "null" if value is None else str(value)
        if value is None and group == "sweeps":
            continue
        if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
            raise ConfigError(f"{word}: {name!r} is no name of an option of {group}. Valid: {', '.join(valid)}")
        if name not in valid and group not in FROM_PLUGINS:
            raise ConfigError(f"{group}={name}: no such option. Valid: {', '.join(valid)}.{nearest(name, valid)}")


def parse(word: str) -> Override:
    """One override.

    Raises:
        ConfigError: it cannot be read.
    """
    if not re.match(r"[+~]*[^=+~]", word) or ("=" not in word and not word.startswith("~")):
        raise ConfigError(f"'{word}': expected KEY=VALUE such as beta=0.05; a verb stands first. See python -m grpo_exp --help")
    try:
        found = OverridesParser.create().parse_override(word)
        value = found.value()
        if isinstance(value, ChoiceSweep) and any(isinstance(item, Sweep) for item in value.list):
            raise ValueError("a list of values holds no choice, range or interval of its own")
        return found
    except (HydraException, ValueError, RecursionError) as error:
        reason = str(error.__cause__ or error).splitlines()[0][:120]
        reason = "a character that has to be quoted" if "LexerNoViable" in reason else reason
        raise ConfigError(f"{word!r} cannot be read as KEY=VALUE ({reason}); {QUOTES}") from error


def _values(parsed: Override) -> list[Any]:
    """The value, or each of several."""
    if parsed.is_sweep_override():
        if not isinstance(parsed.value(), ChoiceSweep):
            raise ConfigError(f"{parsed.input_line}: expected names of options")
        return [text.strip("'\"") for text in parsed.sweep_string_iterator()]
    value = parsed.value()
    return list(value) if isinstance(value, list) else [value]
