"""The verbs of the command line: one file each, with `main(words) -> exit code`. The first line of its docstring is its help."""

from __future__ import annotations

import pkgutil

VERBS = tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))
