"""The wheel and the editable install bring configuration, sweeps and the embedded model, and run from any folder."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from command import ROOT, SMALL, environment

WORDS = [word for word in SMALL if not word.startswith(("model=", "steps="))]


def python(folder: Path, *words: str, path: Path | None = None) -> str:
    """What `python WORDS` prints, run in `folder`, with the package from `path`."""
    variables = environment()
    if path is not None:
        variables["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    python(ROOT, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    python(folder, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder), str(wheel))
    return folder


@pytest.mark.slow
def test_the_wheel_holds_all_that_a_run_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for source, place in (("conf", "grpo_exp/conf"), ("sweeps", "grpo_exp/sweeps"), ("grpo_exp", "grpo_exp")):
        tracked = [p for p in (ROOT / source).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        expected = {f"{place}/{p.relative_to(ROOT / source).as_posix()}" for p in tracked}
        assert expected <= names, sorted(expected - names)
    assert {f"grpo_exp/assets/tiny/{name}" for name in ("model.safetensors", "config.json", "MODEL_CARD.md")} <= names
    strangers = [
        n for n in names if not n.startswith("grpo_exp/") and ".dist-info/" not in n and not n.startswith("hydra_plugins/")
    ]
    assert strangers == []
    assert not [n for n in names if n.endswith((".pyc", ".pt")) or "outputs/" in n]


@pytest.mark.slow
def test_the_wheel_runs_from_another_folder(installed: Path, tmp_path: Path) -> None:
    where = python(tmp_path, "-c", "from grpo_exp.app import ROOT; print(ROOT)", path=installed).strip()
    assert Path(where) == installed / "grpo_exp"
    assert "[grpo]" in python(tmp_path, "-m", "grpo_exp", "--help", path=installed)
    assert "beta_grid" in python(tmp_path, "-m", "grpo_exp", "help", "sweeps", path=installed)
    python(tmp_path, "-m", "grpo_exp", *WORDS, "steps=1", "hydra.run.dir=run", path=installed)
    card = json.loads((tmp_path / "run/run.json").read_text())
    assert (card["status"], card["model"]["name"], card["git"]) == ("finished", "tiny", None)
    words = ["sweeps=beta_grid", "model=tiny_random", "beta=0.1,0.2", *WORDS, "steps=1", "eval.start=false"]
    python(tmp_path, "-m", "grpo_exp", *words, path=installed)
    assert {"0", "1", "sweep.json", "study.journal"} <= {p.name for p in (tmp_path / "outputs/sweeps/beta_grid").iterdir()}


@pytest.mark.slow
def test_the_checkout_runs_from_another_folder(tmp_path: Path) -> None:
    where = python(tmp_path, "-c", "from grpo_exp.app import ROOT; print(ROOT)").strip()
    assert Path(where) == ROOT
    script = Path(sys.executable).with_name("grpo-exp")
    done = subprocess.run([script, "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("grpo_exp ")
