"""Hydra's part: where the configuration lives, and its errors in one message each."""

from __future__ import annotations

import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo_exp.errors import ConfigError, nearest

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE if (PACKAGE / "conf").is_dir() else PACKAGE.parent
"""Holds conf/ and sweeps/: the package where it was installed from a wheel, otherwise the checkout."""


def register() -> None:
    """The resolvers that conf/config.yaml uses."""
    OmegaConf.register_new_resolver("grpo_exp_root", lambda: str(ROOT), replace=True)
    OmegaConf.register_new_resolver("sweep_name", lambda sweep, now: str(sweep) if sweep not in (None, "null") else now, replace=True)


def launch(words: list[str]) -> int:
    """Run Hydra on the command line's words: one job or several.

    Raises:
        ConfigError: the words do not compose.
        GrpoError: as raised by the job.
    """
    register()
    _check_groups(words)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here instead of being printed and ending the process
    before, sys.argv = sys.argv, [sys.argv[0], *words]
    try:
        hydra.main(version_base="1.3", config_path=str(ROOT / "conf"), config_name="config")(_job)()
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error)) from error
    except Exception as error:
        from grpo_exp.errors import GrpoError

        if isinstance(error, GrpoError):
            raise
        traceback.print_exc()
        sys.stderr.write(f"grpo_exp: the run failed: {type(error).__name__}: {error}\n")
        return 3
    finally:
        sys.argv = before
    return 0


def _job(composed: DictConfig) -> Any:
    from grpo_exp.run import run

    return run(composed)


def explain(error: Exception) -> str:
    """A Hydra or OmegaConf error as one message with the nearest valid name."""
    text = str(error).strip()
    cause = error.__cause__
    if match := re.search(r"Could not (?:override|find) '([^']+)'", text):
        key = match.group(1)
        valid = _keys(_values())
        return f"{key}: no such option.{nearest(key, valid) or _near_leaf(key, valid)} python -m grpo_exp --help lists the options"
    if match := re.search(r"In '[^']*': Could not find '([^']+)'|Could not find '([^']+)'", text):
        return _no_option(match.group(1) or match.group(2))
    if match := re.search(r"Could not load '([^']+)'", text):
        return _no_option(match.group(1))
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    more = str(cause).strip().splitlines()[0] if cause and str(cause).strip() else ""
    return first + (f" ({more})" if more and more not in first else "")


def _no_option(path: str) -> str:
    group, _, name = path.rpartition("/")
    valid = options(group)
    return f"{group}={name}: no such option. Valid: {', '.join(valid)}.{nearest(name, valid)}"


def options(group: str) -> list[str]:
    """The options of a config group, by listing its folder."""
    folder = ROOT / "sweeps" if group == "sweeps" else ROOT / "conf" / group
    return sorted(p.stem for p in folder.glob("*.yaml"))


def groups() -> list[str]:
    """The config groups: the folders of conf/, and sweeps."""
    return sorted(p.name for p in (ROOT / "conf").iterdir() if p.is_dir()) + ["sweeps"]


def compose(words: list[str]) -> DictConfig:
    """Compose a configuration outside a Hydra run, for verbs and tests.

    Raises:
        ConfigError: the words do not compose.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    register()
    _check_groups(words)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(ROOT / "conf")):
            return hydra_compose("config", overrides=words)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error)) from error


def _check_groups(words: list[str]) -> None:
    """Group options are plain names: a path would load a file from outside the configuration.

    Raises:
        ConfigError: naming the word.
    """
    overrides = [w for w in words if not w.startswith("-") and "=" in w]
    for parsed in OverridesParser.create().parse_overrides(overrides):
        key = (parsed.key_or_group or "").split("@")[0]
        for value in str(parsed.get_value_element_as_str()).split(",") if key.split("/")[0] in groups() and "." not in key else []:
            if not re.fullmatch(r"[\w.\-\[\]\s]+", value) or ".." in value:
                raise ConfigError(f"{parsed.input_line}: a group's option is a name made of letters, digits, '_', '-' and '.'")


def _values() -> dict[str, Any]:
    plain = OmegaConf.to_container(compose([]))
    assert isinstance(plain, dict)
    return {str(k): v for k, v in plain.items()}


def _keys(values: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in values.items():
        found.append(prefix + str(name))
        if isinstance(value, dict):
            found += _keys(value, f"{prefix}{name}.")
    return found


def _near_leaf(key: str, valid: list[str]) -> str:
    """For `clip_low` or `algo.clp_low`: an option that ends in nearly the same name."""
    leaf = key.rpartition(".")[2]
    same = [name for name in valid if name.rpartition(".")[2] == leaf]
    return f" Did you mean '{same[0]}'?" if same else ""
