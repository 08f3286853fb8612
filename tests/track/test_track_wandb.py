"""The W&B mirror, against a real client: a loopback server for online runs, `wandb leet inspect` for offline ones."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fake_wandb import FakeWandb

from grpo_exp.errors import ConfigError
from grpo_exp.track import TrackOptions, build
from grpo_exp.track.files import FileTracker
from grpo_exp.track.login import choose_mode
from grpo_exp.track.sweep import summarize
from grpo_exp.track.wandb import WandbTracker, push

ROOT = Path(__file__).parents[2]
KEY = "0123456789" * 4


def options(**changes: object) -> TrackOptions:
    values = yaml.safe_load((ROOT / "conf/track/local.yaml").read_text())
    return TrackOptions(**{**values, "picture": False, "console": "quiet", "finish_timeout": 10.0, **changes})


@pytest.fixture(autouse=True)
def clean_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No login, no settings, nothing of the user's; and a fresh client for each test."""
    import os

    for name in [n for n in os.environ if n.startswith("WANDB_") or n.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(home / name))
    monkeypatch.chdir(tmp_path)
    yield
    if "wandb" in sys.modules:
        import wandb

        wandb.teardown()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWandb]:
    with FakeWandb() as fake:
        monkeypatch.setenv("WANDB_BASE_URL", fake.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield fake


def card(**changes: object) -> dict[str, object]:
    return {"name": "run", "beta": 0.04, "temperature": 1.0, "lr": 1e-4, "batch": {"G": 8}, "formula": "L = …", **changes}


def inspect(folder: str) -> list[dict[str, object]]:
    """The records of an offline run, by W&B's own reader."""
    binary = shutil.which("wandb", path=str(Path(sys.executable).parent)) or shutil.which("wandb")
    assert binary, "the wandb command is missing"
    done = subprocess.run([binary, "leet", "inspect", "--json", folder], capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


def summary(folder: str) -> dict[str, object]:
    binary = shutil.which("wandb", path=str(Path(sys.executable).parent)) or "wandb"
    command = [binary, "leet", "inspect", "--summary", "--json", folder]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout))


def test_two_online_runs_in_one_process_arrive_apart(
    server: FakeWandb, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ids = []
    for number, (beta, status) in enumerate([(0.1, "finished"), (0.2, "failed")]):
        about = card(name=f"beta {beta}", beta=beta)
        warnings: list[str] = []
        tracker = WandbTracker(options(wandb="online", group="a sweep", tags=["grpo"]), tmp_path / str(number), warnings.append)
        tracker.start(about, {"beta": None, "algo": {"name": "grpo"}})
        for step in (1, 2, 5, 3):  # a step may go back; the row must arrive all the same
            tracker.metrics({"step": step, "kind": "train", "reward/mean": beta * step, "kl/mean": float("nan")})
        tracker.finish({**about, "status": status, "objective": 0.5})
        assert warnings == []
        ids.append(about["wandb"]["id"])  # type: ignore[index]
        assert about["wandb"]["mode"] == "online"  # type: ignore[index]
        assert about["wandb"]["url"].startswith(server.url)  # type: ignore[index]

    assert len(set(ids)) == 2
    for run, beta, code in zip(ids, (0.1, 0.2), (0, 1), strict=True):
        rows = server.rows(run)
        assert [row["step"] for row in rows] == [1, 2, 5, 3]
        assert [row["reward/mean"] for row in rows] == [beta * s for s in (1, 2, 5, 3)]
        assert "kind" not in rows[0] and "kl/mean" not in rows[0]
        config = server.config(run)
        assert (config["beta"], config["G"], config["temperature"], config["lr"]) == (beta, 8, 1.0, 1e-4)
        assert config["algo"] == {"name": "grpo"} and config["card"]["formula"] == "L = …"
        assert server.exit_codes[run] == code
        assert server.runs[run]["groupName"] == "a sweep" and server.runs[run]["tags"] == ["grpo"]
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err == ""


def test_what_health_checks_find_is_an_alert_and_in_the_summary(server: FakeWandb, tmp_path: Path) -> None:
    about, warnings = card(), list[str]()
    tracker = WandbTracker(options(wandb="online"), tmp_path / "run", warnings.append)
    tracker.start(about, {})
    found = {"step": 9, "since": 4, "detector": "kl_explosion", "title": "the KL explodes", "text": "it is 3", "why": "lr"}
    tracker.finding({**found, "action": "warn", "tries": ["lr=1e-5"], "samples": [], "metric": "kl/mean"})
    tracker.finish({**about, "status": "finished"})
    sent = b"".join(server.received).decode(errors="replace")
    assert warnings == [] and "the KL explodes since step 4: it is 3" in sent and "try: lr=1e-5" in sent and "WARN" in sent
    assert '\\"health/kl_explosion\\": 4' in sent or '"health/kl_explosion":4' in sent.replace(": ", ":")


def test_resumed_run_keeps_its_id_and_sends_all_rows_again(server: FakeWandb, tmp_path: Path) -> None:
    def run(about: dict[str, object], steps: range) -> str:
        trackers = build(options(wandb="online"), tmp_path / "run")
        trackers.start(about, {})
        for step in steps:
            trackers.metrics({"step": step, "kind": "train", "reward/mean": step / 10})
        trackers.finish({**about, "status": "stopped"})
        return str(about["wandb"]["id"])  # type: ignore[index]

    first = run(card(), range(1, 6))
    assert server.exit_codes[first] == 255
    server.lines.clear()
    again = run(card(resumed_from=3), range(4, 8))
    assert again == first
    assert [row["step"] for row in server.rows(first)] == [1, 2, 3, 4, 5, 6, 7]


def test_offline_run_is_readable_and_says_how_to_send_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    about, warnings = card(), list[str]()
    tracker = WandbTracker(options(wandb="auto"), tmp_path / "a run", warnings.append)  # auto, and no login: offline
    tracker.start(about, {})
    tracker.metrics({"step": 1, "kind": "train", "reward/mean": 0.25})
    tracker.metrics({"step": 1, "kind": "eval", "eval/pass@1": 0.5})
    tracker.samples([{"step": 1, "prompt": "2+2=", "completion": "4" * 9000, "math": None, "total": 1.0}])
    tracker.finish({**about, "status": "pruned", "objective": 0.5, "after": {"eval/pass@1": [0.5, 0.4, None]}})
    assert warnings == []
    where = about["wandb"]
    assert isinstance(where, dict) and where["mode"] == "offline" and where["url"] is None
    assert where["sync"].startswith("wandb sync '") and where["folder"].startswith(str(tmp_path / "a run" / "wandb"))

    history = [r["history"] for r in inspect(where["folder"]) if r["type"] == "history"]
    text = json.dumps(history)
    assert "reward/mean" in text and "0.25" in text and "eval/pass@1" in text
    told = summary(where["folder"])
    assert told["exit_code"] == 0 and "pruned" in told["tags"]  # type: ignore[operator]
    assert told["config"]["beta"] == 0.04 and told["config"]["G"] == 8  # type: ignore[index]
    assert told["summary"]["status"] == "pruned"  # type: ignore[index]
    assert told["summary"]["after/eval/pass@1_low"] == 0.4 and told["summary"]["objective"] == 0.5  # type: ignore[index]
    tables = list(Path(where["folder"]).rglob("*.table.json"))
    assert len(tables) == 1 and len(tables[0].read_text()) < 5000  # long completions are cut
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err == ""


def test_table_of_samples_holds_the_newest_rows(tmp_path: Path) -> None:
    about = card()
    tracker = WandbTracker(options(wandb="offline", sample_rows_kept=3, samples_every=10), tmp_path, pytest.fail)
    tracker.start(about, {})
    for step in range(1, 13):
        tracker.samples([{"step": step, "completion": f"{step}a"}, {"step": step, "completion": f"{step}b"}])
    tracker.finish({**about, "status": "finished"})
    tables = [json.loads(path.read_text())["data"] for path in Path(about["wandb"]["folder"]).rglob("*.table.json")]  # type: ignore[index]
    assert sorted(tables) == sorted(
        [[[1, "1a"], [1, "1b"]], [[9, "9b"], [10, "10a"], [10, "10b"]], [[11, "11b"], [12, "12a"], [12, "12b"]]]
    )


def test_refused_connection_goes_offline_within_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # bound and not listening: refused
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        about, warnings, began = card(), list[str](), time.monotonic()
        tracker = WandbTracker(options(wandb="online"), tmp_path, warnings.append)
        tracker.start(about, {})
        assert time.monotonic() - began < 45  # the client's own limit is 90 s
        tracker.metrics({"step": 1, "kind": "train", "reward/mean": 0.5})
        tracker.finish({**about, "status": "finished"})
    assert len(warnings) == 1 and "recorded offline" in warnings[0]
    assert about["wandb"]["mode"] == "offline"  # type: ignore[index]
    assert summary(about["wandb"]["folder"])["summary"]["reward/mean"] == 0.5  # type: ignore[index]


@pytest.mark.slow
def test_server_that_accepts_and_never_answers_goes_offline_within_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        about, warnings, began = card(), list[str](), time.monotonic()
        tracker = WandbTracker(options(wandb="online"), tmp_path, warnings.append)
        tracker.start(about, {})
        assert time.monotonic() - began < 60
        tracker.finish({**about, "status": "finished"})
    assert len(warnings) == 1 and about["wandb"]["mode"] == "offline"  # type: ignore[index]


def test_server_that_dies_costs_the_finish_timeout_and_leaves_a_way_to_send_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about, warnings = card(), list[str]()
    with FakeWandb() as fake:
        monkeypatch.setenv("WANDB_BASE_URL", fake.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        tracker = WandbTracker(options(wandb="online", finish_timeout=1.0), tmp_path, warnings.append)
        tracker.start(about, {})
    tracker.metrics({"step": 1, "kind": "train", "reward/mean": 0.5})
    began = time.monotonic()
    tracker.finish({**about, "status": "finished"})
    assert time.monotonic() - began < 30
    assert about["wandb"]["sync"].startswith("wandb sync ")  # type: ignore[index]
    assert len(warnings) == 1 and about["wandb"]["sync"] in warnings[0]  # type: ignore[index]


def test_a_call_that_raises_is_said_once_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about, warnings = card(), list[str]()
    tracker = WandbTracker(options(wandb="offline"), tmp_path, warnings.append)
    tracker.start(about, {})

    def broken(row: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(tracker.run, "log", broken)
    for step in range(3):
        tracker.metrics({"step": step, "kind": "train", "reward/mean": 0.5})
    tracker.finish({**about, "status": "finished"})
    assert len(warnings) == 1 and "RuntimeError: boom" in warnings[0]


def test_push_rebuilds_a_run_from_its_files(server: FakeWandb, tmp_path: Path) -> None:
    files = FileTracker(tmp_path)
    files.start(card(), {"seed": 3})
    files.metrics({"step": 1, "kind": "train", "reward/mean": 0.1})
    files.metrics({"step": 2, "kind": "train", "reward/mean": float("nan")})
    files.finish(card(status="failed"))
    told = push(tmp_path, options(wandb="online"), pytest.fail)
    run = told["wandb"]["id"]
    assert [row["step"] for row in server.rows(run)] == [1, 2]
    assert server.config(run)["seed"] == 3 and server.exit_codes[run] == 1


def test_a_sweep_is_a_run_of_its_own(server: FakeWandb, tmp_path: Path) -> None:
    """A row a trial with its values; the best one and the importance of what was searched in the summary."""
    trials = [
        {"number": 0, "params": {"beta": 0.1, "G": 4}, "state": "complete", "value": 0.5},
        {"number": 1, "params": {"beta": 0.01, "G": 8}, "state": "complete", "value": 0.75},
        {"number": 2, "params": {"beta": 1.0, "G": 8}, "state": "pruned", "value": None},
    ]
    plan = {"metrics": ["eval/pass@1"], "space": {"beta": "interval(0.01, 1) log", "G": "choice(4, 8)"}}
    where = summarize(tmp_path / "beta_g", options(wandb="online"), plan, trials, trials[1], {"beta": 0.9}, pytest.fail)
    run = where["id"]
    told = [{k: row.get(k) for k in ("step", "state", "beta", "G", "value/eval/pass@1")} for row in server.rows(run)]
    assert told == [
        {"step": 0, "state": "complete", "beta": 0.1, "G": 4, "value/eval/pass@1": 0.5},
        {"step": 1, "state": "complete", "beta": 0.01, "G": 8, "value/eval/pass@1": 0.75},
        {"step": 2, "state": "pruned", "beta": 1.0, "G": 8, "value/eval/pass@1": None},
    ]
    assert server.config(run)["space"] == plan["space"] and server.exit_codes[run] == 0
    assert (server.runs[run]["groupName"], server.runs[run]["jobType"]) == ("beta_g", "sweep")


def test_mode_is_chosen_without_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert choose_mode("auto", {}) == "offline"
    assert choose_mode("auto", {"WANDB_API_KEY": KEY}) == "online"
    assert choose_mode("auto", {"WANDB_API_KEY": KEY, "WANDB_MODE": "offline"}) == "offline"
    assert choose_mode("auto", {"WANDB_API_KEY": KEY, "WANDB_MODE": "disabled"}) == "off"
    assert choose_mode("offline", {"WANDB_API_KEY": KEY, "WANDB_MODE": "online"}) == "offline"
    (tmp_path / "netrc").write_text(f"machine my.server\n  login user\n  password {KEY}\n")
    netrc = {"NETRC": str(tmp_path / "netrc")}
    assert choose_mode("auto", netrc) == "offline"  # a login for another server
    assert choose_mode("auto", {**netrc, "WANDB_BASE_URL": "https://my.server/"}) == "online"
    settings = tmp_path / "config"
    settings.mkdir()
    (settings / "settings").write_text("[default]\nbase_url = https://my.server\n")
    assert choose_mode("auto", {**netrc, "WANDB_CONFIG_DIR": str(settings)}) == "online"
    (settings / "settings").write_text("[default]\nbase_url = https://my.server\nmode = offline\n")
    assert choose_mode("auto", {**netrc, "WANDB_CONFIG_DIR": str(settings)}) == "offline"


def test_online_without_login_is_refused_with_the_ways_out() -> None:
    with pytest.raises(ConfigError, match=r"track\.wandb=online: no W&B login.*WANDB_API_KEY.*track\.wandb=offline"):
        choose_mode("online", {})


def test_off_imports_no_wandb(tmp_path: Path) -> None:
    values = {**yaml.safe_load((ROOT / "conf/track/local.yaml").read_text()), "wandb": "off", "picture": False}
    script = (
        "import sys, json, pathlib\n"
        "from grpo_exp.track import build, TrackOptions\n"
        f"t = build(TrackOptions(**json.loads({json.dumps(json.dumps(values))})), pathlib.Path({str(tmp_path / 'run')!r}))\n"
        "t.start({'name': 'x'}, {}); t.metrics({'step': 1, 'kind': 'train'}); t.finish({'status': 'finished'})\n"
        "print('wandb' in sys.modules, 'matplotlib' in sys.modules, 'rich' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False False"
    assert not (tmp_path / "run" / "wandb").exists()
