"""Whether W&B can be used from here: switches, logins and reachability, without importing wandb or asking anybody."""

from __future__ import annotations

import configparser
import netrc
import socket
import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from grpo_exp.errors import ConfigError
from grpo_exp.paths import expanded

DEFAULT_URL = "https://api.wandb.ai"


def choose_mode(wanted: str, environ: Mapping[str, str]) -> str:
    """online, offline or off, decided without network and without importing wandb.

    `auto` follows W&B's own switches (WANDB_MODE, `wandb offline`); without them it is online where a login exists.

    Raises:
        ConfigError: online was asked for and there is no login.
    """
    if wanted == "auto":
        switch = environ.get("WANDB_MODE") or settings_file(environ).get("mode") or ""
        known = {"online": "online", "run": "online", "offline": "offline", "dryrun": "offline", "disabled": "off"}
        if (mode := known.get(switch, "online")) != "online":
            return mode
        return "online" if has_login(environ) else "offline"
    if wanted == "online" and not has_login(environ):
        raise ConfigError(
            f"track.wandb=online: no W&B login for {base_url(environ)} was found. Run `wandb login` or set WANDB_API_KEY; "
            "track.wandb=offline records the run for a later `wandb sync`, track.wandb=auto takes whichever is possible"
        )
    return wanted


def has_login(environ: Mapping[str, str]) -> bool:
    """Whether a W&B key or token stands in the environment, in W&B's settings or in the netrc file."""
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE") or settings_file(environ).get("api_key"):
        return True
    paths = [expanded(environ["NETRC"])] if environ.get("NETRC") else [Path.home() / ".netrc", Path.home() / "_netrc"]
    for path in paths:
        try:
            entry = netrc.netrc(str(path)).authenticators(urlsplit(base_url(environ)).netloc)
        except (OSError, netrc.NetrcParseError):
            continue
        if entry and entry[2]:
            return True
    return False


def base_url(environ: Mapping[str, str]) -> str:
    """The W&B server: WANDB_BASE_URL, W&B's settings file, or the public one."""
    return (environ.get("WANDB_BASE_URL") or settings_file(environ).get("base_url") or DEFAULT_URL).rstrip("/")


def settings_file(environ: Mapping[str, str]) -> dict[str, str]:
    """What W&B's own settings files say, the one in the current folder over the user's."""
    home = Path(environ.get("WANDB_CONFIG_DIR") or Path.home() / ".config" / "wandb")
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    found: dict[str, str] = {}
    for path in (home / "settings", Path("wandb") / "settings"):
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, configparser.Error, UnicodeDecodeError):
            continue  # W&B takes a broken file for an empty one
    if parser.has_section("default"):
        found.update(parser.items("default"))
    return found


def reachable(url: str, seconds: float) -> bool:
    """Whether a TCP connection to the server opens in time. Behind a proxy only the client can tell: True.

    The client itself tries again until its time is up; a refused connection need not cost that.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return True
    connected = threading.Event()

    def connect() -> None:
        try:
            with socket.create_connection((host, port), timeout=seconds):
                connected.set()
        except OSError:
            return

    thread = threading.Thread(target=connect, daemon=True)  # a thread, since looking up a name has no time limit
    thread.start()
    thread.join(seconds)
    return connected.is_set()
