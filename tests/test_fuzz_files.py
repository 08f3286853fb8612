"""Files of any content: each that is read is read, or ends in one error that names it; nothing else, and in bounded time.

Every file is damaged in the ways of DAMAGE, and its JSON by values of every other kind. GRPO_EXP_FUZZ=100 makes a hundred
times as many as CI does.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_exp.deadline import DeadlineExceeded, deadline
from grpo_exp.errors import LONGEST, DataError, GrpoError

MORE = int(os.environ.get("GRPO_EXP_FUZZ", "1"))
SECONDS = 60.0
VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1.5, 1e308, -0.0, 2**63, 10**400, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        "x",
        "nan",
        "1e999",
        "\ud800",
        "\x00\x1b[31m\x07",
        "\u202e\u2028",
        "</script><!--",
        "../../x",
        "x" * 3000,
        "$x^{$",
        "[red]",
    ),
    *([], {}, [None], [[]], {"": ""}, {"x": {"y": [1]}}, [{"role": "user", "content": 3}], ["\ud800"], [1, "a", None]),
    json.loads("[" * 400 + "]" * 400),
]
PIECES = [
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3", "\u2028".encode(), b"\\ud800", b"1e999", b"NaN", b"-", b"9" * 5000),
    *(
        b"[" * 3000,
        b'{"a":' * 3000,
        b'"',
        b"'",
        b"\r\n",
        b"\n",
        b"\n\n",
        b",",
        b":",
        b"}",
        b"]",
        b"#",
        b"&a ",
        b"*a ",
        b"!!python/name:os",
    ),
    *(b"\x1b[31m", b"<<: ", b"\t", b"- ", b"{{", b"%"),
]


KEY = "KEY"


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def flip(rng: random.Random, data: bytes) -> bytes:
    found = bytearray(data or b"x")
    for _ in range(rng.choice([1, 1, 5, 50])):
        found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found)


def insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(PIECES) + data[at:]


def repeat(rng: random.Random, data: bytes) -> bytes:
    a, b = sorted(rng.randrange(len(data) + 1) for _ in "ab")
    return data[:b] + data[a:b] + data[b:]


def nothing_left(rng: random.Random, data: bytes) -> bytes:
    return rng.choice(
        [b"", b"\n" * 9, b"\x00" * 99, rng.randbytes(300), b"[" * 100_000, b'{"a":' * 100_000, b"null", b"[]", b"{}", b"3"]
    )


def otherwise(rng: random.Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    made = [
        gzip.compress(data),
        text.encode("utf-16"),
        text.encode("utf-32"),
        b"\xef\xbb\xbf" + data,
        data.replace(b"\n", b"\r\n"),
    ]
    return rng.choice([*made, data.replace(b"\n", b"\r"), text.replace("a", "\xe4").encode("latin-1", "replace"), data.upper()])


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def values(rng: random.Random, data: bytes) -> bytes:
    """Some values of a JSON or YAML document, or of a line of one, are of another kind, gone, or under another name."""
    lines = data.split(b"\n")
    place = rng.randrange(len(lines)) if b"\n" in data.strip() and data[:1] == b"{" and data.count(b"\n{") else None
    part = data if place is None else lines[place]
    load, dump = (json.loads, json.dumps) if part[:1] in (b"{", b"[") else (yaml.safe_load, yaml.safe_dump)
    try:
        document = load(part.decode())
    except (ValueError, RecursionError, yaml.YAMLError):
        return flip(rng, data)
    for _ in range(rng.choice([1, 1, 3])):
        found = list(places(document))
        if not found:
            break
        where, key = rng.choice(found)
        how = rng.random()
        if how < 0.75:
            where[key] = rng.choice(VALUES)
        elif how < 0.9 or isinstance(where, list):
            del where[key]
        else:
            where[rng.choice(["", "x", "\ud800", "id", "step", key.upper()])] = where.pop(key)
    try:
        made = dump(document).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, RecursionError):
        return insert(rng, data)
    return made if place is None else b"\n".join([*lines[:place], made, *lines[place + 1 :]])


DAMAGE: list[Callable[[random.Random, bytes], bytes]] = [
    cut,
    flip,
    insert,
    repeat,
    nothing_left,
    otherwise,
    values,
    values,
    values,
    values,
]


def damage(rng: random.Random, data: bytes) -> bytes:
    for _ in range(rng.choice([1, 1, 1, 2])):
        data = rng.choice(DAMAGE)(rng, data)
    return data


def ends(action: Callable[[], Any], *names: str) -> str:
    """Run it: "read", or the message of its one error, which names one of the files or folders, or after KEY an option."""
    try:
        with deadline(SECONDS):
            action()
    except GrpoError as error:
        message = str(error)
        assert error.exit_code in (2, 3)
        assert len(message) <= LONGEST, message
        assert any(name in message for name in names) or (names[0] == KEY and re.match(r"[\w./@-]+[=: ]", message)), message
        assert "\n" not in message and "Traceback" not in message, message
        return message
    except DeadlineExceeded as error:
        raise AssertionError(f"does not end: {error}") from error
    return "read"


def hunt(
    seed: str, count: int, folder: Path, files: list[str], action: Callable[[random.Random], Any], names: list[str]
) -> None:
    """Damage the files of a folder, one at a time, and read them; the file that broke something is left there."""
    whole = {name: (folder / name).read_bytes() for name in files}
    found = {"read": 0, "refused": 0}
    for number in range(count * MORE):
        rng = random.Random(f"{seed} {number}")
        name = rng.choice(files)
        (folder / name).write_bytes(damage(rng, whole[name]))
        try:
            told = ends(lambda rng=rng: action(rng), *names, name)  # type: ignore[misc]
        except Exception as error:
            raise AssertionError(
                f"{folder / name} as of random.Random('{seed} {number}'): {type(error).__name__}: {error}"
            ) from error
        found["read" if told == "read" else "refused"] += 1
        (folder / name).write_bytes(whole[name])
    assert found["read"] and (found["refused"] or names == ["never"]), found


# ---- data


ROWS = [
    {
        "id": f"r{i}",
        "q": f"{i} + 1 = ?",
        "a": i + 1,
        "c": "easy",
        "good": "yes",
        "bad": "no",
        "m": [{"role": "user", "content": f"{i}?"}],
    }
    for i in range(6)
]


def parquet(rows: list[dict[str, Any]]) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), out)
    return out.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "rows.jsonl": lambda: b"".join(json.dumps(row).encode() + b"\n" for row in ROWS),
    "rows.json": lambda: json.dumps(ROWS).encode(),
    "rows.csv": lambda: (
        b"id,q,a,c,good,bad\n" + b"".join(b'r%d,"%d + 1 = ?",%d,easy,yes,no\n' % (i, i, i + 1) for i in range(6))
    ),
    "rows.parquet": lambda: parquet(ROWS),
}


@pytest.mark.parametrize("name", FILES)
def test_a_data_file_gives_items_or_one_error(name: str, tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    from grpo_exp.compose import compose
    from grpo_exp.config import build
    from grpo_exp.data.file import FileData

    path = tmp_path / name
    path.write_bytes(FILES[name]())
    made = build(compose(["data=file", f"data.path={path}", "data.split=2", "model=tiny_random"])).data
    assert isinstance(made, FileData) and OmegaConf
    given = {key: getattr(made, key) for key in FileData.__dataclass_fields__}

    def load(rng: random.Random) -> None:
        odd = {
            "prompt": rng.choice([*(fields := ["q", "a", "m", "c", "id", "nope", "{q} {a}", "{q}{{}}", "{m}"]), None]),
            "answer": rng.choice([*fields, None]),
            "target": rng.choice(fields),
            "category": rng.choice(["c", "m"]),
            "chosen": rng.choice(["good", "m", "q"]),
            "rejected": rng.choice(["bad", "m"]),
            "replace": rng.choice([{"q": [["1", "2"], [r"(\d)", r"\1\1"]]}, {"m": [["x", "y"]]}]),
            "chat": rng.random() < 0.5,
            "on_error": rng.choice(["error", "skip"]),
            "split": rng.choice([0, 0.5, str(path)]),
            "limit": 3,
        }
        changes = {"prompt": "q", "answer": "a", "split": 2} | {k: v for k, v in odd.items() if rng.random() < 0.15}
        if ("chosen" in changes) != ("rejected" in changes):
            changes |= {"chosen": "good", "rejected": "bad"}
        dataset = FileData(**(given | changes)).load()
        assert dataset.train and len(dataset.sha256) == 64
        json.dumps([dataset.notes, dataset.source]).encode()
        assert not any(ord(c) < 32 for note in dataset.notes for c in note)

    hunt(name, 100, tmp_path, [name], load, [KEY, "data."])


# ---- what a run leaves


def run_folder(folder: Path) -> Path:
    """A finished run, by hand, with a checkpoint and an export."""
    import torch
    from report.run_folders import write_run

    from grpo_exp.checkpoint import CheckpointOptions, Checkpoints, State
    from grpo_exp.compose import compose
    from grpo_exp.config import resolved

    write_run(folder, steps=3)
    (folder / "config.yaml").write_text(yaml.safe_dump(resolved(compose(["model=tiny_random", "steps=3"])), sort_keys=False))
    (folder / "samples.jsonl").write_text(
        '{"step": 3, "prompt": "1", "completion": "2", "total": 1.0, "length": 1, "finished": true}\n'
    )
    layer = torch.nn.Linear(2, 2)
    state = State(dict(layer.named_parameters()), torch.optim.AdamW(layer.parameters()).state_dict(), {"step": 3})
    Checkpoints(folder / "checkpoints", CheckpointOptions(1, 2, True, False), True).save(3, state, 0.5)
    return folder


RECORDS = ["run.json", "config.yaml", "metrics.jsonl", "eval.jsonl", "samples.jsonl"]


def test_a_report_is_made_of_whatever_lies_there(tmp_path: Path) -> None:
    from grpo_exp.report import content, export, page, terminal
    from grpo_exp.report.compare import compare
    from grpo_exp.report.runs import find

    sweep = tmp_path / "sweeps" / "s"
    for number in range(3):
        run_folder(sweep / str(number))
        (sweep / str(number) / "trial.json").write_text(
            '{"number": 0, "params": {"beta": 0.1}, "state": "complete", "value": 0.5}'
        )
    (sweep / "sweep.json").write_text('{"space": {"beta": "x"}, "metrics": ["eval/pass@1"]}')

    def report(rng: random.Random) -> None:
        comparison = compare(find([sweep]))
        page.html(content.content(comparison))
        if rng.random() < 0.1:
            page.write(comparison, tmp_path / "out")
        lines = [*terminal.plain(comparison), export.as_csv(comparison), export.as_json(comparison)]
        assert not any(ord(c) < 32 and c != "\n" for line in lines for c in line)
        "".join(lines).encode()

    files = [f"1/{name}" for name in (*RECORDS, "trial.json")] + ["sweep.json"]
    hunt("report", 12, sweep, files, report, ["never"])


def test_a_run_is_sent_to_wandb_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from grpo_exp.track.wandb import WandbTracker
    from grpo_exp.verbs import wandb_push

    class Sent:
        """What wandb.init returns; it takes JSON alone, as the client does."""

        def __init__(self, **about: Any) -> None:
            json.dumps(about)
            self.summary: dict[str, Any] = {}
            self.offline, self.dir, self.project, self.id, self.tags = True, str(tmp_path / "w" / "x"), "p", "i", ()

        def log(self, row: Any) -> None:
            json.dumps({k: v for k, v in row.items() if k != "samples"})

        def define_metric(self, *_: Any, **__: Any) -> None: ...
        def finish(self, **_: Any) -> None: ...

    monkeypatch.setattr(WandbTracker, "_init", lambda self, mode, card, config, seconds: Sent(config=config))
    monkeypatch.setattr(WandbTracker, "_send_table", lambda self: None)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    folder = run_folder(tmp_path / "run")

    def push(rng: random.Random) -> None:
        if wandb_push.main([str(folder), "track.wandb=offline"]):
            raise DataError(capsys.readouterr().err)

    hunt("push", 60, folder, RECORDS, push, [KEY])


def test_a_subject_of_evaluation_is_read_or_refused(tmp_path: Path) -> None:
    from grpo_exp import config, subject

    run = run_folder(tmp_path / "run")
    model, adapter = tmp_path / "model", tmp_path / "adapter"
    for folder, file, content in (
        (model, "config.json", {"architectures": ["LlamaForCausalLM"]}),
        (adapter, "adapter_config.json", {"base_model_name_or_path": str(model)}),
    ):
        folder.mkdir()
        (folder / file).write_text(json.dumps(content))
    (adapter / "adapter_model.safetensors").write_bytes(b"")

    def look(rng: random.Random) -> None:
        words = [str(run), f"{run}@best", f"{run}@3", str(run / "checkpoints" / "step-000003"), str(model), str(adapter)]
        found = subject.find(rng.choice(words))
        config.build(subject.configuration(found, []), judged=False)

    files = ["run/config.yaml", "run/config.yaml", "run/checkpoints/step-000003/manifest.json", "model/config.json"]
    hunt("subject", 15, tmp_path, [*files, "adapter/adapter_config.json"], look, [KEY, str(tmp_path)])


BOMBS = {
    "aliases": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{n}: &{n} [{','.join(['*' + m] * 9)}]\n" for m, n in zip("abcdefgh", "bcdefghi", strict=True)),
    "depth": "a: " + "[" * 50_000 + "]" * 50_000,
    "recursion": "a: &a [*a]\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_configuration_that_unfolds_without_end_is_refused(name: str, tmp_path: Path) -> None:
    """Nine lines of aliases are some 400 million values."""
    from grpo_exp.report.runs import read
    from grpo_exp.subject import find

    run = run_folder(tmp_path / "run")
    (run / "config.yaml").write_text(BOMBS[name])
    assert "config.yaml" in ends(lambda: find(str(run)), "config.yaml")
    with deadline(SECONDS):
        assert read(run).status == "broken"


def test_a_folder_that_a_run_goes_on_in_is_read_or_refused(tmp_path: Path) -> None:
    from grpo_exp import checkpoint, earlier
    from grpo_exp.compose import compose
    from grpo_exp.config import resolved

    run = run_folder(tmp_path / "run")
    plain = resolved(compose(["model=tiny_random", "steps=9"]))

    def go_on(rng: random.Random) -> None:
        earlier.find(run, plain, set())
        checkpoint.Checkpoints(run / "checkpoints", checkpoint.CheckpointOptions(1, 2, True, False), True).recall()

    place = "checkpoints/step-000003/"
    files = [place + name for name in ("manifest.json", "weights.safetensors", "optimizer.pt", "progress.json")]
    hunt("go on", 60, run, ["run.json", "config.yaml", *files], go_on, [KEY, str(run)])


def test_a_checkpoint_with_a_true_manifest_is_read_or_refused(tmp_path: Path) -> None:
    """Whoever makes a checkpoint can make its checksums too; pickle is not run, and what cannot be read is said."""
    from grpo_exp import checkpoint

    folder = run_folder(tmp_path / "run") / "checkpoints" / "step-000003"

    def load(rng: random.Random) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        for name in manifest["files"]:
            manifest["files"][name]["sha256"] = checkpoint._sha256(folder / name)
        (folder / "manifest.json").write_text(json.dumps(manifest))
        checkpoint.load(folder)

    hunt("true", 100, folder, ["weights.safetensors", "optimizer.pt", "progress.json"], load, [str(folder)])


# ---- sweeps


def test_a_sweep_reads_or_refuses_its_files(tmp_path: Path) -> None:
    from sweep import fake_jobs

    from grpo_exp.sweep import results, study, trial

    folder = tmp_path / "sweep"
    fake_jobs.sweep(folder, n_trials=3).run()
    kept = tmp_path / "kept"

    def look(rng: random.Random) -> None:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept)  # what goes on with it is a copy
        if rng.random() < 0.5:
            fake_jobs.sweep(kept, n_trials=4).run()
        else:
            trial.Reporter(folder, 1, 0, 4)
            ended = results.read(folder / "1", None)
            results.disk_is_full(folder, ended)
            assert all(isinstance(x, float) for x in [*ended.values(["eval/pass@1"]), *ended.values(["eval/pass@1", "x"])])
            assert isinstance(ended.late("kl/median"), float)
            results.is_told(folder / "1")
            study.own(fake_jobs.sweep(kept, n_trials=3).study.get_trials())

    hunt(
        "sweep",
        60,
        folder,
        ["study.journal", "sweep.json", "1/trial.json", "1/run.json", "1/metrics.jsonl"],
        look,
        [str(folder), str(kept)],
    )


# ---- models


def test_a_model_folder_is_loaded_or_refused(tmp_path: Path) -> None:
    import torch

    from grpo_exp import model, tiny
    from grpo_exp.compose import compose
    from grpo_exp.config import build
    from grpo_exp.policy import Policy

    folder = tmp_path / "model"
    options = build(compose(["model=tiny_random"])).model
    made, tokenizer = model.load(options, 0)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    options = build(compose(["model=hf", f"model.path={folder}", "model.adapter=none"])).model
    assert tiny

    def load(rng: random.Random) -> None:
        Policy.load(options, torch.device("cpu"), torch.float32, 0)

    files = [
        "config.json",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "model.safetensors",
    ]
    hunt("model", 30, folder, files, load, [KEY])
