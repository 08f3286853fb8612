"""Where a run's numbers go: files (the truth), a picture, W&B and the console. `base` is the interface they share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO

from grpo_exp.track.base import Tracker, Trackers, TrackOptions


def build(options: TrackOptions, folder: Path, *, stream: TextIO | None = None, width: int | None = None) -> Trackers:
    """All trackers of a run, in this order: what is written first is what matters most, what is shown last names the rest.

    Args:
        options: the `track` group.
        folder: the run's folder; made where it is missing.
        stream, width: where the console prints and how wide; None: standard output, the terminal's width.

    Raises:
        ConfigError: track.wandb=online without a login.
        RunError: the folder cannot be written.
    """
    from grpo_exp.track.console import ConsoleTracker
    from grpo_exp.track.files import FileTracker, make_folder

    make_folder(folder)
    trackers = Trackers([FileTracker(folder)])

    def warn(text: str) -> None:
        trackers.note(text, "warn")

    if options.picture:
        from grpo_exp.track.picture import PictureTracker

        trackers.trackers.append(PictureTracker(folder, warn))
    if options.wandb != "off":
        from grpo_exp.track.login import choose_mode
        from grpo_exp.track.wandb import WandbTracker

        if choose_mode(options.wandb, os.environ) != "off":
            trackers.trackers.append(WandbTracker(options, folder, warn))
    trackers.trackers.append(ConsoleTracker(options, stream=stream, width=width))
    return trackers


__all__ = ["TrackOptions", "Tracker", "Trackers", "build"]
