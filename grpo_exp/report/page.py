"""report.html: one file with everything in it, which a browser opens without a network."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from grpo_exp.report import content, plots
from grpo_exp.report.compare import Comparison
from grpo_exp.track.files import plain, write_whole

SCRIPTS = ("core.js", "curves.js", "charts.js", "frontier.js", "tables.js", "page.js")
"""In the order in which they run."""


def write(comparison: Comparison, folder: Path) -> Path:
    """Write report.html into `folder`, and pictures of its main parts into `folder/report/`.

    Returns:
        The page.

    Raises:
        RunError: a file cannot be written.
    """
    data = content.content(comparison)
    page = folder / "report.html"
    write_whole(page, html(data))
    plots.draw(data, folder / "report")
    return page


def html(data: dict[str, Any]) -> str:
    """The page that shows `data`. Nothing in it is read as markup or code, and its security policy forbids all requests."""
    from plotly.offline import get_plotlyjs

    parts = {
        "title": _text(str(data["title"])),
        "css": _asset("page.css"),
        "data": as_json(data),
        "plotly": get_plotlyjs(),
        "js": "\n".join(_asset(name) for name in SCRIPTS),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))  # one pass: parts are not searched


def as_json(data: Any) -> str:
    """JSON that may stand in a script element: no `<`, so that neither `</script>` nor `<!--` can end or change it."""
    text = json.dumps(plain(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _asset(name: str) -> str:
    return (files("grpo_exp") / "assets" / "report" / name).read_text(encoding="utf-8")
