"""Any command line at all: a configuration that would start, or one short message that says which word is wrong.

Words are made from the options as conf/ lists them, so a new option, group or sweep is among them. GRPO_EXP_FUZZ=100 makes a
hundred times as many as CI does.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import re
import string
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import call
from hydra._internal import config_loader_impl as loader
from hydra._internal.config_loader_impl import ConfigLoaderImpl as Loader
from hydra._internal.defaults_list import Overrides
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins

from grpo_exp import command_line, compose, config, processes, run, schema
from grpo_exp.command_line import ROOT, group_folders, options
from grpo_exp.deadline import DeadlineExceeded, deadline
from grpo_exp.errors import LONGEST
from grpo_exp.sweep import sweeper

SHARDS, EACH = 10, 100
MORE = int(os.environ.get("GRPO_EXP_FUZZ", "1"))
SECONDS = 60.0
"""What no command line takes, however long the machine makes it wait."""


def flat(values: Any, key: str) -> Iterator[tuple[str, Any]]:
    yield key, values
    for name, value in values.items() if isinstance(values, dict) else ():
        yield from flat(value, f"{key}.{name}" if key else str(name))


@cache
def declared() -> dict[str, list[Any]]:
    """Each key that a file of conf/ sets, with the values it is given there."""
    found: dict[str, list[Any]] = {}
    for file in sorted((ROOT / "conf").rglob("*.yaml")):
        text = file.read_text()
        group = "" if "@package _global_" in text else ".".join(file.parent.relative_to(ROOT / "conf").parts)
        place = {"reward.part": "reward.parts.math"}.get(group, group)
        for key, value in flat({k: v for k, v in yaml.safe_load(text).items() if k != "defaults"}, place):
            found.setdefault(key, []).append(value)
    return {key: values for key, values in found.items() if key}


@cache
def choices() -> list[str]:
    """What the options' declarations allow by name."""
    sections = [config.option_class(s, {}) for s in ("", "model", "eval", "track", "optim", "sweep", "objective", "hardware")]
    fields = [f for cls in sections for f in dataclasses.fields(cls)]
    return sorted({c for f in fields for c in f.metadata["choices"]})


_ODD = r"""null ??? {} [] [1,2] {a:1} {a:{b:[1]}} a,b 1,2, '' "" 0 -0 -1 2.5 1e-9 1e308 nan -nan inf -inf 1e999 off on yes
~ true TRUE 0x10 1_000 ٣ 99999999999999999999 1e400 .5 5. +5 1:30 2026-01-01 ${beta} ${nope} ${G}${G}
${oc.env:HOME} ${oc.env:NO_SUCH} ${oc.env:HOME,x} ${now:%Y} ${quotient:1,0} ${quotient:a,b} ${grpo_exp_root:}
${..beta} ${a.b.c} ${algo} ${hydra.run.dir} ${ ${} ${a ${oc.x:} ${oc.decode:1} ${oc.create:{a:1}}
${quotient:${G},${beta}} ${oc.dict.keys:algo} range(1,3) choice(a,b) interval(0,1) choice() range(3,1)
interval(1,0) interval(a,b) tag(log,interval(0,1)) tag(log,interval(0.1,1)) int(interval(1,9)) shuffle(1,2)
sort(2,1) sort(b,1) str(1) float(x) int(2.5) bool(2) json_str({a:1}) extend_list(1) glob(*) range(0,1e9)
range(0,1000000000) range(0,1,1e-9) range(1,2,0) choice(a,[b],{c:1}) \ \' ' " ( ) [ ] [[ {{ }} {a} {a:} {:} {,}
[,] a=b =a a:b /etc/passwd ../x ~/x ~nobody9/x ./x pkg://os file:///x $HOME `id` $(id) %s %n {Body} "{Body}"
'{}' é 日本 🎈 \x1b[31m  a#b #a a;b a|b * ? @ @x x@y - -- -m + ++ ~~ . .. ... , ,, : :: <script> NUL\0"""
ODD = _ODD.split()


_FLAGS = """-m --multirun -c job --cfg all hydra --info config defaults --resolve --package algo -p -q -1 --x -cn config
--config-path x --config-dir . --config-dir=x --hydra-help --run --version = x --"""
FLAGS = _FLAGS.split()
HYDRA = [
    "hydra",
    *(f"hydra.{name}" for name in ("run.dir", "sweep.dir", "job.num", "mode", "searchpath", "launcher.x", "verbose")),
]
VERBS = ["evaluate", "report", "resume", "help", "reporr"]  # the others would talk to W&B or train


def value(rng: random.Random, key: str = "") -> str:
    """A value as it is typed: the option's own, one of a similar kind, or anything else."""
    own = declared().get(key)
    kind = rng.random()
    if own and kind < 0.45:
        return written(rng.choice(own))
    if kind < 0.7:
        return rng.choice(ODD)
    if kind < 0.78:
        return rng.choice(choices())
    if kind < 0.88:
        return str(
            rng.choice([rng.randrange(-3, 20), rng.uniform(-1, 2), 10 ** rng.randrange(1, 40), 10.0 ** rng.randrange(-30, 30)])
        )
    if kind < 0.93:
        return (
            ",".join(value(rng) for _ in range(rng.randrange(1, 4))) if rng.random() < 0.5 else f"[{value(rng)},{value(rng)}]"
        )
    if kind < 0.95:
        return rng.choice("[({<\"'$\\") * rng.choice([3, 40, 3000])
    alphabet = rng.choice([string.printable, string.ascii_letters, "".join(map(chr, range(1, 0x300))), "[]{}(),:=$\\'\" ab1"])
    return "".join(rng.choice(alphabet) for _ in range(rng.randrange(rng.choice([1, 8, 60, 2000]))))


def written(given: Any) -> str:
    if isinstance(given, (list, tuple)):
        return f"[{','.join(map(written, given))}]"
    if isinstance(given, dict):
        return "{" + ",".join(f"{k}:{written(v)}" for k, v in given.items()) + "}"
    return "null" if given is None else str(given).lower() if isinstance(given, bool) else str(given)


def misspelt(rng: random.Random, name: str) -> str:
    i = rng.randrange(len(name) + 1)
    return rng.choice(
        [name[:i] + rng.choice("abx._/@=:") + name[i:], name[: i - 1] + name[i:], name.upper(), name + "." + name]
    )


def word(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.55:
        key = rng.choice(sorted(declared()))
        return f"{rng.choice(['', '', '', '', '', '+', '++', '~'])}{key}={value(rng, key)}"
    if kind < 0.75:
        group = rng.choice(sorted(group_folders()))
        name = rng.choice(options(group)) if rng.random() < 0.7 else misspelt(rng, rng.choice(options(group)))
        place = (
            rng.choice(["", "", "", "@reward.parts.x", "@_global_", "@:x", "@x.y"])
            if rng.random() < 0.3 or "part" in group
            else ""
        )
        path = rng.choice(["", "", "", "", "../", "./", "/etc/", "../../", "a/"]) if rng.random() < 0.2 else ""
        return f"{rng.choice(['', '', '', '+', '~'])}{group}{place}={path}{name}"
    if kind < 0.85:
        return f"{rng.choice(['', '+', '++', '~'])}{misspelt(rng, rng.choice(sorted(declared())))}={value(rng)}"
    if kind < 0.9:
        return f"~{rng.choice(sorted(declared()))}"
    if kind < 0.95:
        key = rng.choice(HYDRA)
        return f"{rng.choice(['', '+', '++'])}{key}={rng.choice(ODD) if key.endswith('dir') else value(rng)}"
    return rng.choice([*FLAGS, *VERBS, *ODD])


def line(rng: random.Random) -> list[str]:
    words = [word(rng) for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 6]))]
    words += [rng.choice(words)] if rng.random() < 0.05 else []
    return (["-m"] if rng.random() < 0.15 else []) + words


KEPT: dict[Any, Any] = {}


def kept(key: Any, make: Callable[[], Any]) -> Any:
    if key not in KEPT:
        KEPT[key] = make()
    return KEPT[key]


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Hydra makes of the files of conf/ is made once for each choice of groups, and the
    objects of equal options once; all else is done for each command line."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")  # words may make ../x
    Plugins.instance()
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    source = SourcesRegistry.instance().resolve("file")
    load, lists, composes = source.load_config, loader.create_defaults_list, Loader._compose_config_from_defaults_list

    def load_once(self: Any, config_path: str) -> Any:
        return pickle.loads(kept((self.path, config_path), lambda: pickle.dumps(load(self, config_path))))

    def list_once(repo: Any, config_name: Any, overrides_list: list[Any], prepend_hydra: bool, skip_missing: bool) -> Any:
        values = Overrides(repo, overrides_list).config_overrides
        groups = [o.input_line for o in overrides_list if o not in values and not o.is_sweep_override()]
        groups += [o.input_line for o in values if o.get_key_element() == "hydra.searchpath"]
        made = kept((*groups, skip_missing), lambda: lists(repo, config_name, overrides_list, prepend_hydra, skip_missing))
        return dataclasses.replace(made, config_overrides=values)

    def compose_once(self: Loader, defaults: list[Any], repo: Any) -> Any:
        key = tuple((default.config_path, default.package) for default in defaults)
        return pickle.loads(kept(key, lambda: pickle.dumps(composes(self, defaults, repo))))  # faster than a deep copy

    monkeypatch.setattr(source, "load_config", load_once)
    monkeypatch.setattr(loader, "create_defaults_list", list_once)
    monkeypatch.setattr(Loader, "_compose_config_from_defaults_list", compose_once)
    makes = schema.make

    def make_once(cls: type[Any], values: Any, key: str) -> Any:
        return kept((cls, repr(values), key), lambda: makes(cls, values, key))

    monkeypatch.setattr(config, "make", make_once)
    folders = cache(command_line.group_folders)
    for module in (command_line, compose):
        monkeypatch.setattr(module, "group_folders", lambda config_dir=None: folders(config_dir))


ASKED = "hydra.sweeper.n_trials has no value"
"""What a sweep over an interval needs, whichever word that is in."""


def named(words: list[str], message: str) -> bool:
    """Whether a message names a word, its key, or the value."""
    for text in words:
        key, _, value = re.split(r"([=@])", text.lstrip("+~") + "=", maxsplit=1)
        path = key.replace("/", ".").split(".")
        parts = (path[0], path[-1], key, repr(key)[1:-1], repr(text)[1:40], value[:-1].strip("${}")[:20])
        if any(part and part in message for part in parts):
            return True
    return False


@pytest.fixture
def nothing_trains(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Up to where a run would load its data and model, or a sweep would begin; what began."""
    began = []

    def train(config: Any, *_: Any, **__: Any) -> float:
        began.append(config.root.name)
        return 0.5

    def sweep(config: Any, context: Any, launcher: Any, arguments: Any) -> None:
        sweeper.read_options(config, arguments)
        began.append("a sweep")

    monkeypatch.setattr(run, "train", train)
    monkeypatch.setattr(processes, "run", lambda *_: began.append("processes of its own") or 0.5)
    monkeypatch.setattr(sweeper, "sweep", sweep)
    return began


@pytest.mark.parametrize("shard", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, SHARDS))])
def test_any_command_line_begins_or_ends_with_one_message(
    shard: int, quick: None, nothing_trains: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(shard)
    refused = 0
    for _ in range(EACH * MORE):
        words = line(rng)
        try:
            with deadline(SECONDS):
                answer = call(capsys, *words)
        except DeadlineExceeded as error:
            raise AssertionError(f"python -m grpo_exp {words!r} does not end") from error
        if answer.code:
            refused += 1
            assert answer.code == 2, (words, answer)
            assert re.fullmatch(r"grpo_exp: [^\n]+\n", answer.err), (words, answer)
            assert len(answer.err) < 2 * LONGEST, (words, answer)
            asked = ASKED in answer.err and any("interval(" in word for word in words)
            assert asked or named(words, answer.err), (words, answer)
        else:
            assert not answer.err, (words, answer)
    assert len(nothing_trains) > EACH // 50 and refused > EACH // 2
