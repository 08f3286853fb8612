"""The runs of bench/health.py: each in a process of its own, begun from one that has its imports behind it."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

from health_cases import COMMON, Case, files

IMPORTED = ["grpo_exp.app", "grpo_exp.run", "grpo_exp.train", "peft", "transformers.models.llama.modeling_llama"]


def run_all(cases: list[Case], out: Path) -> None:
    """Run what is not finished, two at a time; a run that begins with another's export waits for it."""
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in files().items():
        (out / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # two side by side: threads that wait must not spin
    multiprocessing.set_forkserver_preload(IMPORTED)
    cases = [case for case in mixed(cases) if not ended(out / case.name)]
    first = {case.after for case in cases}
    order = sorted(cases, key=lambda case: (case.name not in first, case.after is not None))
    with ThreadPoolExecutor(2) as pool:
        for case in order:
            if case.after is None:
                pool.submit(train, case, out)
    with ThreadPoolExecutor(2) as pool:
        for case in order:
            if case.after is not None:
                pool.submit(train, case, out)


def mixed(cases: list[Case]) -> list[Case]:
    """Faults and healthy runs in turns, so that a bench that is stopped early has some of both."""
    faults, healthy = ([case for case in cases if bool(case.finds) == wrong] for wrong in (True, False))
    return [case for pair in zip_longest(faults, healthy) for case in pair if case]


def train(case: Case, out: Path) -> None:
    """Run one to its end."""
    folder = out / case.name
    words = [*COMMON, f"steps={case.steps}", *case.words.format(out=out).split(), f"hydra.run.dir={folder}"]
    process = multiprocessing.get_context("forkserver").Process(target=child, args=(words, case.patch, f"{folder}.log"))
    process.start()
    process.join()
    print(f"{datetime.datetime.now():%H:%M:%S} {case.name}: exit code {process.exitcode}", file=sys.stderr, flush=True)


def child(words: list[str], patch: str | None, log: str) -> None:
    """What `python -m grpo_exp` does with these words, with one thing broken first."""
    import torch
    from health_faults import PATCHES

    from grpo_exp.__main__ import main

    with open(log, "w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    torch.set_num_threads(1)
    if patch:
        PATCHES[patch]()
    main(words)


def ended(folder: Path) -> bool:
    """Whether a run is over, by itself or by an error of its own such as a loss that is not finite."""
    card = folder / "run.json"
    return card.exists() and json.loads(card.read_text())["status"] in ("finished", "failed")
