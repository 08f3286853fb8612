"""Take secrets out of what is written to a file, sent to W&B or shown on the screen.

A secret is what came from the environment (`${oc.env:NAME}`, wherever it was used), what stands under a key that names one
(api_key, password, hf_token, …), and the password in a URL.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

REDACTED = "<redacted>"
OPEN = {"HOME", "USER", "LOGNAME", "HOSTNAME", "PWD", "TMPDIR", "SHELL", "LANG"}
"""Variables whose values are no secrets: a path below the home folder has to stay a path."""

# `token` alone names a secret only as a whole key or after a word that says so: eos_token, max_new_tokens and tokens do not.
_SECRET_KEY = re.compile(
    r"(^|.*[_\-.])(api[_-]?keys?|private[_-]?key|secret([_-]?(key|token))?|pass(word|wd|phrase)|credentials?)$"
    r"|^token$|(^|.*[_\-.])(auth|access|api|bearer|hf|hub|wandb|github|refresh|identity)[_-]?token$",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(://[^\s/:@]{0,200}):[^\s/@]{1,200}@")
_WITHIN = 6  # a secret of fewer characters is replaced only where it is the whole string: "1" is part of too much
_NUMBER = re.compile(r"[-+.\de]{1,7}", re.IGNORECASE)  # a seed, a job's number, a learning rate

_seen: set[str] = set()


def remember(name: str, value: object) -> None:
    """An environment variable was read by a configuration."""
    text = str(value)
    if text.strip() and name not in OPEN and not _NUMBER.fullmatch(text):
        _seen.add(text)


def redact(container: Any, secret_values: Collection[str] = ()) -> Any:
    """A copy of plain values without their secrets: those under keys that name one, those read from the environment and
    `secret_values`. A string that holds one becomes `<redacted>` as a whole. None and empty strings stay.
    """
    return _redact(container, _seen | {str(value) for value in secret_values if str(value)})


def hidden(row: Any) -> Any:
    """A row of metrics or samples without the secrets that were read from the environment; its keys tell nothing."""
    return _redact(row, _seen, keys=False) if _seen else row


def without_secrets(text: str) -> str:
    """A message or a line with `<redacted>` in place of each secret in it."""
    for secret in sorted((s for s in _seen if len(s) >= _WITHIN), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return _IN_URL.sub(rf"\1:{REDACTED}@", text)


def _redact(value: Any, secrets: Collection[str], keys: bool = True) -> Any:
    if isinstance(value, dict):
        return {k: REDACTED if keys and _hides(k, v) else _redact(v, secrets, keys) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redact(v, secrets, keys) for v in value]
    if not isinstance(value, str):
        return value
    if any(value == s or (len(s) >= _WITHIN and s in value) for s in secrets):
        return REDACTED
    return _IN_URL.sub(rf"\1:{REDACTED}@", value)


def _hides(key: Any, value: Any) -> bool:
    return isinstance(key, str) and value not in (None, "", [], {}) and _SECRET_KEY.match(key) is not None
