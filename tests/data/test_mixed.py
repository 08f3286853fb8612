"""Several sources in one data set: shares by weight, categories, leaks across them, and exact resume of their turns."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from command import SMALL, call
from omegaconf import OmegaConf

from grpo_exp.compose import compose
from grpo_exp.config import anchored, build
from grpo_exp.data.base import Items
from grpo_exp.errors import CheckpointError, ConfigError, DataError
from grpo_exp.prompt_order import MixedOrder, order_of

SUMS = ["+data@data.sources.sums=arithmetic", "data.sources.sums.train=60", "data.sources.sums.heldout=9"]


def lines(path: Path, count: int, what: str = "times") -> str:
    path.write_text("".join(json.dumps({"q": f"{i} {what} 2", "a": 2 * i, "level": i % 2}) + "\n" for i in range(count)))
    return str(path)


def words(path: str, *more: str) -> list[str]:
    named = [f"path={path}", "prompt=q", "answer=a", "split=4", "category=level"]
    mine = ["+data@data.sources.mine=file", *(f"data.sources.mine.{word}" for word in named)]
    return ["data=mixed", "model=tiny_random", *SUMS, *mine, *more]


@pytest.fixture
def mine(tmp_path: Path) -> str:
    return lines(tmp_path / "mine.jsonl", 24)


def test_items_of_all_sources(mine: str) -> None:
    data = build(compose(words(mine, "+data.weights.mine=3"))).data.load()
    assert [(share.name, share.weight, share.size) for share in data.shares] == [("sums", 1.0, 60), ("mine", 3.0, 20)]
    assert Counter(item.category for item in data.train) == {"sums": 60, "mine": 20}
    assert Counter(item.category for item in data.heldout) == {"sums": 9, "mine": 4}
    one = next(item for item in data.train if item.category == "mine")
    assert one.id.startswith("mine/row-") and one.columns["category"] in ("0", "1")
    assert len({item.id for item in data.train}) == 80
    assert "sums 25% (60, generated sums" in data.source and "mine 75% (20, " in data.source
    assert data.sha256 == build(compose(words(mine))).data.load().sha256, "weights are no part of what the items are"


@pytest.mark.parametrize(
    ("weights", "shares"), [({}, (0.5, 0.5)), ({"mine": 3}, (0.25, 0.75)), ({"sums": 0.9, "mine": 0.1}, (0.9, 0.1))]
)
def test_every_stretch_has_its_shares(weights: dict[str, float], shares: tuple[float, float], mine: str) -> None:
    written = [f"+data.weights.{name}={weight}" for name, weight in weights.items()]
    data = build(compose(words(mine, *written))).data.load()
    taken = order_of(data, 0, 8).take(400)
    for length in range(1, 401):
        assert abs(sum(i < 60 for i in taken[:length]) - shares[0] * length) <= 1
    own = [i for i in taken if i >= 60]
    for first in range(0, len(own) - 20, 20):
        assert len(set(own[first : first + 20])) == 20, "each prompt once an epoch of its source"


def test_the_order_goes_on_where_its_state_was_taken(mine: str) -> None:
    data = build(compose(words(mine, "+data.weights.mine=2"))).data.load()
    order = order_of(data, 1, 4, 2)
    taken = order.take(33)
    order.record(taken, [i % 3 == 0 for i in taken])
    state = json.loads(json.dumps(order.state()))
    rest = order.take(150)
    assert 0 < order.resting_frac < 1
    again = order_of(data, 1, 4, 2)
    again.load(state)
    assert again.take(150) == rest
    other = order_of(build(compose(words(mine))).data.load(), 1, 4, 2)
    with pytest.raises(CheckpointError, match="resume with the sources and weights"):
        other.load(state)
    assert isinstance(order, MixedOrder) and order_of(data, 2, 4).take(20) != order_of(data, 1, 4).take(20)


def test_what_one_source_holds_out_no_other_trains_on(mine: str, tmp_path: Path) -> None:
    held = lines(tmp_path / "held.jsonl", 5)  # which the other file trains on
    more = ["+data@data.sources.more=file", f"data.sources.more.path={lines(tmp_path / 'more.jsonl', 9, 'plus')}"]
    more += [f"data.sources.more.{word}" for word in ("prompt=q", "answer=a", f"split={held}")]
    data = build(compose(words(mine, *more))).data.load()
    prompts = {str(item.prompt) for item in data.heldout}
    assert not prompts & {str(item.prompt) for item in data.train}
    note = next(note for note in data.notes if "also held out" in note)
    assert int(note.split()[0]) == 24 - 4 - sum(item.category == "mine" for item in data.train) > 0
    with pytest.raises(DataError, match=r"data=mixed: the prompts of . training items are also held out"):
        build(compose(words(mine, *more, "data.leaks=error"))).data.load()


def test_a_source_may_be_streamed(mine: str) -> None:
    here = build(compose(words(mine))).data.load()
    there = build(compose(words(mine, "data.sources.mine.stream=always"))).data.load()
    assert isinstance(there.train, Items)
    assert (list(there.train), there.sha256) == (list(here.train), here.sha256)


def test_a_data_set_of_ones_own(mine: str, tmp_path: Path) -> None:
    """As docs/data.md shows it: one YAML file."""
    (tmp_path / "conf/data").mkdir(parents=True)
    (tmp_path / "conf/data/both.yaml").write_text(
        "defaults:\n  - mixed\n  - arithmetic@sources.sums\n  - file@sources.mine\n  - _self_\nname: both\n"
        f"sources:\n  mine:\n    path: {mine}\n    prompt: q\n    answer: a\nweights:\n  sums: 1\n  mine: 3\n"
    )
    from grpo_exp.command_line import read

    composed = compose(read(["--config-dir", str(tmp_path / "conf"), "data=both", "model=tiny_random"]))
    data = build(composed).data.load()
    assert [(share.name, share.weight) for share in data.shares] == [("sums", 1.0), ("mine", 3.0)]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("+data.weights.mien=2", r"data.weights.mien: no such source; there are: sums, mine. Did you mean 'mine'\?"),
        ("+data.weights.mine=0", "data.weights.mine=0: expected a number greater than 0"),
        ("+data.sources.sums.keep_between=[0,1]", "data.sources.sums.keep_between: it holds for all sources together"),
        ("data.sources.mine.split=0", "data.sources.mine: data.split=0: no item would be held out"),
        ("+data.sources.mine.lmit=0", r"data.sources.mine.lmit: no such option.*Did you mean 'limit'"),
        ("data.sources.mine.limit=0", "data.sources.mine.limit=0: expected a whole number at least 1"),
        ("+data@data.sources.third=mixed", "data.sources.third=.*expected the options of a data set other than mixed"),
        ("+data.sources.third=4", "data.sources.third=4: expected the options of a data set other than mixed"),
    ],
)
def test_wrong_options_name_the_source(word: str, message: str, mine: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(compose(words(mine, word)))


def test_faults_of_a_source_name_it(mine: str) -> None:
    with pytest.raises(DataError, match=r"data.sources.mine: .*mine.jsonl:1: no field 'question'"):
        build(compose(words(mine, "data.sources.mine.prompt=question"))).data.load()
    with pytest.raises(ConfigError, match=r"data=mixed has no sources: add some with \+data@data.sources.sums=arithmetic"):
        build(compose(["data=mixed", "model=tiny_random"])).data.load()


def test_files_of_sources_are_named_from_the_root(mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = OmegaConf.to_container(compose(words("mine.jsonl")), resolve=True)
    assert isinstance(plain, dict)
    assert anchored(plain)["data"]["sources"]["mine"]["path"] == str(tmp_path / "mine.jsonl")


def test_a_run_is_measured_on_each_source(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = [word for word in SMALL if not word.startswith(("data.", "model="))]
    options = [*words(mine, "+data.weights.mine=3"), *small, "steps=4", "prompts_per_step=4", "eval.max_items=0"]
    answer = call(capsys, *options, "checkpoint.every=2", "hydra.run.dir=run", "objective.metric=eval/pass@1/mine")
    assert answer.code == 0, answer.err
    card = json.loads(Path("run/run.json").read_text())
    assert card["seeds"]["data.sources.mine.split_seed"] == 0 and card["data"]["train"] == 80
    last = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()][-1]
    assert {"eval/pass@1/sums", "eval/pass@1/mine"} <= last.keys()
    drawn = [json.loads(line)["id"].partition("/")[0] for line in Path("run/samples.jsonl").read_text().splitlines()]
    assert Counter(drawn)["mine"] == 3 * Counter(drawn)["sums"]
