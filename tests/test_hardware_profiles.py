"""Every hardware profile, found by listing: it composes, leaves the experiment as it is, and trains for two steps here."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from command import ROOT, SMALL, call, finish, start
from declared import plain_values, same
from omegaconf import DictConfig, OmegaConf
from vllm_stand_in import FakeServer, install

from grpo_exp import bits
from grpo_exp.command_line import options, read
from grpo_exp.compose import compose, sweep_config
from grpo_exp.config import build

PROFILES = options("hardware")
SAME = ["algo", "data", "reward", "eval", "objective", "experience"]
"""Sections that a profile has nothing to say about."""
ROOTS = ["beta", "lr", "G", "temperature", "seed", "steps", "prompts_per_step", "max_new_tokens"]
SLOW = ("multi_gpu", "fsdp", "zero3_offload", "gpu_24gb", "ray")
LAUNCHERS = {"slurm": "hydra_submitit_launcher", "ray": "hydra_ray_launcher"}
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@cache
def composed(*words: str) -> DictConfig:
    return compose(["model=tiny_random", *words])


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_leaves_the_experiment_as_it_is(name: str) -> None:
    plain: Any = OmegaConf.to_container(composed(), resolve=True)
    placed: Any = OmegaConf.to_container(composed(f"hardware={name}"), resolve=True)
    for key in [*SAME, *ROOTS]:
        assert placed[key] == plain[key], key
    made = build(composed(f"hardware={name}"))
    assert made.hardware.name == name
    same(type(made.hardware), plain_values(composed(f"hardware={name}").hardware), "hardware")
    first = (ROOT / "conf" / "hardware" / f"{name}.yaml").read_text().splitlines()
    assert first[0].startswith("# ") and any(len(line) > 20 for line in first[:2]), "it says for what it is"


@pytest.mark.parametrize("name", PROFILES)
def test_what_is_typed_wins_over_a_profile(name: str) -> None:
    words = [
        "model=tiny_random",
        f"hardware={name}",
        "model.adapter=none",
        "model.quantize=none",
        "optim.name=adamw",
        "hardware.shard=none",
    ]
    made = build(compose([*words, "hardware.device=cpu", "hardware.reference=cpu"]))
    assert (made.model.adapter, made.optim.name, made.hardware.device) == ("none", "adamw", "cpu")


@contextlib.contextmanager
def what_it_needs(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The words of a run here: on the CPU; where a package is not installed, with a stand-in for what it does."""
    made = build(composed(f"hardware={name}"))
    more = ["hardware.device=cpu"]
    if importlib.util.find_spec("bitsandbytes") is None:
        monkeypatch.setattr(bits, "check", lambda wanted: None)
        monkeypatch.setattr(bits, "adamw_8bit", lambda: torch.optim.AdamW)
        monkeypatch.setattr(bits, "to_4bit", lambda model, dtype, device: None)
    if made.rollout.kind != "vllm":
        yield more
    elif vars(made.rollout)["url"] is None:
        install(monkeypatch)
        yield more
    else:
        from grpo_exp.hardware import prepare
        from grpo_exp.run import load_policy

        policy = load_policy(
            build(compose([*words, "model.adapter=lora"])),
            prepare(made.hardware.__class__(**vars(made.hardware) | {"device": "cpu"}), "float32"),
        )
        policy.export_base(Path("served"))
        with FakeServer(Path("served")) as server:
            yield [*more, f"rollout.url={server.url}"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in PROFILES],
)
def test_a_profile_trains(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "model.lora_rank=2"]
    with what_it_needs(name, words, monkeypatch) as more:
        answer = call(capsys, *words, f"hardware={name}", *more, "hydra.run.dir=run")
    assert answer.code == 0, answer.err
    card = json.loads(Path("run/run.json").read_text())
    assert card["status"] == "finished" and card["hardware"]["device"] == "cpu"


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_on_paper(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = call(
        capsys,
        "preflight",
        "preflight.paper=true",
        "model=tiny_random",
        f"hardware={name}",
        "hydra.run.dir=look",
        "hardware.memory_gib=8",
    )
    assert answer.code == 0 and "it fits" in answer.out, answer


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_sweep_without_the_launchers_package_is_refused(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda x, p=None: None if x == f"hydra_plugins.{LAUNCHERS[name]}" else found(x, p)
    )
    answer = call(capsys, "-m", *SMALL, f"hardware={name}", "beta=0.1,0.2", "hydra.sweep.dir=swept")
    package = LAUNCHERS[name].replace("_", "-")
    assert answer.code == 2 and f"needs the package {package}" in answer.err and answer.err.count("\n") == 1
    assert not list(Path("swept").glob("*/run.json"))


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launchers_options_are_those_of_its_package(name: str) -> None:
    """Each key is one of its own: a slip would be seen on the cluster only."""
    if importlib.util.find_spec(f"hydra_plugins.{LAUNCHERS[name]}") is None:
        pytest.skip(f"needs {LAUNCHERS[name]}")
    composed = sweep_config(read(["-m", f"hardware={name}", "beta=0.1,0.2"])).hydra.launcher
    stock = {"slurm": "submitit_slurm", "ray": "ray"}[name]
    known = sweep_config(read(["-m", f"hydra/launcher={stock}", "beta=0.1,0.2"])).hydra.launcher
    assert set(composed) <= set(known) and composed["_target_"] == known["_target_"]


def test_a_gpu_that_is_not_here_needs_its_size(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if torch.cuda.is_available():
        pytest.skip("there is one")
    answer = call(capsys, "preflight", "preflight.paper=true", "model=tiny_random", "hardware=gpu")
    assert answer.code == 2 and "hardware.memory_gib=24" in answer.err and answer.err.count("\n") == 1


def test_a_launcher_of_an_installed_package_may_be_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages add options to the group of launchers that no folder shows; one that is not there Hydra refuses."""
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, "-m", *SMALL, "hydra/launcher=basic", "steps=1", "seed=0,1", "hydra.sweep.dir=swept")
    assert answer.code == 0 and len(list(Path("swept").glob("*/run.json"))) == 2, answer
    answer = call(capsys, "-m", *SMALL, "hydra/launcher=nowhere", "seed=0,1")
    assert answer.code == 2 and "nowhere" in answer.err and answer.err.count("\n") == 1


SBATCH = """#!/bin/bash
range=$(sed -n 's/^#SBATCH --array=\\([0-9-]*\\).*/\\1/p' "${@: -1}")
cp "${@: -1}" script-$$.sh
for i in $(seq ${range%-*} ${range#*-}); do
  export SLURM_JOB_ID=$(($$ + i)) SLURM_ARRAY_JOB_ID=$$ SLURM_ARRAY_TASK_ID=$i SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1
  export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_JOB_NODELIST=here
  bash script-$$.sh > job-$i.log 2>&1 &
done
echo "Submitted batch job $$"
"""
SRUN = """#!/bin/bash
while [ "${1#-}" != "$1" ]; do case "$1" in --output|--error) shift 2;; *) shift;; esac; done
exec "$@"
"""


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("submitit", "hydra_plugins.hydra_submitit_launcher")),
    reason="needs hydra-submitit-launcher",
)
def test_a_sweep_goes_through_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By submitit, with stand-ins for Slurm's own commands that run a job array here and at once."""
    tools = {"sbatch": SBATCH, "srun": SRUN, "sacct": "#!/bin/bash\necho 'JobID|State|NodeList'\n", "scancel": "#!/bin/bash\n"}
    (tmp_path / "bin").mkdir()
    for tool, text in tools.items():
        (tmp_path / "bin" / tool).write_text(text)
        (tmp_path / "bin" / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SUBMITIT_PREEMPT_SIGNAL", "USR1")
    answer = finish(start(tmp_path, "-m", *SMALL, "hardware=slurm", "beta=0.01,0.1", "hydra.sweep.dir=swept"), 500)
    assert answer.code == 0 and "2 trials: 2 complete" in answer.out, answer
    cards = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("swept/*/run.json"))]
    assert [card["status"] for card in cards] == ["finished"] * 2
    script = next(tmp_path.glob("script-*.sh")).read_text()
    assert "#SBATCH --gpus-per-node=1" in script and "#SBATCH --signal=USR1@120" in script, script
