"""go on with a run that was stopped or killed: resume RUN [steps=200], also written resume=RUN

    python -m grpo_exp resume outputs/runs/RUN                from its newest whole checkpoint, with its own options
    python -m grpo_exp resume outputs/runs/RUN steps=200      and further: a finished run as well

On the same machine, threads and versions every number is what it would have been without the interruption, bit for bit; where
they differ it says so and goes on. Besides steps and experience.max_tokens, options of track and checkpoint may be changed.
The same command as before, with the same hydra.run.dir=, goes on as well, and so does a sweep.
"""

from __future__ import annotations

from pathlib import Path

from grpo_exp.earlier import LONGER
from grpo_exp.errors import InputError, nearest

USAGE = "usage: python -m grpo_exp resume RUN [steps=N ...]; python -m grpo_exp help resume says more"
SECTIONS = ("track", "checkpoint")
MAY_CHANGE = (*LONGER, *SECTIONS)


def main(words: list[str]) -> int:
    """Train on.

    Raises:
        InputError: no run in that folder, or an option that may not change.
        RunError: the run failed.
        Stopped: on a signal, after a checkpoint.
    """
    from grpo_exp import config as configuration
    from grpo_exp.command_line import parse
    from grpo_exp.run import go_on
    from grpo_exp.subject import saved_options, with_changes

    if not words or words[0].startswith("-") or "=" in words[0]:
        raise InputError(USAGE)
    folder = Path(words[0])
    if not (folder / "run.json").is_file():
        raise InputError(f"{words[0]}: no run there (no run.json). {USAGE}")
    for word in words[1:]:
        key = str(parse(word).key_or_group)
        if key not in MAY_CHANGE and key.partition(".")[0] not in SECTIONS:
            raise InputError(f"{word}: resume takes {', '.join(MAY_CHANGE)} alone.{nearest(key, MAY_CHANGE)}")
    composed = with_changes(saved_options(folder), words[1:])
    go_on(configuration.build(composed), composed, folder.absolute(), words[1:])
    return 0
