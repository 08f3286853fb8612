"""One thread a process: models this small gain nothing from more, and several processes of tests share the cores."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_configure() -> None:
    """A shell has what it starts in the background ignore one of these, nohup the other; a run that is tested must not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def wandb_forgets() -> Iterator[None]:
    """The client keeps the environment that it first saw for the whole process; the next test may have another one."""
    yield
    if "wandb" in sys.modules:
        import wandb

        wandb.teardown()
