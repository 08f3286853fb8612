"""From a command line to a composed configuration, with Hydra's errors in one message each. Nothing here imports torch."""

from __future__ import annotations

import copy
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.initialize import initialize_config_dir
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from grpo_exp.command_line import ROOT, Request, group_folders, options, parse, read
from grpo_exp.errors import ConfigError, nearest
from grpo_exp.track.redact import remember


def register() -> None:
    """The resolvers that conf/ and sweeps/ use; `${quotient:64,${G}}` is how many whole groups 64 samples make."""
    OmegaConf.register_new_resolver("grpo_exp_root", lambda: str(ROOT), replace=True)
    OmegaConf.register_new_resolver("sweep_folder", lambda sweep, now: sweep or now, replace=True)
    OmegaConf.register_new_resolver("quotient", lambda total, part: int(total) // int(part), replace=True)
    OmegaConf.register_new_resolver("oc.env", _env, replace=True)


def _env(name: str, *default: str | None) -> str | None:
    """What `${oc.env:NAME}` stands for; a value from the environment is a secret from here on."""
    value: str | None = oc.env(name, *default)
    if name in os.environ:
        remember(name, value)
    return value


def compose(request: Request | Sequence[str]) -> DictConfig:
    """Compose the configuration of one run; the words of a command line are read first.

    Raises:
        ConfigError: they do not compose.
    """
    return without_hydra(whole(request if isinstance(request, Request) else read(request)))


def whole(request: Request) -> DictConfig:
    """The same with Hydra's own node.

    Raises:
        ConfigError: it does not compose.
    """
    return _load(request, RunMode.RUN)


def without_hydra(composed: DictConfig) -> DictConfig:
    """A copy of what was composed that is the run's own part."""
    own = copy.deepcopy(composed)
    OmegaConf.set_struct(own, False)
    del own["hydra"]
    OmegaConf.set_struct(own, True)
    return own


def is_sweep(request: Request) -> bool:
    """Whether Hydra will run several jobs: asked for by `-m` or by the file that sweeps=NAME names."""
    if request.sweep or not any(_may_sweep(word) for word in request.overrides):
        return request.sweep
    composed = _load(request, RunMode.MULTIRUN)
    try:
        return bool(composed.hydra.mode == RunMode.MULTIRUN)
    except OmegaConfBaseException as error:
        raise ConfigError(explain(error, request)) from error


def _may_sweep(word: str) -> bool:
    """Whether a word may set `hydra.mode`: all of Hydra's own may but for the names of folders, which most runs are given."""
    return bool(re.match(r"\+*(sweeps|hydra(?!\.(run|sweep)\.(sub)?dir=))\b", word))


def sweep_config(request: Request) -> DictConfig:
    """What Hydra composes for a sweep: the run's configuration, and its own node with the sweeper's options.

    Raises:
        ConfigError: it does not compose.
    """
    return _load(request, RunMode.MULTIRUN)


def _load(request: Request, mode: RunMode) -> DictConfig:
    """What Hydra composes, its own node included.

    Raises:
        ConfigError: it does not compose.
    """
    try:
        composed = _hydra(request, mode)
        _check_nodes(composed)
        return composed
    except ConfigError:
        raise
    except Exception as error:  # besides its own errors, Hydra lets AssertionError, KeyError and the like out on odd words
        raise ConfigError(explain(error, request)) from error


def _hydra(request: Request, mode: RunMode) -> DictConfig:
    words = list(request.overrides)
    if request.config_dir is not None:
        words.append(f"hydra.searchpath=['file://{ROOT}','file://{request.config_dir}']")
    with opened() as hydra, warnings.catch_warnings():
        warnings.filterwarnings("error", ".*is not available", UserWarning)  # a folder of hydra.searchpath
        return hydra.config_loader.load_configuration("config", words, run_mode=mode)


@contextmanager
def opened() -> Iterator[Hydra]:
    """A Hydra of its own over conf/; the one that may be at work is put back."""
    register()
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(ROOT / "conf")):
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            yield hydra
    finally:
        GlobalHydra.instance().hydra = before


def _check_nodes(composed: DictConfig) -> None:
    """Raise ConfigError where a word replaced or removed what is not the run's own to choose."""
    if not OmegaConf.is_dict(composed.get("sweep")):
        raise ConfigError(
            "sweep: missing; how trials are run is a section of conf/config.yaml, which no configuration is without"
        )
    for name in ("sweeper", "launcher"):
        if not OmegaConf.is_dict(composed.hydra[name]):
            raise ConfigError(f"hydra.{name}={str(composed.hydra[name])!r:.100}: expected a group of options")
    _refuse_code(OmegaConf.to_container(composed.hydra), "hydra")


def _refuse_code(values: Any, key: str) -> None:
    """Hydra calls what its own node names: callbacks, launchers, the factories of logging. A file of options may come from
    anywhere, so it names no code but Hydra's plugins; Hydra itself checks that these are some.

    Raises:
        ConfigError: naming the key.
    """
    if not isinstance(values, dict):
        return
    for name, value in values.items():
        where = f"{key}.{name}"
        plugin = name == "_target_" and (
            key in ("hydra.launcher", "hydra.sweeper") or key.startswith("hydra.sweeper.")  # a sampler's or pruner's name
        )
        logs = name == "class" and str(value).startswith(("logging.", "colorlog."))
        if (name in ("_target_", "()", "class") and not plugin and not logs) or (
            isinstance(value, str)
            and value.startswith(("ext://", "cfg://"))
            and value not in ("ext://sys.stdout", "ext://sys.stderr")
        ):
            raise ConfigError(
                f"{where}={str(value)!r:.100}: options name no code to be called. A reward of your own comes in by "
                "reward=custom reward.path=FILE.py:FUNCTION"
            )
        for i, item in enumerate(value if isinstance(value, list) else [value]):
            _refuse_code(item, f"{where}[{i}]" if isinstance(value, list) else where)


# ---- errors in words


def explain(error: BaseException, request: Request) -> str:
    """An error of composing as one message with the nearest valid name."""
    marked = next((e for e in _chain(error) if hasattr(e, "problem_mark") and e.problem_mark), None)
    if marked is not None:
        mark = marked.problem_mark
        return f"{mark.name}:{mark.line + 1}: broken YAML, column {mark.column + 1}: {getattr(marked, 'problem', '')}"
    text = "\n".join(dict.fromkeys(str(e).strip() for e in _chain(error)))
    if match := re.search(r"Could not override '([^']+)'|Could not delete from config\. '([^']+)' does not exist", text):
        return _unknown(match.group(1) or match.group(2), request)
    if match := re.search(r"Could not append to config\. An item is already at '([^']+)'", text):
        return f"+{match.group(1)}: there is such an option already; write it without the +"
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '([^']+)'", text):
        return (
            f"{match.group(1)}: several values are for a sweep, which needs -m; a list is written in brackets, as in key=[a,b]"
        )
    if match := re.search(r"In '([^']*)': Could not (?:find|load) '([^']+)'", text):
        group, _, name = match.group(2).rpartition("/")
        valid = options(group, request.config_dir)
        return f"{match.group(1)}.yaml: its defaults name {group}={name}, which does not exist.{nearest(name, valid)}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kind = "" if isinstance(error, (HydraException, OmegaConfBaseException)) else f"{type(error).__name__}: "
    first = kind + (lines[0] if lines else "no reason given")
    more = [line for line in lines[1:] if line.startswith("full_key:") or "Interpolation" in line or "is not" in line][:2]
    given = " ".join(request.overrides)
    given = f" with {given[:117]}..." if len(given) > 120 else f" with {given}" if given else ""
    return f"the configuration does not compose{given}: {' '.join([first, *more])}"


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _unknown(key: str, request: Request) -> str:
    """`betta: no such option. Did you mean 'beta'?`"""
    valid = known_keys(request)
    where = key.partition("@")[0]
    near = nearest(where, valid) or _near_leaf(where, valid)
    return f"{key}: no such option.{near} See python -m grpo_exp --help, and help GROUP for the options of a group"


def known_keys(request: Request) -> list[str]:
    """Every key that can be set, with the options that the words choose, and the groups."""
    folders = group_folders(request.config_dir)
    parsed = [(w, parse(w)) for w in request.overrides if not w.startswith(("~", "+"))]
    chosen = [w for w, override in parsed if override.key_or_group in folders and not override.is_sweep_override()]
    try:
        composed = _hydra(request.with_words(chosen), RunMode.RUN)
    except Exception:  # one of the choices is itself what is wrong
        composed = _hydra(request.with_words([]), RunMode.RUN)
    plain = OmegaConf.to_container(composed)
    assert isinstance(plain, dict)
    del plain["hydra"]
    return [*_keys(plain), *folders]


def _keys(values: dict[Any, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in values.items():
        found.append(f"{prefix}{name}")
        if isinstance(value, dict):
            found += _keys(value, f"{prefix}{name}.")
    return found


def _near_leaf(key: str, valid: list[str]) -> str:
    """For `clip_low` or `algo.clip_low_`: an option whose last name is the same or nearly so."""
    leaves: dict[str, str] = {}
    for name in valid:
        leaves.setdefault(name.rpartition(".")[2], name)
    leaf = key.rpartition(".")[2]
    if leaf in leaves:
        return f" Did you mean '{leaves[leaf]}'?"
    near = nearest(leaf, leaves)
    return f" Did you mean '{leaves[near.split(chr(39))[1]]}'?" if near else ""
