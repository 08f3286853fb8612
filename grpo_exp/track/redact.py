"""Take secrets out of a configuration before it is written to a file or sent to W&B."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

REDACTED = "<redacted>"

# `token` alone names a secret only as a whole key or after a word that says so: eos_token, max_new_tokens and tokens do not.
_SECRET_KEY = re.compile(
    r"(^|.*[_\-.])(api[_-]?keys?|private[_-]?key|secret([_-]?(key|token))?|pass(word|wd|phrase)|credentials?)$"
    r"|^token$|(^|.*[_\-.])(auth|access|api|bearer|hf|hub|wandb|github|refresh|identity)[_-]?token$",
    re.IGNORECASE,
)
_WITHIN = 6  # a secret of fewer characters is replaced only where it is the whole string: "1" is part of too much


def redact(container: Any, secret_values: Collection[str] = ()) -> Any:
    """A copy of a configuration without its secrets.

    A value is replaced by `<redacted>` if its key names a secret (api_key, password, hf_token, …) or if it is a string
    that equals or contains one of `secret_values`, such as what came from `${oc.env:…}`. None and empty strings stay.
    """
    secrets = {str(value) for value in secret_values if str(value)}
    return _redact(container, secrets)


def _redact(value: Any, secrets: set[str]) -> Any:
    if isinstance(value, dict):
        return {k: REDACTED if _hides(k, v) else _redact(v, secrets) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redact(v, secrets) for v in value]
    if isinstance(value, str) and any(value == s or (len(s) >= _WITHIN and s in value) for s in secrets):
        return REDACTED
    return value


def _hides(key: Any, value: Any) -> bool:
    return isinstance(key, str) and value not in (None, "", [], {}) and _SECRET_KEY.match(key) is not None
