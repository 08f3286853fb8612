"""The verbs of the command line: one file each, with `main(words) -> exit code`."""

VERBS = ("evaluate",)
