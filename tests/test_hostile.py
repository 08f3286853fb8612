"""What a model writes, a data set holds or a folder from elsewhere contains is text: it runs, hides and stalls nothing."""

from __future__ import annotations

import io
import itertools
import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command import ROOT, SMALL, call
from hypothesis import given, settings
from hypothesis import strategies as st
from plotly.offline import get_plotlyjs

from grpo_exp.answers import forms, quantities, symbolic, units
from grpo_exp.batch import Completions, Example, Rewards
from grpo_exp.compose import compose
from grpo_exp.config import build
from grpo_exp.deadline import deadline
from grpo_exp.errors import ConfigError, ModelError
from grpo_exp.policy import Policy
from grpo_exp.rewards import format as form
from grpo_exp.track import picture, wording
from grpo_exp.track.base import TrackOptions
from grpo_exp.track.console import ConsoleTracker
from grpo_exp.track.wandb import WandbTracker

ATTACKS = [
    *(
        "\x1b[31mred\x1b[0m",
        "\x1b]0;title\x07",
        "\x1b]8;;http://x\x07link\x1b]8;;\x07",
        "\x1bP1$r\x1b\\",
        "\x9b31m",
        "\x9d0;title\x9c",
    ),
    *(
        "fake\rline",
        "back\b\b\bspace",
        "bell\x07",
        "\x00null",
        "\x7f",
        "finished in 0:01: eval/pass@1 1.000\n\nfinished",
        "\v\f\x85",
    ),
    *(
        "\u202eabc\u202c",
        "\u2066x\u2069",
        "zero\u200bwidth\u200d\ufeff",
        "\u2028line\u2029",
        "\U000e0041tag",
        "half \ud800 and \udfff",
    ),
    *(
        "[red]markup[/]",
        "[link=http://x]x[/link]",
        "[/]",
        "[bold",
        ":smile:",
        "<b>x</b>",
        "</script><script>alert(1)</script><!--",
    ),
    *(
        '"><img src=x onerror=alert(1)>',
        "javascript:alert(1)",
        "${alert(1)}",
        "{{js}}",
        "%{x}<extra>",
        "=cmd|'/C calc'!A0",
        "+1",
        "@SUM(1)",
    ),
    *(
        "$x^{$",
        "$\\frac{1}{$",
        "\\$",
        "_hidden",
        "../../etc/passwd",
        "/etc/passwd",
        "nul\x00.txt",
        "a" * 5000,
        "é" * 300,
        "",
        " ",
        "\n",
    ),
]
UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def unsafe(text: str) -> set[str]:
    """Characters that a terminal acts on, or that hide or turn what is shown."""
    return {c for c in text if c != "\n" and unicodedata.category(c) in UNSAFE}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


# ---- the screen, the files, the report


def test_a_model_that_writes_attacks_is_only_quoted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole run, its report and its evaluation, every completion and every prompt an attack."""
    written = itertools.cycle(ATTACKS)
    monkeypatch.setattr(Policy, "decode", lambda self, tokens: [next(written) for _ in tokens])
    short = [attack for attack in ATTACKS if attack.strip() and len(attack) < 90 and "\ud800" not in attack]
    rows = [{"q": f"{i} {attack}", "a": "5", "c": attack} for i, attack in enumerate(short)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ["data=file", "data.path=rows.jsonl", "data.prompt=q", "data.answer=a", "data.category=c", "data.split=20"]
    small = [word for word in SMALL if not word.startswith(("data.", "track", "eval.max_items", "model="))]
    words = [
        *small,
        *data,
        "model=tiny_random",
        "track=local",
        "track.wandb=off",
        "track.samples_every=1",
        "track.samples_shown=8",
    ]
    words += ["prompts_per_step=8", "G=4", "track.console=plain"]
    run = call(capsys, *words, "hydra.run.dir=run")
    assert (run.code, run.err) == (0, "")
    report, csv = call(capsys, "report", "run"), call(capsys, "report", "run", "--csv", "-", "--no-html")
    evaluation = call(capsys, "evaluate", "run", "hydra.run.dir=evaluation")
    for answer in (run, report, csv, evaluation):
        assert answer.code == 0, answer
        assert not unsafe(answer.out + answer.err), answer
    assert "\nfinished in 0:01: eval/pass@1 1.000" not in run.out
    for name in ("run/metrics.jsonl", "run/samples.jsonl", "run/eval.jsonl", "evaluation/eval.jsonl"):
        lines = Path(name).read_bytes().split(b"\n")
        assert lines.pop() == b"" and lines
        for line in lines:
            assert isinstance(json.loads(line), dict) and not unsafe(line.decode("ascii"))
    kept = {json.loads(line)["completion"] for line in Path("run/samples.jsonl").read_text().splitlines()}
    assert {a for a in ATTACKS if "\ud800" not in a} <= kept  # nothing is lost
    made = [str(path) for path in Path().rglob("*")]
    assert all(re.fullmatch(r"[\w./ -]+", name) for name in made), made
    assert Path("run/curves.png").read_bytes().startswith(b"\x89PNG")
    page = Path("run/report.html").read_text(encoding="utf-8").replace(get_plotlyjs(), "")
    assert page.count("<script") == 3 and not unsafe(page)


@pytest.mark.parametrize("mode", ["live", "plain", "quiet"])
def test_the_console_shows_escapes_and_takes_no_markup(mode: str) -> None:
    options = TrackOptions(
        **{**yaml.safe_load((ROOT / "conf/track/local.yaml").read_text()), "console": mode, "samples_every": 1}
    )
    for attack in ATTACKS:
        out = io.StringIO()
        tracker = ConsoleTracker(options, stream=out, width=100)
        tracker.start({"name": attack, "steps": 2, "data": {"name": attack, "notes": [attack]}, "formula": attack}, {})
        tracker.metrics({"step": 1, "kind": "train", "reward/mean": 0.5, attack: 1.0})
        tracker.metrics({"step": 1, "kind": "eval", "eval/pass@1": 0.5, f"eval/pass@1/{attack}": 1.0})
        tracker.samples([{"step": 1, "prompt": attack, "completion": attack, "total": 1.0, attack: 1.0}])
        tracker.note(attack, "warn")
        after = {"eval/pass@1": [0.5, 0.4, 0.6], f"eval/pass@1/{attack}": [0.5, 0.4, 0.6]}
        tracker.finish({"status": "failed", "error": attack, "folder": attack, "after": after, "goal": {"metric": attack}})
        shown = (
            re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()) if mode == "live" else out.getvalue()
        )  # rich's own colours
        assert not unsafe(shown) - ({"\r"} if mode == "live" else set()), (attack, shown)
        assert "31mred" not in out.getvalue() or "\\x1b[31mred" in out.getvalue()
        if attack == "[red]markup[/]":
            assert "[red]markup[/]" in shown


@pytest.mark.slow
def test_errors_and_a_sweep_quote_attacks_too(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rewards.py").write_text(
        f"ATTACK = {ATTACKS[0] + ATTACKS[5] + ATTACKS[13] + chr(0xD800)!r}\n"
        "def score(completions):\n    if len(completions) > 3:\n        raise ValueError(ATTACK)\n"
        "    return [0.5] * len(completions)\n"
    )
    failing = [*SMALL, "reward=custom", "reward.path=rewards.py:score", "eval.start=false"]
    one, two = call(capsys, *failing, "hydra.run.dir=one"), call(capsys, "-m", *failing, "beta=0,0.1", "hydra.sweep.dir=two")
    word = call(capsys, f"name={ATTACKS[0]}", "model=tiny_random")
    assert (one.code, two.code, word.code) == (3, 3, 2)
    for answer in (one, two, word):
        assert not unsafe(answer.out + answer.err), answer
        assert "\\x1b[31mred" in answer.out + answer.err
    for file in ("one/run.json", "one/error.txt", "two/0/trial.json", "two/0/error.txt"):
        assert not unsafe(Path(file).read_text(encoding="utf-8")), file
    assert json.loads(Path("one/run.json").read_text())["status"] == "failed"


def test_no_picture_reads_a_name_as_a_formula() -> None:
    Path("metrics.jsonl").write_text(
        '{"step": 1, "kind": "train", "reward/mean": 0.5}\n{"step": 2, "kind": "train", "reward/mean": 0.6}\n'
    )
    for attack in (*ATTACKS, "$", "$$", r"\$$", "^_{}"):
        assert not unsafe(picture.literal(attack))
    picture.draw([Path()] * len(ATTACKS), Path("curves.png"), labels=[attack[:40] for attack in ATTACKS])
    picture.draw([Path()], Path("curves.png"), labels=["$\\frac{1}{$ \ud800"])


def test_the_report_makes_no_markup_of_data() -> None:
    """Text gets onto the page as text nodes, and into plots through `plain`; see also tests/report/test_page.py."""
    for file in (ROOT / "grpo_exp" / "assets" / "report").glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\.srcdoc", file.read_text()
        ), file


def test_what_goes_to_wandb_is_plain_and_bounded(tmp_path: Path) -> None:
    class Sent:
        def __init__(self) -> None:
            self.rows: list[dict[str, Any]] = []

        def log(self, row: dict[str, Any]) -> None:
            self.rows.append(row)

    values = yaml.safe_load((ROOT / "conf/track/local.yaml").read_text())
    tracker = WandbTracker(TrackOptions(**{**values, "samples_every": 1, "sample_rows_kept": 100}), tmp_path, pytest.fail)
    tracker.run = sent = Sent()
    tracker.samples([{"step": 1, "prompt": attack, "completion": attack * 9, attack: attack} for attack in ATTACKS])
    (row,) = sent.rows
    cells = [cell for line in row["samples"].data for cell in line if isinstance(cell, str)]
    assert len(cells) > 100 and max(map(len, cells)) <= 4000
    json.dumps([row["samples"].columns, cells]).encode()
    "".join(cells).encode()  # no half of a character


# ---- time


UNITS = [
    *(
        "<answer>",
        "</answer>",
        "\\boxed{",
        "}",
        "{",
        "####",
        "answer is ",
        "Answer: ",
        "= ",
        "1",
        "1,",
        "1/",
        "-",
        "+",
        " ",
        "\n",
        "(",
        ")",
    ),
    *(
        "\\frac{",
        "\\text{",
        "\\",
        "$",
        "**",
        "`",
        "a so ",
        "as ",
        "%",
        "1.",
        ",000",
        " 000",
        "_000",
        "e9",
        "^",
        "\\pm",
        " or ",
        "x=",
        "·",
        "é",
    ),
    *(
        "<think>",
        "</think>",
        "$1*",
        "km",
        "a/",
        "dollars ",
        "\t",
        "0",
        "9" * 50,
        "1 1/2 ",
        "\\sqrt{",
        "\\left(",
        "°",
        "half ",
        "I ",
    ),
]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    parts=st.lists(st.tuples(st.sampled_from(UNITS), st.sampled_from([1, 3, 150, 3000])), min_size=1, max_size=4),
    size=st.sampled_from([250, 2_000, 100_000]),
    ends=st.sampled_from(["", "</answer>", "}", "!", "x", "\n"]),
)
def test_no_text_makes_an_expression_of_ours_run_long(parts: list[tuple[str, int]], size: int, ends: str) -> None:
    """100,000 characters of repeats, through all that looks at a completion: what is quadratic would take minutes."""
    one = "".join(unit * count for unit, count in parts)
    text = (one * (size // len(one) + 1))[:size] + ends
    with deadline(20):
        for wanted in forms.FORMS:
            for finished in (True, False):
                found = forms.find(text, [wanted], finished) or ""
                quantities.canonical(found)
                quantities.equal(found, "18")
        for matches in form._MATCHERS.values():
            matches(text)
        symbolic.admitted(text)
        units.read(text)
        wording.clean(text)


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_time_grows_with_the_length(unit: str) -> None:
    """Two megabytes of each repeat."""
    text = unit * (2_000_000 // len(unit))
    with deadline(60):
        for wanted in forms.FORMS:
            forms.find(text, [wanted])
        for matches in form._MATCHERS.values():
            matches(text)
        wording.clean(text)


SEVERE = [
    *(
        "9^{9^{9^{9}}}",
        "10^{10^8}",
        "(10^7)!",
        "\\frac{1}{" * 400 + "x" + "}" * 400,
        "(" * 3000 + "1" + ")" * 3000,
        "9" * 100_000,
    ),
    *(
        "\\{" + ",".join(map(str, range(3000))) + "\\}",
        "\\sum_{i=1}^{10^9} i",
        "\\int_0^1 x^{x^x} dx",
        "9!" * 50,
        "9!!!!!!",
        "2**(2**99)",
    ),
    *(
        "\\prod_{i=1}^{99999} i",
        "\\binom{10^9}{5*10^8}",
        "(a+b+c+d+e+f+g+h)^{99}",
        "((x+1)^{10}+y)^{10}",
        "\\sin" * 60 + " x",
        "x" * 300,
    ),
    *(
        "\\cosh{\\cosh{\\cosh{\\cosh{99}}}}",
        "\\tan{\\exp{\\exp{99}}}",
        "\\begin{pmatrix}" + "9&" * 140 + "\\end{pmatrix}",
        "1e999999999",
    ),
]


def scored(texts: list[str], reference: str) -> list[float | None]:
    part = build(compose(["model=tiny_random"])).reward.parts["math"]
    examples = [Example(str(i), "?", reference) for i in range(len(texts))]
    return part.score(Completions(examples, ["?"] * len(texts), texts, [[0]] * len(texts), [True] * len(texts)))


@pytest.mark.parametrize("reference", ["18", pytest.param("2\\sqrt{2}", marks=pytest.mark.slow)])
def test_expressions_that_would_compute_for_ever_are_wrong_at_once(reference: str) -> None:
    texts = [f"<answer>{attack}</answer>" for attack in SEVERE] * 3  # 66, as a batch has
    with deadline(60):
        assert set(scored(texts, reference)) == {0.0}


def test_a_batch_of_expressions_that_take_long_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 that pass the gate and take minutes: a few have their seconds, the others a moment, and all are counted."""
    from grpo_exp.metrics import reward_metrics

    def rewards(texts: list[str], reference: str) -> Rewards:
        rows = len(texts)
        examples = [Example(str(i), "?", reference) for i in range(rows)]
        return reward(Completions(examples, ["?"] * rows, texts, [[0]] * rows, [True] * rows))

    reward = build(compose(["model=tiny_random"])).reward
    monkeypatch.setattr(symbolic, "TOGETHER", 0.5)
    monkeypatch.setattr(symbolic, "HURRIED", 0.01)
    with deadline(45):  # without the budget 64 s on two cores
        stopped = rewards([f"<answer>(a+b+c+d+e+f+g+h)^{{98}}+{i}</answer>" for i in range(64)], "y+1")
    assert set(stopped.outcome.tolist()) == {0.0}
    group = torch.zeros(64, dtype=torch.long)
    assert reward_metrics(stopped, group)["reward/timeouts"] == 64
    assert "reward/timeouts" not in reward_metrics(rewards(["<answer>1</answer>"] * 64, "1"), group)


# ---- code that a folder or a file of options brings along


@pytest.fixture
def evil(tmp_path: Path) -> Iterator[Path]:
    """A model's folder with code of its own, and weights that run code where they are unpickled."""
    from transformers import LlamaConfig

    folder = tmp_path / "evil"
    folder.mkdir()
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w').close()\n"
    (folder / "modeling_evil.py").write_text(code)
    (folder / "tokenization_evil.py").write_text(code)
    LlamaConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=9).save_pretrained(
        folder
    )
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {
        name: "modeling_evil.Evil" for name in ("AutoConfig", "AutoModelForCausalLM", "AutoModelForSequenceClassification")
    }
    config |= {"model_type": "evil", "architectures": ["EvilForSequenceClassification"], "id2label": {"0": "x"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]}})
    )
    yield folder
    assert not ran.exists(), "code of the model's folder was run"


class Pickled:
    """Runs code when it is unpickled."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self) -> Any:
        return open, (str(self.ran), "w")


def test_code_of_a_model_is_not_run(evil: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_exp import model
    from grpo_exp.rewards import model as reward_model

    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run code"))
    options = build(compose(["model=hf", f"model.path={evil}", "model.adapter=none"])).model
    assert options.trust_remote_code is False
    with pytest.raises(ModelError, match=re.escape(str(evil))):
        model.load(options, 0)
    with pytest.raises(ConfigError, match=re.escape(str(evil))):
        reward_model.load(evil, "cpu")


def test_weights_that_are_pickled_are_not_read(evil: Path) -> None:
    from grpo_exp import model, tiny
    from grpo_exp.rewards import model as reward_model

    tiny.tokenizer().save_pretrained(evil)
    config = {k: v for k, v in json.loads((evil / "config.json").read_text()).items() if k != "auto_map"} | {
        "model_type": "llama"
    }
    (evil / "config.json").write_text(json.dumps(config))
    torch.save(Pickled(evil.parent / "ran"), evil / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        model.load(build(compose(["model=hf", f"model.path={evil}", "model.adapter=none"])).model, 0)
    with pytest.raises(ConfigError, match="safetensors"):
        reward_model.load(evil, "cpu")
    (evil / "adapter_config.json").write_text("{}")
    torch.save(Pickled(evil.parent / "ran"), evil / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors"):
        build(compose(["model=tiny_random", "model.adapter=lora", f"model.start_adapter={evil}"]))


OPTIONS_THAT_CALL = {
    "callback": "hydra: {callbacks: {x: {_target_: os.getcwd}}}",
    "list": "hydra: {callbacks: {x: {y: [{_target_: os.getcwd}]}}}",
    "reference": "hydra: {callbacks: {x: {_target_: '${name}'}}}",
    "factory": "hydra: {job_logging: {version: 1, handlers: {x: {(): os.getcwd}}, root: {handlers: [x]}}}",
    "class": "hydra: {job_logging: {version: 1, handlers: {x: {class: os.getcwd}}}}",
    "import": "hydra: {job_logging: {version: 1, handlers: {x: {class: logging.StreamHandler, stream: 'ext://os.environ'}}}}",
    "sweeper": "hydra: {sweeper: {_target_: os.getcwd}}",
    "option": "algo: {_target_: os.getcwd}",
    "part": "reward: {parts: {x: {_target_: os.getcwd}}}",
    "data": "data: {_target_: os.getcwd}",
    "model": "model: {_target_: os.getcwd}",
    "root": "_target_: os.getcwd",
}


@pytest.mark.parametrize("name", OPTIONS_THAT_CALL)
def test_options_name_no_code(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """But that of reward.path: a file of options may come from anywhere."""
    Path("own/algo").mkdir(parents=True)
    Path("own/algo/x.yaml").write_text(f"# @package _global_\ndefaults: [grpo, _self_]\n{OPTIONS_THAT_CALL[name]}\n")
    sweep = ["-m", "beta=0,1"] if name == "sweeper" else []
    answer = call(capsys, "--config-dir", "own", "algo=x", "model=tiny_random", *sweep)
    assert answer.code == 2 and re.search(r"_target_|\(\)|class|ext://|Invalid plugin|hydra_plugins", answer.err), answer
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    "word",
    [
        "+hydra.callbacks.x._target_=os.getcwd",
        "--config-name=other",
        "-cp=.",
        "--experimental-rerun=x.pickle",
        "model.name=../x",
    ],
)
def test_words_name_no_code_and_no_other_root(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, word, "model=smollm2_135m")
    assert answer.code == 2 and answer.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--config-dir", "~nobody-of-that-name/conf"],
        ["data=file", "data.path=~nobody-of-that-name/rows.jsonl"],
        ["model=hf", "model.path=~nobody-of-that-name/model"],
        ["reward=custom", "reward.path=~nobody-of-that-name/mine.py:score"],
        ["resume", "~nobody-of-that-name/run"],
        ["evaluate", "~nobody-of-that-name/run"],
        ["doctor", "~nobody-of-that-name/run"],
        ["report", "~nobody-of-that-name/run"],
    ],
    ids=lambda words: words[0],
)
def test_a_home_folder_of_nobody_is_a_path_that_is_not_there(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *words)
    assert answer.code == 2 and "nobody-of-that-name" in answer.err and "Traceback" not in answer.err, answer
