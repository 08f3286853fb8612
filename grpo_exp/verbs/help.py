"""verbs, groups, options: `help algo` or `help algo=grpo` for the options of a group, `help VERB`"""

from __future__ import annotations

import ast
import dataclasses
import re
import textwrap
import typing
from pathlib import Path
from typing import Any

import yaml

from grpo_exp.errors import InputError, nearest

WIDTH = 116
SECTIONS = ("sweep", "preflight", "experience", "optim", "checkpoint", "objective")


def main(words: list[str]) -> int:
    """Print the overview, or the options of one group.

    Raises:
        InputError: there is no such group or verb.
    """
    if not words:
        print(overview())
    elif len(words) == 1:
        print(about(words[0]))
    else:
        raise InputError(f"help {' '.join(words)}: expected one word, such as help algo or help algo=grpo")
    return 0


# ---- the overview


def overview() -> str:
    """The help of the command line, about a screen. Reads YAML files and needs neither torch nor a composition."""
    from grpo_exp.command_line import group_folders, options
    from grpo_exp.config import RootOptions

    root = yaml.safe_load((_conf() / "config.yaml").read_text(encoding="utf-8"))
    chosen = {k: v for entry in root["defaults"] if isinstance(entry, dict) for k, v in entry.items()}
    lines = [
        "grpo_exp: experiments in reinforcement learning for language models",
        "",
        "usage  python -m grpo_exp [GROUP=NAME ...] [KEY=VALUE ...]      train; without words: the tiny model, on a CPU",
        "       python -m grpo_exp -m KEY=VALUE,VALUE ... [KEY=VALUE]    train once for each combination",
        "       python -m grpo_exp sweeps=NAME [KEY=VALUE ...]           the same, from a file in sweeps/",
        "       python -m grpo_exp VERB ...                              one of these:",
        *_table([(name, line) for name, line in _verbs().items()], "         "),
        "",
        "groups (the name in brackets is what is taken unless you choose; sweeps: none)",
    ]
    for group in group_folders():
        names = [f"[{name}]" if name == chosen.get(group) else name for name in options(group)]
        lines += _table([(group, " ".join(names) or "-")], "  ", 23)
    lines += ["", "options at the root, with their values unless a group sets another"]
    algorithm = yaml.safe_load((_conf() / "algo" / f"{chosen['algo']}.yaml").read_text(encoding="utf-8"))
    values = {**root, **{k: v for k, v in algorithm.items() if k in root}}
    for field in dataclasses.fields(RootOptions):
        lines += _table([(f"{field.name}={_written(values[field.name])}", field.metadata["meaning"])], "  ", 46)
    return "\n".join([*lines, "", *_more()])


def _more() -> list[str]:
    return [
        "options within a group have its name before them: algo.clip_low=0.1 eval.samples=8 reward.parts.format.weight=0",
        "  python -m grpo_exp help algo        the options of a group, with values and meaning",
        "  python -m grpo_exp --cfg job ...    print the configuration instead of running it",
        "  --config-dir DIR                    your own options as well: DIR/reward/mine.yaml, DIR/sweeps/mine.yaml",
        "  text with blanks or special characters is quoted twice: 'data.prompt=\"{Body} {Question}\"'",
        "",
        "output goes to outputs/runs/DATE_TIME_NAME, outputs/sweeps/NAME/NUMBER and outputs/evaluations; hydra.run.dir= and",
        "hydra.sweep.dir= choose another folder. Exit codes: 0 done, 2 wrong input, 3 failed, 130 138 143 stopped by a signal.",
    ]


def _verbs() -> dict[str, str]:
    """Each verb and the first line of its file."""
    from grpo_exp.verbs import VERBS

    return {name: _told(name).splitlines()[0] for name in VERBS}


def _told(verb: str) -> str:
    """What a verb's file says of it."""
    file = Path(__file__).with_name(f"{verb.replace('-', '_')}.py")
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def _conf() -> Path:
    from grpo_exp.command_line import ROOT

    return ROOT / "conf"


# ---- one group


def about(word: str) -> str:
    """The options of a group, a section of the root or a verb.

    Raises:
        InputError: no such one; the nearest is suggested.
    """
    from grpo_exp.command_line import group_folders
    from grpo_exp.compose import compose
    from grpo_exp.verbs import VERBS

    group, _, name = word.partition("=")
    groups = [*group_folders(), *SECTIONS]
    verb = _told(group) if group in VERBS and not name else ""
    if verb and group not in groups:
        return verb
    if group not in groups or (name and group in SECTIONS):
        raise InputError(f"help {word}: no such group. Valid: {', '.join(groups)}.{nearest(group, [*groups, *VERBS])}")
    if group in SECTIONS:  # `preflight` is a verb and a section
        return "\n".join([*([verb, ""] if verb else []), *_section(group, compose([]))])
    listing = _listing(group)
    if group == "sweeps" or group.startswith("hydra/"):  # their files say all there is
        return "\n".join(listing) if not name else _file(group, name).read_text(encoding="utf-8").rstrip()
    head = [] if name else [*([verb, ""] if verb else []), *listing, ""]  # `reward` is a verb and a group
    if group == "reward/part":
        composed = compose([f"+reward/part@reward.parts.PART={name or 'math'}"])
        part = composed.reward.parts.PART
        return "\n".join([*head, "reward.parts.PART:", *_fields(_options_class(group, part), _raw(part), "reward.parts.PART")])
    composed = compose([word, *_needed(word)] if name else [])
    return "\n".join([*head, *_section(group, composed)])


def _raw(node: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(node, resolve=False)
    assert isinstance(plain, dict)
    return {str(k): v for k, v in plain.items()}


def _needed(package: str) -> list[str]:
    """What makes an option compose that has no value of its own."""
    return {"reward=custom": ["reward.path=my_rewards.py:score"], "reward=model": ["reward.path=FOLDER"]}.get(package, [])


def _listing(group: str) -> list[str]:
    """`name  what it is` of each option of a group, from the comment that its file begins with."""
    from grpo_exp.command_line import options

    return [f"{group}:", *_table([(name, _first_comment(_file(group, name))) for name in options(group)], "  ")]


def _file(group: str, name: str) -> Path:
    from grpo_exp.command_line import group_folders, options

    if name not in options(group):
        raise InputError(
            f"help {group}={name}: no such option. Valid: {', '.join(options(group))}.{nearest(name, options(group))}"
        )
    return next(file for folder in group_folders()[group] if (file := folder / f"{name}.yaml").is_file())


def _first_comment(file: Path) -> str:
    lines = [line.lstrip("# ").strip() for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return next((line for line in lines if not line.startswith("@package")), "")


def _section(key: str, composed: Any) -> list[str]:
    """Each option below a key: its value, its meaning, what it takes."""
    raw = _raw(composed[key])
    lines = [f"{key}:"]
    if key == "reward":
        parts = raw.pop("parts")
        lines += _fields(_options_class(key, raw), raw, "reward")
        for name, part in parts.items():
            lines += ["", f"reward.parts.{name}:", *_fields(_options_class("reward/part", part), part, f"reward.parts.{name}")]
        return lines
    return lines + _fields(_options_class(key, raw), raw, key)


def _options_class(key: str, values: dict[str, Any]) -> type[Any]:
    """The dataclass whose fields a group's options are."""
    from grpo_exp.config import option_class

    return option_class(key, values)


def _fields(cls: type[Any], values: dict[str, Any], key: str) -> list[str]:
    from grpo_exp.schema import takes

    lines = []
    for field in dataclasses.fields(cls):
        if field.name not in values:
            continue
        value = values[field.name]
        kind = typing.get_type_hints(cls)[field.name]
        if dataclasses.is_dataclass(kind) and isinstance(value, dict):
            lines += _fields(kind, value, f"{key}.{field.name}")  # type: ignore[arg-type]
        else:
            lines += _table(
                [(f"{key}.{field.name}={_written(value)}", f"{field.metadata['meaning']} [{takes(field)}]")], "  ", 44
            )
    return lines


# ---- layout


def _written(value: Any) -> str:
    """A value as it is written on the command line, shortened."""
    text = {True: "true", False: "false", None: "null"}[value] if value is None or isinstance(value, bool) else str(value)
    text = f"{value:g}" if isinstance(value, float) else text
    return text if len(text) <= 40 else f"{text[:37]}..."


def _table(rows: list[tuple[str, str]], margin: str, least: int = 0) -> list[str]:
    """Two columns, the second folded under its beginning; the first is `least` wide, otherwise as wide as its longest."""
    if not rows:
        return []
    left = least or max(len(a) + 2 for a, _ in rows)
    lines = []
    for a, b in rows:
        folded = textwrap.wrap(re.sub(r"\s+", " ", b), max(30, WIDTH - len(margin) - left), break_on_hyphens=False) or [""]
        first = [margin + a.ljust(left) + folded[0]] if len(a) < left else [margin + a, margin + " " * left + folded[0]]
        lines += [line.rstrip() for line in [*first, *(margin + " " * left + line for line in folded[1:])]]
    return lines
