"""What comes from the environment is in no file, on no screen and in nothing that is sent, wherever it was used."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import SMALL, call
from fake_wandb import FakeWandb

from grpo_exp.track import redact

SECRET = "s3cret-Value-0815"
KEY = "0123456789" * 4
PLACES = [
    "track.tags=[a,'${oc.env:TOP}','with ${oc.env:TOP} inside']",
    "track.job_type='${oc.env:TOP}'",
    "track.group='${oc.decode:${oc.env:TOP}}'",
    "data.system='${oc.env:TOP}'",
    "data.examples=[['1','${oc.env:TOP}']]",
    "data.path='${oc.env:TOP}.jsonl'",
    "name='${oc.env:TOP}'",
]


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder, a home and a secret of its own."""
    monkeypatch.setattr(redact, "_seen", set[str]())
    for name in ("HOME", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("TOP", SECRET)
    monkeypatch.setenv("FOLDER", str(tmp_path / "work"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path(f"{SECRET}.jsonl").write_text("".join(json.dumps({"prompt": f"{i}", "answer": "1"}) + "\n" for i in range(12)))
    yield
    if "wandb" in sys.modules:
        import wandb

        wandb.teardown()


def holders(folder: Path) -> list[str]:
    """The files that hold the secret anywhere, compressed or not."""
    found = []
    for path in (p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        if SECRET.encode() in data or SECRET.encode("utf-16-le") in data:
            found.append(str(path))
    return found


def sent(server: FakeWandb) -> bytes:
    """All that was sent, unpacked where it was packed."""
    parts = []
    for body in server.received:
        parts.append(body)
        for unpack in (gzip.decompress, zlib.decompress):
            for start in range(min(len(body), 200)):
                try:
                    parts.append(unpack(body[start:]))
                    break
                except (OSError, EOFError, zlib.error):
                    continue
    return b"\n".join(parts)


RUN = [word for word in SMALL if not word.startswith(("data.", "track"))]
RUN += ["data=file", "data.prompt=prompt", "data.answer=answer", "data.split=6", "track=local", "track.print_every=1", *PLACES]


def test_a_run_and_what_is_made_of_it_hold_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeWandb() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        run = call(capsys, *RUN, "track.wandb=online", "track.samples_every=1", "hydra.run.dir=run")
        assert (run.code, run.err) == (0, "")
        assert server.runs and server.rows(next(iter(server.runs)))
        report = call(capsys, "report", "run", "--csv", "run/runs.csv", "--json", "run/runs.json")
        assert report.code == 0, report
    assert "<redacted>" in Path("run/config.yaml").read_text() and "<redacted>" in Path("run/run.json").read_text()
    assert holders(Path("run")) == []
    assert SECRET not in run.out + report.out + report.err
    assert KEY[:8].encode() in sent(server) or server.received  # something was looked at
    assert SECRET.encode() not in sent(server)


@pytest.mark.slow
def test_a_sweep_with_a_secret_study_holds_none(capsys: pytest.CaptureFixture[str]) -> None:
    """The address of the study is a secret, and each trial still finds it."""
    words = [*RUN, "beta=0,0.1", "steps=1", "track.wandb=off", "hydra.sweeper.storage='sqlite:///${oc.env:TOP}.db'"]
    sweep = call(capsys, "-m", *words, "hydra/sweeper/pruner=median", "hydra.sweep.dir=sweep")
    assert (sweep.code, sweep.err) == (0, "")
    assert SECRET.encode() not in Path(f"{SECRET}.db").read_bytes()
    assert json.loads(Path("sweep/sweep.json").read_text())["storage"] == "<redacted>"
    assert [json.loads(Path(f"sweep/{i}/trial.json").read_text())["state"] for i in (0, 1)] == ["complete", "complete"]
    assert holders(Path("sweep")) == []
    assert SECRET not in sweep.out


@pytest.mark.slow
def test_errors_hold_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rewards.py").write_text("def score(completions, prompts):\n    raise ValueError(prompts[0])\n")
    wrong = call(capsys, "model=tiny_random", "steps='${oc.env:TOP}'")
    missing = call(capsys, *RUN, "data.path='${oc.env:TOP}/nowhere.jsonl'", "track.wandb=off", "hydra.run.dir=missing")
    failed = call(
        capsys,
        *RUN,
        "track.wandb=off",
        "reward=custom",
        "reward.path=rewards.py:score",
        "reward.on_error=error",
        "hydra.run.dir=failed",
    )
    stored = call(
        capsys, "-m", *RUN, "beta=0,0.1", "hydra.sweeper.storage='mysql://me:${oc.env:TOP}@nowhere/x'", "hydra.sweep.dir=s"
    )
    typed = call(
        capsys, "-m", *RUN, "beta=0,0.1", "hydra.sweeper.storage='mysql://me:pass-word-1@nowhere/x'", "hydra.sweep.dir=s"
    )
    assert [answer.code for answer in (wrong, missing, failed, stored, typed)] == [2, 2, 2, 2, 2]
    for answer in (wrong, missing, failed, stored, typed):
        assert SECRET not in answer.out + answer.err and "pass-word-1" not in answer.err
    assert "steps=<redacted>" in wrong.err.replace("'", "") and "me:<redacted>@nowhere" in typed.err
    assert holders(Path("failed")) == [] and holders(Path("s")) == []


def test_what_is_no_secret_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run can be started by a scheduler, and name files below the home folder, and still be evaluated and compared."""
    from grpo_exp.compose import compose
    from grpo_exp.config import resolved

    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    composed = compose(
        ["model=tiny_random", "seed=${oc.env:SLURM_ARRAY_TASK_ID}", "data=file", "data.path='${oc.env:HOME}/x.jsonl'"]
    )
    kept = redact.redact(resolved(composed))
    assert kept["seed"] == "3" and kept["data"]["path"].endswith("home/HOME/x.jsonl")
    composed = compose(["model=tiny_random", "track.entity='${oc.env:TOP}'", "track.project='${oc.env:NOT_THERE,${name}}'"])
    kept = redact.redact(resolved(composed))
    assert kept["track"]["entity"] == "<redacted>" and kept["track"]["project"] == "grpo_tiny_random_arithmetic"
    assert redact.without_secrets(f"x{SECRET}y postgresql://me:pw@host/db") == "x<redacted>y postgresql://me:<redacted>@host/db"
