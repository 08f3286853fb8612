"""The verbs of the command line: one file each, with `main(words) -> exit code`; its docstring begins with a line of help."""

from __future__ import annotations

import pkgutil

VERBS = tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))
