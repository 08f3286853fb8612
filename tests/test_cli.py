"""The command line: every wrong input is answered with exit code 2 and one clear message, before anything is written."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from command import ROOT, SMALL, call, finish, start

from grpo_exp import __version__
from grpo_exp.command_line import group_folders, options
from grpo_exp.verbs import VERBS


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    Path("empty").mkdir()
    Path("items.jsonl").write_text('{"prompt": "1+1=?", "answer": "2"}\n' * 3)
    Path("broken.jsonl").write_text('{"prompt": "1+1=?", "answer": "2"}\nnot json\n')
    Path("rewards.py").write_text("def score(completions):\n    return [0.0 for _ in completions]\n")
    for path, text in {
        "own/algo/broken.yaml": "# @package _global_\nalgo:\n  name: [a\nbeta: 3\n",
        "own/algo/orphan.yaml": "# @package _global_\ndefaults:\n  - grpoo\n  - _self_\n",
        "own/track/plain_off.yaml": "defaults:\n  - local\n  - _self_\nwandb: off\n",
        "own/reward/two.yaml": "defaults:\n  - part@parts.a: math\n  - part@parts.b: math\n  - _self_\nname: two\npath: null\n",
        "own/sweeps/wrong.yaml": "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      betta: 1,2\n",
    }.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)


WRONG = {
    # names
    "betta=0.1": ["betta", "Did you mean 'beta'", "--help"],
    "algo=grop": ["algo=grop", "Valid: cispo", "Did you mean 'grpo'"],
    "sweeps=beta_gird": ["sweeps=beta_gird", "Did you mean 'beta_grid'"],
    "algo.clip_lo=0.1": ["algo.clip_lo", "Did you mean 'algo.clip_low'"],
    "clip_low=0.1": ["clip_low", "Did you mean 'algo.clip_low'"],
    "algo=sft algo.clip_low=0.1": ["algo.clip_low", "no such option"],
    "+foo.bar=1": ["foo: no such option", "Valid: beta, G"],
    "+beta=1": ["+beta", "without the +"],
    "+algo=sft": ["+algo=sft", "write algo=sft"],
    "reward/part=math": ["reward/part=math", "+reward/part@reward.parts.NAME=OPTION"],
    "algo/kl=k1": ["algo/kl"],
    "~model": ["~model", "model=", "tiny"],
    "~beta": ["beta"],
    "~optim": ["optim: missing"],
    "~nothing": ["nothing: no such option"],
    "model@foo=tiny": ["model@foo=tiny", "model=NAME"],
    "beta": ["'beta' is neither a verb", "evaluate", "beta=0.05"],
    "frobnicate": ["'frobnicate' is neither a verb", "--help"],
    "evaluat nothing": ["Did you mean 'evaluate'"],
    "beta=0.1 evaluate": ["'evaluate'", "a verb stands first"],
    "=3": ["'=3'", "KEY=VALUE"],
    "--frob": ["--frob", "--help"],
    "--config-dir nowhere": ["--config-dir nowhere", "no such folder"],
    "--multirun --cfg job": ["Only one of"],
    # paths where names belong
    "algo=../../x": ["'../../x'", "Valid: cispo"],
    "algo=": ["''", "Valid: cispo"],
    "algo=[grpo,sft]": ["algo"],
    "name=../x": ["name='../x'", "folder"],
    # values at the root
    "beta=abc": ["beta='abc'", "a number at least 0", "weight of the KL term"],
    "beta=": ["beta=''", "a number at least 0"],
    "beta=nan": ["beta=nan", "a number at least 0"],
    "beta=-1": ["beta=-1", "at least 0"],
    "beta=null": ["beta=null", "a number"],
    "beta=true": ["beta=true", "a number"],
    "beta=${nope}": ["beta", "'nope' not found"],
    "beta=${beta}": ["beta", "Recursive"],
    "beta.x=1": ["beta"],
    "G=1": ["G=1", "G=2 or more"],
    "G=2,4": ["G=2,4", "-m", "[a,b]"],
    "seed=-1": ["seed=-1", "from 0 to 4294967295"],
    # values in groups
    "algo.clip_low=2": ["algo.clip_low=2", "from 0 to 1"],
    "algo.kl.place=los": ["algo.kl.place='los'", "loss, reward, none", "Did you mean 'loss'"],
    "algo.kl=null": ["algo.kl=null"],
    "algo.kind=foo": ["algo.kind='foo'", "Valid: "],
    "algo.minibatch_count=1000": ["algo.minibatch_count=1000", "use 128 at most"],
    "model=hf": ["model=hf needs model.path=", "hub id"],
    "model=hf model.path=./nowhere": ["model.path='./nowhere'", "no such folder"],
    "model.start_adapter=./nowhere model.adapter=lora": ["model.start_adapter='./nowhere'", "no such folder"],
    "model.start_adapter=empty model.adapter=lora": ["model.start_adapter='empty'"],
    "data=file data.path=items.jsonl data.split=-1": ["data.split"],
    "data.levels=[]": ["data.levels=[]", "easy"],
    "reward=custom": ["reward.path", "give it one"],
    "reward=custom reward.path=rewards.py": ["reward.path='rewards.py'", "file.py:function"],
    "reward=custom reward.path=nowhere.py:score": ["nowhere.py", "there is no file"],
    "reward=custom reward.path=rewards.py:scor": ["'scor'", "Did you mean 'score'"],
    "reward.parts=3": ["reward.parts=3"],
    "reward.parts.format.role=outcome": ["math, format all have role=outcome", "exactly one"],
    "reward.parts.math.role=shaping": ["reward.parts", "role=outcome"],
    "--config-dir own reward=two": ["a, b all have role=outcome", "exactly one"],
    r"rollout.stop=[\'\']": ["rollout.stop=['']", "rollout.stop=[]"],
    "hardware.update_rows=0": ["hardware.update_rows=0", "auto or a whole number"],
    "track.wandb=maybe": ["track.wandb='maybe'", "auto, online, offline, off"],
    "--config-dir own track=plain_off": ["track.wandb='False'", 'write "off" in quotes'],
    "objective.metric=nonsense": ["objective.metric='nonsense'", "eval/pass@1"],
    "objective.metric=eval/pas@1": ["Did you mean 'eval/pass@1'"],
    "eval=greedy objective.metric=eval/pass@k": ["eval/pass@k", "does not measure it with these options"],
    "objective.metric=eval/pass@1/esy": ["no held-out item is of that category", "Did you mean 'easy'"],
    # files
    "--config-dir own algo=broken": ["own/algo/broken.yaml:4", "broken YAML"],
    "--config-dir own algo=orphan": ["grpoo", "Did you mean 'grpo'"],
    "data=file": ["data.path=FILE"],
    "data=file data.path=item.jsonl": ["data.path", "item.jsonl", "items.jsonl"],
    "data=file data.path=broken.jsonl": ["broken.jsonl:2"],
    "data=file data.path=items.jsonl data.prompt=quest": ["quest"],
    "data=digits reward=math": ["reward=math", "data=digits", "no reference answer"],
    "hydra.run.dir=items.jsonl/x": ["items.jsonl", "hydra.run.dir="],
    # sweeps
    "-m beta=0.1,abc": ["beta='abc'", "a number"],
    "-m algo=grpo,grop": ["algo=grop", "Did you mean 'grpo'"],
    "-m beta=interval(0,1)": ["hydra.sweeper.n_trials", "hydra.sweeper.n_trials=20"],
    "--config-dir own sweeps=wrong": ["betta", "Did you mean 'beta'"],
    "beta=range(1,3)": ["beta=range(1,3)", "-m"],
    # verbs
    "evaluate": ["usage: python -m grpo_exp evaluate"],
    "evaluate beta=3": ["usage: python -m grpo_exp evaluate"],
    "evaluate nowhere": ["nowhere: no such folder", "RUN@STEP"],
    "evaluate tiny_rando": ["Did you mean 'tiny_random'"],
    "evaluate empty": ["empty", "run.json"],
    "evaluate empty@3": ["only a run has several checkpoints"],
    "evaluate tiny_random beta=3": ["beta=3", "data, reward"],
    "evaluate tiny_random eval.sample=3": ["eval.sample", "Did you mean 'eval.samples'"],
    "evaluate tiny_random -m eval.samples=3": ["-m", "--config-dir"],
    "help nothing": ["help nothing", "Valid: algo"],
    "help algo=grop": ["Did you mean 'grpo'"],
    "help algo reward": ["one word"],
}

REPEATED = {
    "reward=maths": ["reward=maths", "Did you mean 'math'"],
    "model=tiny_radom": ["Did you mean 'tiny_random'"],
    "optimm.eps=1": ["optimm.eps", "Did you mean 'optim.eps'"],
    "+algo.foo=1": ["algo.foo: no such option", "Valid: name"],
    "algo=/etc/passwd": ["'/etc/passwd'"],
    "algo=null": ["algo=null", "Valid: cispo"],
    "name=''": ["name=''"],
    "beta=1e999": ["beta=inf", "a number at least 0"],
    "beta=[1,2]": ["beta=[1, 2]", "a number"],
    "beta={a:1}": ["beta={'a': 1}", "a number"],
    "G=2.5": ["G=2.5", "a whole number at least 1"],
    "lr=0": ["lr=0", "greater than 0"],
    "lr=1e30": ["lr=1e+30", "greater than 0"],
    "steps=0": ["steps=0", "at least 1"],
    "steps=true": ["steps=true", "a whole number"],
    "steps=1e400": ["steps=inf", "a whole number"],
    f"steps={10**40}": ["steps=", "a whole number"],
    "temperature=0": ["temperature=0", "greater than 0"],
    "max_new_tokens=0": ["max_new_tokens=0", "at least 1"],
    "algo.kl=3": ["algo.kl=3"],
    "algo.mask_truncated=7": ["algo.mask_truncated=7", "true or false"],
    "algo.mask_truncated=perhaps": ["algo.mask_truncated='perhaps'", "true or false"],
    "algo=sft G=2 beta=abc": ["beta='abc'"],
    "model.lora_targets=3 model.adapter=lora": ["model.lora_targets=3"],
    "model.dtype=float16": ["model.dtype='float16'", "bfloat16"],
    "reward.parts.math.weight=nan": ["reward.parts.math.weight=nan", "a number"],
    "rollout.top_p=0": ["rollout.top_p=0", "greater than 0"],
    "rollout.stop=3": ["rollout.stop=3", "a list of texts"],
    "hardware.device=gpu": ["hardware.device='gpu'", "auto, cpu, cuda"],
    "eval.temperature=-1": ["eval.temperature=-1", "at least 0"],
    "eval.samples=0": ["eval.samples=0", "at least 1"],
    "track.wandb=onlin": ["Did you mean 'online'"],
    "objective.direction=up": ["objective.direction='up'", "maximize, minimize"],
    "checkpoint.keep_last=0": ["checkpoint.keep_last=0", "at least 1"],
    "optim.schedule=linea": ["Did you mean 'linear'"],
}
"""The same paths with other names and values, `schema.make` those of numbers: tests/test_config.py has it alone."""


@pytest.mark.parametrize("command", [*WRONG, *(pytest.param(command, marks=pytest.mark.slow) for command in REPEATED)])
def test_wrong_input(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)
    if "=" in words[0] or words[0].startswith(("-", "+", "~")):
        words += [] if "model=" in command or words[0] == "~model" else ["model=tiny_random"]
    before = sorted(Path().rglob("*"))
    answer = call(capsys, *words)
    assert answer.code == 2, answer.err
    assert re.fullmatch(r"grpo_exp: [^\n]+\n", answer.err)
    assert answer.out == ""
    for expected in (WRONG | REPEATED)[command]:
        assert expected in answer.err
    assert len(answer.err) < 700
    left = [p for p in sorted(Path().rglob("*")) if "__pycache__" not in p.parts and p not in before]
    assert left == [], "nothing is left behind"


def test_wrong_names_are_answered_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from grpo_exp.__main__ import main\n"
        "def heavy(): return [m for m in ('torch', 'transformers', 'peft', 'wandb', 'optuna') if m in sys.modules]\n"
        "for words in (['betta=0.1'], ['algo=grop'], ['beta=abc'], ['steps=0'], ['frob'], ['G=2,4'], ['evaluate', 'no']):\n"
        "    try: main(words)\n"
        "    except SystemExit as end: assert end.code == 2, words\n"
        "    assert not heavy(), (words, heavy())\n"
        "for words in (['--help'], ['help'], ['help', 'sweeps'], ['--version']):\n"
        "    try: main(words)\n"
        "    except SystemExit as end: assert end.code == 0, words\n"
        "    assert not heavy(), (words, heavy())\n"
    )
    answer = finish(start(tmp_path, code=code))
    assert answer.code == 0, answer.err
    assert answer.err.count("grpo_exp: ") == 7


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *SMALL, "hardware=gpu")
    assert answer.code == 2
    assert "hardware.device=cuda: torch sees no GPU here" in answer.err
    assert not Path("outputs").exists()


# ---- help


def test_help_lists_everything_and_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "--help")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 120
    for verb in VERBS:
        assert re.search(rf"^ +{verb} ", answer.out, re.MULTILINE)
    for group in group_folders():
        for option in options(group):
            line = next(line for line in lines if line.split()[:1] == [group])
            assert re.search(rf"[ \[]{re.escape(option)}(\]| |$)", line + " ".join(lines)), (group, option)
    for expected in ("[grpo]", "beta=0.04", "weight of the KL term", "outputs/runs", "--config-dir", "help algo", "Exit codes"):
        assert expected in answer.out


@pytest.mark.parametrize("words", [["help"], ["-h"], ["beta=1", "--help"]])
def test_help_by_other_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, *words) == call(capsys, "--help")


@pytest.mark.parametrize("group", group_folders())
def test_help_of_every_group(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "help", group)
    assert answer.code == 0, answer.err
    for option in options(group):
        assert re.search(rf"^  {option} +\S", answer.out, re.MULTILINE), (group, option)


@pytest.mark.slow
@pytest.mark.parametrize("group", group_folders())
def test_help_of_every_option_of_a_group(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option in options(group):
        answer = call(capsys, "help", f"{group}={option}")
        assert answer.code == 0, answer.err
        assert len(answer.out.splitlines()) >= 2


def test_help_of_every_section_and_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for section in ("sweep", "experience", "optim", "checkpoint", "objective"):
        assert f"  {section}." in call(capsys, "help", section).out
    for verb in VERBS:
        assert len(call(capsys, "help", verb).out) > 20


def test_help_shows_value_meaning_and_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    out = " ".join(call(capsys, "help", "algo=grpo").out.split())
    assert "algo.clip_low=0.2 the ratio is clipped below at 1 - clip_low [a number from 0 to 1]" in out
    assert "algo.kl.place=loss" in out
    assert "[loss, reward, none]" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version").out == f"grpo_exp {__version__}\n"


def test_hydra_shows_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "--cfg", "job", "beta=0.5", "model=tiny_random")
    assert answer.code == 0
    assert "\nbeta: 0.5\n" in f"\n{answer.out}"
    assert not Path("outputs").exists()


# ---- a user's own options


def test_own_options_beside_the_built_in_ones(capsys: pytest.CaptureFixture[str]) -> None:
    own = {
        "mine/reward/shout.yaml": "defaults:\n  - part@parts.custom: custom\n  - _self_\nname: shout\npath: rewards.py:score\n",
        "mine/algo/wide.yaml": "# @package _global_\ndefaults:\n  - grpo\n  - _self_\nalgo:\n  name: wide\n  clip_high: 0.28\n",
        "mine/sweeps/two.yaml": "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper: {params: {beta: '0.01,0.02'}}\n",
    }
    for path, text in own.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    words = ["--config-dir", "mine", "reward=shout", "algo=wide", "sweeps=two", *SMALL, "steps=1", "eval.start=false"]
    answer = call(capsys, *words)
    assert answer.code == 0, answer.err
    cards = [json.loads(Path(f"outputs/sweeps/two/{number}/run.json").read_text()) for number in (0, 1)]
    assert [card["beta"] for card in cards] == [0.01, 0.02]
    assert {card["algo"] for card in cards} == {"wide"}
    assert {card["reward"]["name"] for card in cards} == {"shout"}
    assert "1.28" in cards[0]["formula"]
    assert "wide" in call(capsys, "--config-dir", "mine", "algo=wid").err


def test_flags_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine/algo").mkdir(parents=True)
    Path("mine/algo/wide.yaml").write_text("# @package _global_\ndefaults:\n  - grpo\n  - _self_\nalgo:\n  name: wide\n")
    answer = call(capsys, "algo=wide", "--cfg", "job", "beta=0.5", "--config-dir", "mine", "model=tiny_random")
    assert answer.code == 0, answer.err
    assert "name: wide" in answer.out


def test_the_root_is_found_from_anywhere() -> None:
    from grpo_exp.app import ROOT as found

    assert found == ROOT
    assert (found / "conf/config.yaml").is_file()
