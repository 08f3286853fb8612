"""The errors a person can meet, and the exit code of each.

    GrpoError
    ├── InputError          2   what the user gave is wrong: an option, a file, a path, a reward function
    │   ├── ConfigError         an option's name or value
    │   ├── DataError           a data file, a row, a field
    │   └── ModelError          a model, tokenizer or adapter that cannot be loaded or does not fit
    ├── RunError            3   the run failed although its input was accepted
    │   ├── RewardError         a reward raised, or returned something that is not a number
    │   ├── NumericsError       losses, gradients or weights that are not finite
    │   ├── OutOfMemoryError    memory that is too small for a single row
    │   ├── CheckpointError     a checkpoint that cannot be written or read
    │   └── RankError           one of the run's processes has ended or does not answer
    ├── Pruned              0   a sweep ended the run early because others do better; that is an answer, not a failure
    ├── Unhealthy           3   a health check ended the run; a checkpoint was written first
    │   └── RolledBack          the run goes on from an earlier checkpoint with other options; none of it reaches a person
    └── Stopped   128 + signal  a signal asked the run to stop; a checkpoint was written first

Every message says what is wrong, quotes the value, and names the way out. `InputError` is raised before a model loads.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

LONGEST = 900
UNHEALTHY = "pruned by a health check"
"""What the reason of a trial begins with that was not ended by the pruner."""


class GrpoError(Exception):
    """Base of all errors raised on purpose; shown to the user as one message, without a traceback.

    The message is one line, whatever it quotes, and loses its middle where it is of more than LONGEST characters.
    """

    exit_code = 3

    def __init__(self, message: str) -> None:
        message = " ".join(line.strip() for line in message.splitlines()).strip()
        super().__init__(message if len(message) <= LONGEST else f"{message[: LONGEST - 300]} … {message[-297:]}")


class InputError(GrpoError):
    """The user's input is wrong."""

    exit_code = 2


class ConfigError(InputError):
    """An option's name or value is wrong."""


class DataError(InputError):
    """A data file, a row of it or a field is wrong."""


class ModelError(InputError):
    """A model, tokenizer or adapter cannot be loaded or does not fit the run."""


class RunError(GrpoError):
    """The run failed although its input was accepted."""


class RewardError(RunError):
    """A reward raised, or returned something that is not a finite number or None."""


class NumericsError(RunError):
    """Losses, gradients or weights are not finite."""


class OutOfMemoryError(RunError):
    """A single row at a time is too much for the memory."""


class CheckpointError(RunError):
    """A checkpoint cannot be written or read."""


class RankError(RunError):
    """One of the processes that run an experiment together has ended, or does not answer."""


class Pruned(GrpoError):
    """A sweep ended the run early; `objective` is what it had come to."""

    exit_code = 0

    def __init__(self, objective: float, message: str) -> None:
        super().__init__(message)
        self.objective = objective

    def __reduce__(self) -> tuple[type[Pruned], tuple[float, str]]:
        """How it is made anew in another process: launchers hand errors over."""
        return type(self), (self.objective, str(self))


class Unhealthy(GrpoError):
    """A health check ended the run; raised after the checkpoint was written."""


class RolledBack(Unhealthy):
    """A health check sends the run back, to before the trouble began. `finding` is its line of health.jsonl."""

    def __init__(self, message: str, finding: dict[str, Any]) -> None:
        super().__init__(message)
        self.finding = finding


class Stopped(GrpoError):
    """A signal asked the run to stop; raised after the checkpoint was written."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum

    def __reduce__(self) -> tuple[type[Stopped], tuple[int, str]]:
        """As above."""
        return type(self), (self.exit_code - 128, str(self))


def nearest(name: str, valid: Iterable[str]) -> str:
    """`" Did you mean 'beta'?"` for the closest valid name, or an empty string where none is close."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""
