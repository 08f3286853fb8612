"""compare runs and sweeps: report FOLDER [FOLDER ...] [--by KEY] [--csv FILE] [--json FILE]

    python -m grpo_exp report outputs/sweeps/beta_grid      a sweep, finished or still going
    python -m grpo_exp report outputs/runs                  every run in a folder; several folders may be given
    python -m grpo_exp report RUN                           one run: what training changed, and how sure that is
    python -m grpo_exp report FOLDER --by beta              group by one option (--by beta,G by two), not by all that differ
    python -m grpo_exp report FOLDER --csv runs.csv --json answer.json     one line a run; everything. - is standard output
    python -m grpo_exp report FOLDER --no-html              no report.html

The screen shows what was varied, the settings from the best to the worst with 95 % intervals, which differences are real,
and the best setting as a command line. report.html, with curves and pictures, goes into the folder (of several: the one that
holds them all). `≈` marks a setting that cannot be told apart from the best. Failed and damaged runs are listed with reasons.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo_exp.errors import InputError, nearest
from grpo_exp.flags import Flags, write
from grpo_exp.report.runs import Run

USAGE = "usage: python -m grpo_exp report FOLDER [FOLDER ...] [--by KEY] [--csv FILE] [--json FILE] [--no-html]"


def main(words: list[str]) -> int:
    """Read, compare, show and write.

    Raises:
        InputError: a folder is missing or holds no run, no such key, a word that is not understood.
        RunError: a file cannot be written.
    """
    from grpo_exp.report.compare import compare
    from grpo_exp.report.export import as_csv, as_json
    from grpo_exp.report.runs import find
    from grpo_exp.report.terminal import show

    asked = _parser().parse_intermixed_args(words)
    if "-" in (asked.csv,) and "-" in (asked.json,):
        raise InputError("--csv - and --json -: only one of them can go to standard output")
    runs = find(asked.folders)
    comparison = compare(runs, _keys(asked.by, runs))
    piped = "-" in (asked.csv, asked.json)
    if not piped:
        show(comparison, sys.stdout)
    for target, text in ((asked.csv, as_csv), (asked.json, as_json)):
        if target is not None:
            write(target, text(comparison))
            if target != "-":
                print(f"written to {target}")
    if asked.html and not piped:
        from grpo_exp.report import page

        print(f"\nwritten to {page.write(comparison, _place(asked.folders))}")
    return 0


def _parser() -> Flags:
    parser = Flags("report", USAGE)
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--by", action="append", metavar="KEY")
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--no-html", dest="html", action="store_false")
    return parser


def _keys(by: Sequence[str] | None, runs: Sequence[Run]) -> list[str] | None:
    """The keys of --by.

    Raises:
        InputError: no run has such a key.
    """
    if by is None:
        return None
    keys = [key.strip() for word in by for key in word.split(",") if key.strip()]
    known = {key for run in runs for key in run.config}
    for key in keys:
        if key not in known:
            raise InputError(f"--by {key}: no option of these runs has that name, such as beta or algo.{nearest(key, known)}")
    return keys


def _place(folders: Sequence[str]) -> Path:
    """Where the page goes: the folder, or the one that holds all."""
    paths = [path if path.is_dir() else path.parent for path in map(Path, folders)]
    return paths[0] if len(paths) == 1 else Path(os.path.commonpath([path.resolve() for path in paths]))
