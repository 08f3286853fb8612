"""Ten random kills of real runs; bench/soak.py does fifty."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT


@pytest.mark.slow
def test_killed_at_random_moments_a_run_ends_as_if_undisturbed(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "bench/soak.py"), "--kills", "10", "--kills-a-run", "4", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 kills, 3 runs, 3 of them as if undisturbed" in done.stdout, done.stdout
