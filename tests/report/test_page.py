"""report.html: it holds the numbers, asks nothing of a network, runs nothing that came from a run, and breaks on no run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_exp.report import course, page, plots, study
from grpo_exp.report.compare import compare
from grpo_exp.report.runs import Columns, Run, find

HOSTILE = "</script><script>alert(1)</script><!-- \"'`${x}<b>&amp; \u2028\u202e\x00\x1b[31m\ud800"


def run_folder(
    folder: Path, steps: int = 6, status: str = "finished", evaluated: bool = True, seed: int = 0, **options: Any
) -> Path:
    """A run's folder as the contracts describe it: reward/mean is step / 10, the last eval/pass@1 is beta + 0.5."""
    folder.mkdir(parents=True)
    beta = options.setdefault("beta", 0.1)
    rows: list[dict[str, Any]] = []
    for step in range(steps + 1):
        at = {"step": step, "tokens": 100 * step, "seconds": 2.5 * step}
        if step:
            rows.append({**at, "kind": "train", "reward/mean": step / 10, "kl/mean": 0.01 * step * beta, "length/mean": 9.0})
        if evaluated and step % 3 == 0:
            value = (beta + 0.5) * step / steps if steps else 0.5
            low_high = {"eval/pass@1_low": value - 0.1, "eval/pass@1_high": value + 0.1}
            rows.append({**at, "kind": "eval", "eval/pass@1": value, **low_high})
    write_rows(folder / "metrics.jsonl", rows)
    sample = {"step": steps, "prompt": "1+1=?", "completion": "2", "total": 1.0, "outcome": 1.0, "length": 1, "finished": True}
    write_rows(folder / "samples.jsonl", [{**sample, "id": f"train-{i}"} for i in range(3)])
    write_rows(folder / "eval.jsonl", [{**sample, "id": f"heldout-{i}"} for i in range(12)] if evaluated else [])
    card = {
        "status": status,
        "name": "toy",
        "objective": beta + 0.5 if evaluated and status == "finished" else None,
        "goal": {"metric": "eval/pass@1", "direction": "maximize"},
        "overrides": {key: str(value) for key, value in options.items()},
        "data": {"sha256": "0" * 64},
    }
    (folder / "run.json").write_text(json.dumps(card))
    config = {"seed": seed, **options, "algo": {"name": "grpo", "beta": beta}, "eval": {"samples": 1}}
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    return folder


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def grid(top: Path) -> Path:
    for number, (beta, group) in enumerate([(0.1, 4), (0.1, 8), (0.2, 4), (0.2, 8)]):
        run_folder(top / str(number), beta=beta, G=group)
    (top / "multirun.yaml").write_text("")
    return top


def write(*folders: Path) -> str:
    runs = find(folders)
    out = page.write(compare(runs), folders[0])
    assert out == folders[0] / "report.html"
    return out.read_text(encoding="utf-8")


def texts(value: Any) -> Iterator[str]:
    """Every text in JSON data, keys included."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for part in value:
            yield from texts(part)
    elif isinstance(value, str):
        yield value


class Reader(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


def data_of(text: str) -> dict[str, Any]:
    return Reader(text).data


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a grid."""
    return write(grid(tmp_path_factory.mktemp("page") / "sweeps" / "toy"))


def test_the_page_holds_the_numbers_of_the_runs(toy: str) -> None:
    data = data_of(toy)
    assert data["title"] == "toy"
    assert [v["key"] for v in data["varied"]] == ["beta", "G"]
    assert [v["values"] for v in data["varied"]] == [[0.1, 0.2], [4, 8]]
    assert [run["params"] for run in data["runs"]][2] == {"beta": 0.2, "G": 4}
    assert [run["objective"] for run in data["runs"]] == pytest.approx([0.6, 0.6, 0.7, 0.7])
    curve = data["runs"][0]["train"]
    assert curve["m"]["reward/mean"] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert (curve["step"], curve["tokens"][-1], curve["seconds"][1]) == ([1, 2, 3, 4, 5, 6], 600, 5)
    assert data["runs"][0]["eval"]["m"]["eval/pass@1"] == pytest.approx([0, 0.3, 0.6])
    assert data["metrics"][:3] == ["reward/mean", "kl/mean", "length/mean"]
    assert "eval/pass@1_low" not in data["metrics"]
    best = data["table"][0]
    assert (best["rank"], best["values"]["beta"], best["runs"]) == (1, 0.2, 1)
    assert best["value"] == pytest.approx(0.7)
    assert dict(data["effects"]) == pytest.approx({"beta": 0.1, "G": 0.0})
    assert data["sentences"] and data["command"].startswith("python -m grpo_exp")
    differences = {row["key"]: row for row in data["differences"]}
    assert set(differences) == {"beta", "G", "algo.beta"}
    assert (differences["G"]["count"], differences["G"]["values"]) == (2, [["4", 2], ["8", 2]])


def test_best_and_worst_run_answer_the_same_prompts(toy: str) -> None:
    best, worst = data_of(toy)["samples"]
    assert best["title"].startswith("Best: beta=0.2") and worst["title"].startswith("Worst: beta=0.1")
    assert [row["prompt"] for row in best["rows"]] == [row["prompt"] for row in worst["rows"]]
    assert 1 < len(best["rows"]) <= 8


def test_the_page_needs_nothing_but_itself(toy: str) -> None:
    reader = Reader(toy)
    for tag, attributes in reader.elements:
        assert tag not in ("img", "iframe", "object", "base"), tag
        for name in ("src", "href", "srcset", "action", "poster"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    policy = next(a["content"] for tag, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'") and "http" not in policy and "*" not in policy
    ours = toy.replace(reader.scripts[1], "")
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|WebSocket", ours)
    assert len(reader.scripts) == 3 and len(reader.scripts[1]) > 1_000_000
    assert toy.count(reader.scripts[1]) == 1


def test_text_from_a_run_is_never_code(tmp_path: Path) -> None:
    top = tmp_path / "sweeps" / "x<b>'&"
    for number, beta in enumerate((0.1, 0.2)):
        folder = run_folder(top / str(number), beta=beta, note=f"{HOSTILE[:40]}{number}")
        row = {
            "step": 6,
            "id": HOSTILE,
            "prompt": HOSTILE,
            "completion": HOSTILE + "x" * 100_000,
            "reference": HOSTILE,
            "outcome": 0.0,
        }
        write_rows(folder / "eval.jsonl", [row])
        metrics = json.dumps({"step": 7, "kind": "train", "tokens": 1, "seconds": 1, HOSTILE: 1.0})
        with open(folder / "metrics.jsonl", "a") as file:
            file.write(metrics + "\n")
    failed = run_folder(top / "2", beta=0.3, status="failed")
    card = json.loads((failed / "run.json").read_text())
    (failed / "run.json").write_text(json.dumps({**card, "error": HOSTILE}))
    text = write(top)
    reader = Reader(text)
    assert [tag for tag, _ in reader.elements].count("script") == 3
    assert "<" not in reader.scripts[0] and "\u2028" not in text and "\u202e" not in text and "\x00" not in text
    data = reader.data
    assert data["samples"][0]["rows"][0]["prompt"].startswith("</script><script>alert(1)</script><!--")  # as text
    assert len(data["samples"][0]["rows"][0]["completion"]) < 2_000
    for shown in texts({key: value for key, value in data.items() if key != "varied"}):
        assert not {c for c in shown if ord(c) < 32 and c != "\n"} | set(shown) & set("\u2028\u202e"), shown
    assert data["runs"][2]["reason"].startswith("</script>")
    assert re.search(r"<title>x&lt;b&gt;'&amp;</title>", text)


def test_a_placeholder_in_a_run_is_text(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    card = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**card, "name": "{{js}} \\1 \\g<0>"}))
    text = write(folder)
    assert "<title>{{js}} \\1 \\g&lt;0&gt;</title>" in text
    assert data_of(text)["title"] == "{{js}} \\1 \\g<0>"


STATES: dict[str, list[dict[str, Any]]] = {
    "one run": [{}],
    "no evaluation": [{"evaluated": False, "beta": 0.1}, {"evaluated": False, "beta": 0.2}],
    "no step yet": [{"steps": 0, "status": "running"}],
    "running": [{"status": "running", "beta": 0.1}, {"status": "running", "beta": 0.2}],
    "all failed": [{"status": "failed", "beta": 0.1}, {"status": "failed", "beta": 0.2}],
    "pruned": [{"beta": 0.1}, {"beta": 0.2}, {"beta": 0.3, "steps": 3, "status": "pruned"}],
    "seeds alone": [{"seed": 0}, {"seed": 1}, {"seed": 2}],
    "words": [{"loss": "a"}, {"loss": "b"}, {"loss": None}],
}


@pytest.mark.parametrize("name", STATES)
def test_every_state_of_runs_gives_a_page(tmp_path: Path, name: str) -> None:
    top = tmp_path / "sweeps" / "toy"
    for number, options in enumerate(STATES[name]):
        run_folder(top / str(number), **options)
    data = data_of(write(top))
    assert [run["status"] for run in data["runs"]] == [options.get("status", "finished") for options in STATES[name]]
    assert all(
        len(run["train"]["step"]) == options.get("steps", 6) for run, options in zip(data["runs"], STATES[name], strict=True)
    )
    if name == "no evaluation":
        assert data["objective"]["metric"] == "reward/mean" and not data["runs"][0]["eval"]["m"]
    if name == "seeds alone":
        assert data["configurations"] == 1 and len(data["table"]) == 1
    if name in ("one run", "seeds alone"):
        assert not data["effects"] and len(data["samples"]) == 1 and not (top / "report" / "heat.png").exists()


def test_damaged_folders_are_shown_as_such(tmp_path: Path) -> None:
    top = tmp_path / "sweeps" / "toy"
    run_folder(top / "0")
    broken = run_folder(top / "1", beta=0.3)
    (broken / "run.json").write_text('{"status": "fini')
    (broken / "config.yaml").unlink()
    (broken / "metrics.jsonl").write_text('{"step": 1, "kind": "train"\nnot json\n')
    (top / "study.journal").write_text("no journal\n")
    data = data_of(write(top))
    assert [run["status"] for run in data["runs"]] == ["finished", "broken"]
    assert "run.json" in data["runs"][1]["reason"]
    assert data["studies"] == []


class Long(Run):
    """A run of any length, from arrays instead of a file."""

    def names(self) -> list[str]:
        return [f"metric/{i}" for i in range(50)]

    @property
    def steps(self) -> int:
        return 1000

    @property
    def after(self) -> dict[str, Any]:  # type: ignore[override]
        return {}

    def curves(self, train: Any, evaluated: Any, points: int | None = None) -> tuple[Columns, Columns]:
        steps = np.arange(1, 1001, dtype=float)
        noise = np.random.default_rng(0).normal(size=1000)
        return {"step": steps, "tokens": 700 * steps, "seconds": 1.1234567 * steps, **dict.fromkeys(train, noise)}, {}


@pytest.mark.parametrize("count", [1, 30, 150])
def test_the_page_stays_small(count: int) -> None:
    """Under 8 MB for 30 runs of 1,000 steps, of which plotly.js is under 5."""
    runs: list[Run] = [Long(Path(f"run-{i}")) for i in range(count)]
    shown: list[dict[str, Any]] = [{} for _ in runs]
    metrics = course.add(shown, runs)
    assert len(page.as_json(shown)) < 3_000_000
    assert len(metrics) >= 8
    points = len(shown[0]["train"]["step"])
    assert (points > 150 if count <= 30 else points >= 40) and points <= 300


def test_a_point_is_the_mean_of_its_bin() -> None:
    table = {
        "step": np.arange(1.0, 7.0),
        "tokens": 10 * np.arange(1.0, 7.0),
        "seconds": np.full(6, np.nan),
        "x": np.array([1.0, 3.0, np.nan, 5.0, np.inf, np.nan]),
    }
    curve = course._curve(table, 2)
    assert curve["m"]["x"] == [2.0, 5.0, None]
    assert (curve["step"], curve["tokens"], curve["seconds"]) == ([2, 4, 6], [20, 40, 60], [None, None, None])


def test_a_study_tells_importance_and_history(tmp_path: Path) -> None:
    """The objective depends on beta alone, so that nearly all of the importance is beta's; the best value never falls."""
    optuna = pytest.importorskip("optuna")
    top = tmp_path / "sweeps" / "toy"
    run_folder(top / "0", steps=1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    backend = optuna.storages.journal.JournalFileBackend(str(top / study.STUDY))
    made = optuna.create_study(study_name="toy", storage=optuna.storages.JournalStorage(backend), direction="maximize")
    space = {"beta": optuna.distributions.FloatDistribution(0, 1), "lr": optuna.distributions.FloatDistribution(0, 1)}
    made.tell(made.ask(space), state=optuna.trial.TrialState.FAIL)
    for beta in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        for lr in (0.1, 0.3, 0.5, 0.7, 0.9):
            made.enqueue_trial({"beta": beta, "lr": lr})
            made.tell(made.ask(space), beta)
    before = (top / study.STUDY).read_bytes()
    (found,) = study.studies(find([top]))
    assert (top / study.STUDY).read_bytes() == before
    assert found["name"] == "toy" and found["importance"][0][0] == "beta" and found["importance"][0][1] > 0.7
    lines = [trace for trace in found["history"]["data"] if trace["mode"] == "lines"]
    best = [y for y in lines[0]["y"] if y is not None]
    assert len(best) == 30 and best == sorted(best)
    json.dumps(found, allow_nan=False)


def test_pictures_are_drawn_where_there_is_data(tmp_path: Path) -> None:
    top = grid(tmp_path / "sweeps" / "toy")
    write(top)
    assert sorted(path.name for path in (top / "report").iterdir()) == ["curves.png", "frontier.png", "heat.png"]
    for path in (top / "report").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000
    for number in (1, 2, 3):
        shutil.rmtree(top / str(number))
    write(top)
    assert [path.name for path in (top / "report").iterdir()] == ["curves.png"]  # none of runs that are gone


def test_pareto_keeps_what_none_beats_for_less() -> None:
    points = [(3, 0.9), (1, 0.5), (2, 0.4), (2, 0.8), (4, 0.9)]
    assert plots.pareto(points, maximize=True) == [(1, 0.5), (2, 0.8), (3, 0.9)]
    assert plots.pareto(points, maximize=False) == [(1, 0.5), (2, 0.4)]


def test_values_that_look_alike_and_values_that_are_missing_have_their_places(tmp_path: Path) -> None:
    top = tmp_path / "sweeps" / "toy"
    for number in range(10):
        run_folder(top / str(number), steps=1, beta=0.1 + number * 1e-7, G=4 + number % 2)
    run_folder(top / "10", steps=1, beta=0.1, G=None)
    data = data_of(write(top))
    assert [len(v["values"]) for v in data["varied"]] == [10, 2]
    assert sum(len(runs) for _, _, runs in plots.grouped(data)) == 11
    assert (top / "report" / "heat.png").exists()


def test_a_number_of_many_values_is_grouped_in_fifths(tmp_path: Path) -> None:
    top = tmp_path / "sweeps" / "toy"
    for number in range(10):
        run_folder(top / str(number), steps=1, beta=(number + 1) / 100)
    data = data_of(write(top))
    groups = plots.grouped(data)
    assert [len(runs) for _, _, runs in groups] == [2, 2, 2, 2, 2]
    assert (groups[-1][2][-1]["params"], groups[-1][0]) == ({"beta": 0.1}, "beta 0.09–0.1")
    assert groups[0][0] == "beta 0.01–0.02" and groups[0][1] == plots.SCALE[0] and groups[-1][1] == plots.SCALE[-1]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
def test_a_browser_shows_the_sections_that_have_data(tmp_path: Path) -> None:
    top = grid(tmp_path / "sweeps" / "toy")
    run_folder(top / "4", beta=0.3, G=4, status="pruned", note=HOSTILE)
    write(top)
    run_folder(tmp_path / "single", evaluated=False)
    write(tmp_path / "single")
    several, one = browse(top), browse(tmp_path / "single")
    sections = {"curves", "heat", "parallel", "importance", "frontier", "table", "unfinished", "samples", "configs"}
    assert set(re.findall(r'<section id="(\w+)"', several)) == sections
    assert set(re.findall(r'<section id="(\w+)"', one)) == {"curves", "samples"}
    assert several.count("js-plotly-plot") >= 8


def browse(folder: Path) -> str:
    """The page as a browser has it after its scripts have run; no script may fail."""
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=20000",
        "--enable-logging=stderr",
    ]
    url = (folder / "report.html").as_uri()
    done = subprocess.run([*command, "--dump-dom", url], capture_output=True, text=True, timeout=120, check=True)
    problems = [line for line in done.stderr.splitlines() if "CONSOLE" in line and ("Uncaught" in line or "Refused" in line)]
    assert not problems, problems
    return done.stdout.split("</footer>")[0]
