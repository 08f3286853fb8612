"""What the verbs with flags share: flags whose errors are one message, and results that go to a file or to standard output."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from grpo_exp.errors import InputError, RunError


class Flags(argparse.ArgumentParser):
    """The flags of a verb; `shown` is its usage, for messages. A wrong flag raises InputError instead of ending the process."""

    def __init__(self, verb: str, shown: str = "", allow_abbrev: bool = False) -> None:
        super().__init__(prog=verb, add_help=False, allow_abbrev=allow_abbrev)
        self.shown = f". {shown}" if shown else ""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: {message}{self.shown}; python -m grpo_exp help {self.prog} says more")


def write(target: str, text: str) -> None:
    """Write to a file, or where that is `-` to standard output.

    Raises:
        RunError: the file cannot be written.
    """
    if target == "-":
        sys.stdout.write(text)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror or error})") from error
