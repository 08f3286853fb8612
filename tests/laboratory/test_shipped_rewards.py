"""Every reward of conf/reward passes the laboratory, each on data made for it."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command import ROOT, call

from grpo_exp.answers import forms, quantities
from grpo_exp.sandbox import bubblewrap

REWARDS = sorted(path.stem for path in (ROOT / "conf" / "reward").glob("*.yaml"))
NEEDS = {"json": ("jsonschema",), "judge": ("httpx",), "reasoning_gym": ("reasoning_gym",)}
SKIPPED = {"model": "whether a trained model is to be trusted depends on its weights"}
SLOW = (
    "code",
    "judge",
    "reasoning_gym",
    "math",
    "cosine",
    "length",
)  # processes and requests by the hundred, responses by the thousand

DIGITS = [("7", True), (" 0\n", True), ("x", False), ("12", False), ("", False), ("The digit is 7", False)]
FORMS = [("<answer>5</answer>", True), ("so <answer>x</answer>", True), ("5", False), ("<answer>5", False), ("", False)]
CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Kenya": "Nairobi", "Peru": "Lima", "Japan": "Tokyo"}
FUNCTIONS = {"double": "2 * x", "square": "x * x", "plus_one": "x + 1", "half": "x // 2"}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with data for each reward."""
    monkeypatch.chdir(tmp_path)
    lines("digits.jsonl", [{"prompt": "Say one digit.", "note": "x", "response": t, "right": right} for t, right in DIGITS])
    lines("forms.jsonl", [{"prompt": "1+1=?", "answer": "2", "response": t, "right": right} for t, right in FORMS])
    lines("capitals.jsonl", [{"prompt": f"The capital of {name}?", "answer": city} for name, city in CAPITALS.items()])
    letters, cities = "ABC", list(CAPITALS.values())
    exam = [(letters[i % 3], cities[i:] + cities[:i]) for i in range(6)]
    lines("exam.jsonl", [{"prompt": f"Which one, {i}?", "answer": a, "choices": c[:3]} for i, (a, c) in enumerate(exam)])
    pairs = [(f"{{'x': {i}}}".replace("'", '"'), i) for i in range(6)]
    lines("objects.jsonl", [{"prompt": f"x is {i}, as JSON", "answer": text, "wanted": text} for text, i in pairs])
    calls = [json.dumps({"name": "f", "arguments": {"x": i}}) for i in range(6)]
    lines("calls.jsonl", [{"prompt": f"call f with {i}", "answer": text} for i, text in enumerate(calls)])
    with closing(sqlite3.connect("shop.db")) as shop:
        shop.execute("create table item (name, price)")
        shop.executemany("insert into item values (?, ?)", [("ink", 1), ("pen", 2), ("map", 3)])
        shop.commit()
    queries = [f"select name from item where price = {price}" for price in (1, 2, 3)]
    lines("queries.jsonl", [{"prompt": f"which costs {i}?", "answer": query} for i, query in enumerate(queries, 1)])
    tasks = [
        (name, f"def {name}(x):\n    return {body}", f"assert {name}(6) == {eval(body, {'x': 6})}")
        for name, body in FUNCTIONS.items()
    ]
    lines("tasks.jsonl", [{"prompt": f"write {name}", "answer": program, "tests": [test]} for name, program, test in tasks])
    Path("mine.py").write_text(MINE)


MINE = """
from grpo_exp.answers import forms, quantities

def score(completions, answers):
    found = [forms.find(text, ["tag", "boxed", "answer_is"]) for text in completions]
    return [float(bool(one) and quantities.equal(one, answer)) for one, answer in zip(found, answers)]
"""


def lines(name: str, rows: list[dict[str, Any]]) -> None:
    Path(name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def words(reward: str) -> list[str]:
    """What the command needs besides the reward's name."""
    file = ["data=file", "data.split=1"]
    return {
        "choice": [*file, "data.path=exam.jsonl", "reward.parts.choice.options=choices"],
        "code": [*file, "data.path=tasks.jsonl"],
        "contains": [*file, "data.path=capitals.jsonl"],
        "custom": ["reward.path=mine.py:score"],
        "digit": ["data=digits", "responses=digits.jsonl"],
        "format": ["responses=forms.jsonl"],
        "json": [*file, "data.path=objects.jsonl", "reward.parts.json.field=wanted"],
        "judge": ["reward.parts.judge.model=m", "limit=60"],
        "reasoning_gym": ["data=reasoning_gym", "data.task=chain_sum", "data.train=8", "data.heldout=2"],
        "regex": [*file, "data.path=capitals.jsonl"],
        "sql": [*file, "data.path=queries.jsonl", "reward.parts.sql.database=shop.db", "reward.parts.sql.database_field=null"],
        "tool_call": [*file, "data.path=calls.jsonl"],
    }.get(reward, [])


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A judge who knows mathematics, and his address."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][1]["content"]
            _, reference, answer = re.findall(r"(=== \w+ ===)\n(.*?)\n\1", asked, re.DOTALL)
            found = forms.find(answer[1], ["tag", "boxed", "hash", "answer_is", "equation", "whole"])
            score = 10 if found and quantities.equal(found, reference[1]) else 0
            reply = {"choices": [{"message": {"role": "assistant", "content": f'So. {{"score": {score}}}'}}]}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.xdist_group("sandbox")
@pytest.mark.parametrize("reward", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in REWARDS])
def test_it_passes(reward: str, judge: str, capsys: pytest.CaptureFixture[str]) -> None:
    if reward in SKIPPED:
        pytest.skip(SKIPPED[reward])
    for package in NEEDS.get(reward, ()):
        pytest.importorskip(package)
    if reward == "code" and (why := bubblewrap.refusal()):
        pytest.skip(f"no sandbox here: {why}")
    extra = [f"reward.parts.judge.base_url={judge}"] if reward == "judge" else []
    answer = call(capsys, "reward", f"reward={reward}", *words(reward), *extra)
    assert answer.code == 0, answer.out + answer.err
    assert answer.out.splitlines()[-1].startswith("trustworthy: it agrees with ")
