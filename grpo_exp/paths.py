"""Paths as people write them."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """The path with a home folder for `~` or `~name`; as it is where there is no such user, of whom pathlib makes an error."""
    return Path(os.path.expanduser(path))
