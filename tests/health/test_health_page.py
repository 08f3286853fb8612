"""docs/health.md has a section and a picture for every detector that there is, and for no other."""

from __future__ import annotations

import re

import pytest
import yaml
from command import ROOT

PAGE = ROOT / "docs" / "health.md"
DETECTORS = sorted(yaml.safe_load((ROOT / "conf" / "health" / "standard.yaml").read_text(encoding="utf-8"))["detectors"])


def sections() -> dict[str, str]:
    """What stands under each heading that is a detector's name in code."""
    parts = re.split(r"^### `(\w+)`.*$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_sections_are_the_detectors() -> None:
    assert sorted(sections()) == DETECTORS


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_has_its_picture(name: str) -> None:
    (shown,) = re.findall(r"!\[[^\]]+\]\(images/health/(\w+)\.png\)", sections()[name])
    assert shown == name
    data = (ROOT / "docs" / "images" / "health" / f"{name}.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 4000  # an empty figure is smaller


def test_no_picture_is_left_over() -> None:
    assert sorted(path.stem for path in (ROOT / "docs" / "images" / "health").glob("*.png")) == DETECTORS


@pytest.mark.parametrize("name", DETECTORS)
def test_a_section_says_what_why_and_what_to_do(name: str) -> None:
    text = sections()[name]
    assert [told for told in ("What you see.", "Why", "What to do.") if f"**{told}" not in text] == []
