"""`make demo`, as far as it goes without fetching a model."""

import subprocess
import sys
from pathlib import Path

from tools.tidy import ROOT


def test_the_demo_is_killed_goes_on_and_leaves_a_repository_whose_tests_pass(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "tools.demo", "--agents", "scripted", "--no-local", "--folder", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout
    assert "running (no process)" in done.stdout
    assert "resumed" in done.stderr
    tests = subprocess.run([sys.executable, "-m", "unittest", "-q"], cwd=tmp_path / "shop", check=False)
    assert tests.returncode == 0
