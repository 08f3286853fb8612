"""One thread a process: models this small gain nothing from more, and several processes of tests share the cores."""

from __future__ import annotations

import copy
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from omegaconf import OmegaConf

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_configure() -> None:
    """A shell has what it starts in the background ignore one of these, nohup the other; a run that is tested must not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    OmegaConf.load = staticmethod(once_for_each_text(OmegaConf.load))  # type: ignore[method-assign]


def pytest_collection_finish() -> None:
    """What the imports left, half a million objects, is not looked through again by every collection of garbage."""
    gc.collect()
    gc.freeze()


def once_for_each_text(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Reading the YAML files of conf/ takes half of the time of composing, and the tests compose some thousand times."""
    known: dict[str, Any] = {}

    def remembered(file: Any) -> Any:
        if not hasattr(file, "read"):
            return load(file)
        text = file.read()
        file.seek(0)
        if text not in known:
            known[text] = load(file)
        return copy.deepcopy(known[text])

    return remembered


@pytest.fixture(autouse=True)
def wandb_forgets() -> Iterator[None]:
    """The client keeps the environment that it first saw for the whole process; the next test may have another one."""
    yield
    if "wandb" in sys.modules:
        import wandb

        wandb.teardown()
