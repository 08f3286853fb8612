"""The command line: a first bare word is a verb, anything else is Hydra's.

python -m grpo_exp [GROUP=OPTION ...] [KEY=VALUE ...]       train
python -m grpo_exp -m KEY=VALUE,VALUE ...                   train once for each combination
python -m grpo_exp evaluate RUN_OR_MODEL [KEY=VALUE ...]    score a run, a checkpoint or a model
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence

from grpo_exp import __version__
from grpo_exp.errors import GrpoError, InputError, nearest
from grpo_exp.track.wording import said


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code: 0 done, 2 wrong input, 3 failed, 130, 138 or 143 stopped by a signal."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal of another encoding shows an escape instead of ending the program
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(words)
    except GrpoError as error:
        sys.stderr.write(f"grpo_exp: {said(error)}\n")
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # `... --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered would fail again at the exit
        code = 0
    except Exception:
        traceback.print_exc()
        sys.stderr.write("grpo_exp: an error of the program itself, not of its input; the lines above say where\n")
        code = 3
    sys.exit(code)


def _dispatch(words: list[str]) -> int:
    _check_text([*words, os.getcwd()])
    if words == ["--version"]:
        print(f"grpo_exp {__version__}")
        return 0
    if any(word in ("-h", "--help") for word in words):
        words = ["help", *(word for word in words[:1] if not word.startswith("-") and "=" not in word)]
    if words and (run := next((word for word in words if word.startswith("resume=")), None)):
        words = ["resume", run.removeprefix("resume="), *(word for word in words if word != run)]
    if words and not words[0].startswith(("-", "+", "~")) and "=" not in words[0]:
        return _verb(words[0], words[1:])
    from grpo_exp.app import launch

    return launch(words)


def _check_text(words: list[str]) -> None:
    """Words and the current folder are text, and not bytes that this locale has no letters for.

    Raises:
        InputError: one is not; files could neither name it nor be named so.
    """
    for word in words:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise InputError(
                f"{word!r}: no text in this locale ({sys.getfilesystemencoding()}). Set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
            )


def _verb(name: str, rest: list[str]) -> int:
    from grpo_exp.verbs import VERBS

    if name not in VERBS:
        raise InputError(
            f"'{name}' is neither a verb ({', '.join(VERBS)}) nor an override such as beta=0.05.{nearest(name, VERBS)} "
            "python -m grpo_exp --help shows both"
        )
    return int(importlib.import_module(f"grpo_exp.verbs.{name.replace('-', '_')}").main(rest))


if __name__ == "__main__":
    main()
