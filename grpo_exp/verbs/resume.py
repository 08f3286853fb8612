"""go on with a run that was stopped or killed: resume RUN[@STEP] [steps=200], or resume=RUN

    python -m grpo_exp resume outputs/runs/RUN                from its newest whole checkpoint, with its own options
    python -m grpo_exp resume outputs/runs/RUN steps=200      and further: a finished run as well
    python -m grpo_exp resume outputs/runs/RUN@50             back to the checkpoint of step 50, in a new branch; @best as well
    python -m grpo_exp resume outputs/runs/RUN@50 force=true lr=1e-5      and with other options than it was started with

On the same machine, threads and versions every number is what it would have been without the interruption, bit for bit; where
they differ it says so and goes on. Besides steps and experience.max_tokens, options of hardware, track and checkpoint may be
changed; all others need force=true, which begins a new branch with the weights and the optimizer as they are.

A new branch takes the run's folder, and everything that was in it is kept in earlier-N/ there, a run's folder like any other.
The same command as before, with the same hydra.run.dir=, goes on with the newest branch as well, and so does a sweep.
"""

from __future__ import annotations

from pathlib import Path

from grpo_exp.earlier import LONGER
from grpo_exp.errors import InputError, nearest
from grpo_exp.paths import expanded

USAGE = "usage: python -m grpo_exp resume RUN[@STEP] [steps=N ...]; python -m grpo_exp help resume says more"
SECTIONS = ("hardware", "track", "checkpoint", "health")
MAY_CHANGE = (*LONGER, *SECTIONS)
FORCE = ("force=true", "force=false")


def main(words: list[str]) -> int:
    """Train on.

    Raises:
        InputError: no run in that folder, no checkpoint of that step, or an option that may not change.
        RunError: the run failed.
        Stopped: on a signal, after a checkpoint.
    """
    from grpo_exp import config as configuration
    from grpo_exp.command_line import parse
    from grpo_exp.run import go_on
    from grpo_exp.subject import saved_options, with_changes

    if not words or words[0].startswith("-"):
        raise InputError(USAGE)
    folder, back_to = _place(words[0])
    saved, force = saved_options(folder), FORCE[0] in words
    changes = [word for word in words[1:] if word not in FORCE]
    for word in changes:
        key = str(parse(word).key_or_group)
        if key not in MAY_CHANGE and key.partition(".")[0] not in (saved if force else SECTIONS):
            way = "" if force else f" {FORCE[0]} changes others, in a new branch."
            known = [*saved, "force"] if force else [*MAY_CHANGE, "force"]
            takes = "no such option" if force else f"resume takes {', '.join(MAY_CHANGE)} alone"
            raise InputError(f"{word}: {takes}.{way}{nearest(key, known)}")
    composed = with_changes(saved, changes)
    go_on(configuration.build(composed), composed, folder, changes, back_to, force)
    return 0


def _place(word: str) -> tuple[Path, int | None]:
    """The run's folder, and the step that RUN@STEP names.

    Raises:
        InputError: there is no such run, or no checkpoint of that step.
    """
    from grpo_exp.subject import find

    path, at, step = word.rpartition("@") if "@" in word and not expanded(word).exists() else (word, "", "")
    folder = expanded(path)
    if not (folder / "run.json").is_file():
        raise InputError(f"{word}: no run there (no run.json). {USAGE}")
    if at and not step:
        raise InputError(f"{word}: a step is missing after the @. {USAGE}")
    checkpoint = find(word).checkpoint if at else None
    return folder.absolute(), int(checkpoint.name.removeprefix("step-")) if checkpoint else None
