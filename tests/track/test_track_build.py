"""The track group: its YAML, what `build` makes of it, the fan-out, and secrets."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from grpo_exp.errors import ConfigError, RunError
from grpo_exp.track import Tracker, Trackers, TrackOptions, build
from grpo_exp.track.redact import redact

CONF = Path(__file__).parents[2] / "conf"
GROUP = sorted(path.stem for path in (CONF / "track").glob("*.yaml"))


def composed(*overrides: str) -> TrackOptions:
    """The group as Hydra and OmegaConf give it to the program."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(overrides=[*overrides] if overrides else ["+track=local"])
    merged = OmegaConf.merge(OmegaConf.structured(TrackOptions), config.track)
    options = OmegaConf.to_object(merged)
    assert isinstance(options, TrackOptions)
    return options


@pytest.mark.parametrize("name", GROUP)
def test_every_choice_of_the_group_gives_every_option_within_its_choices(name: str) -> None:
    options = composed(f"+track={name}")
    for field in dataclasses.fields(options):
        value, choices, low = getattr(options, field.name), field.metadata["choices"], field.metadata["low"]
        assert not choices or value in choices, field.name
        assert low is None or value >= low, field.name


def test_every_key_has_the_comment_of_its_meaning_above_it() -> None:
    lines = (CONF / "track" / "local.yaml").read_text().splitlines()
    for field in dataclasses.fields(TrackOptions):
        (at,) = [i for i, line in enumerate(lines) if line.startswith(f"{field.name}:")]
        assert lines[at - 1] == f"# {field.metadata['meaning']}"


def test_wandb_can_be_overridden_alone() -> None:
    assert composed("+track=local").wandb == "auto"
    assert composed("+track=local", "track.wandb=offline").wandb == "offline"
    assert composed("+track=local", "track.wandb=off").wandb == "off"
    quiet = composed("+track=quiet")
    assert (quiet.wandb, quiet.console, quiet.picture, quiet.print_every) == ("off", "quiet", False, 10)


def test_build_makes_what_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kinds(**changes: object) -> list[str]:
        options = dataclasses.replace(composed("+track=local"), **changes)  # type: ignore[arg-type]
        return [type(t).__name__ for t in build(options, tmp_path / "run", stream=io.StringIO()).trackers]

    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert kinds() == ["FileTracker", "PictureTracker", "WandbTracker", "ConsoleTracker"]
    assert kinds(wandb="off", picture=False) == ["FileTracker", "ConsoleTracker"]
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert kinds(picture=False) == ["FileTracker", "ConsoleTracker"]


def test_online_without_login_is_refused_before_the_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=r"track\.wandb=online"):
        build(dataclasses.replace(composed("+track=quiet"), wandb="online"), tmp_path / "run")


def test_finish_reaches_all_trackers_also_where_one_fails() -> None:
    class Full(Tracker):
        def finish(self, card: dict[str, object]) -> None:
            raise RunError("no space")

    class Last(Tracker):
        finished = False

        def finish(self, card: dict[str, object]) -> None:
            self.finished = True

    last = Last()
    with pytest.raises(RunError, match="no space"):
        Trackers([Full(), last]).finish({"status": "finished"})
    assert last.finished


def test_secrets_are_taken_out_by_key_and_by_value() -> None:
    config = {
        "reward": {"api_key": "abc", "api_key_env": "OPENAI_API_KEY", "headers": ["Bearer s3cret-value", "ok"]},
        "model": {"hf_token": "t", "eos_token": "</s>", "token": "x", "secret": {"a": 1}, "password": None},
        "max_new_tokens": 32,
        "tokens": 5,
        "tokenizer": "gpt2",
        "pin": "1",
        "step": "10",
    }
    told = redact(config, ["s3cret-value", "1", ""])
    assert told == {
        "reward": {"api_key": "<redacted>", "api_key_env": "OPENAI_API_KEY", "headers": ["<redacted>", "ok"]},
        "model": {
            "hf_token": "<redacted>",
            "eos_token": "</s>",
            "token": "<redacted>",
            "secret": "<redacted>",
            "password": None,
        },
        "max_new_tokens": 32,
        "tokens": 5,
        "tokenizer": "gpt2",
        "pin": "<redacted>",
        "step": "10",
    }
    assert config["reward"]["api_key"] == "abc"  # type: ignore[index]
    assert yaml.safe_dump(told)
