"""The server under a little load: `make load` has all of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.work import PATIENCE_S
from tools.tidy import ROOT

pytestmark = pytest.mark.full


def test_nothing_fails_and_no_stream_has_a_gap_under_load(tmp_path: Path) -> None:
    options = ["--readers=20", "--streams=10", "--starters=1", "--seconds=3", "--rounds=1"]
    options.append(f"--out={tmp_path / 'load.json'}")
    done = subprocess.run(
        [sys.executable, "-m", "bench.load", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"meanwhile [1-9]\d* runs ran, and streams got [1-9][\d,]* events", done.stdout), (
        done.stdout
    )
    assert "0 errors and gaps" in done.stdout
    kept = json.loads((tmp_path / "load.json").read_text())
    assert (kept["readers"], kept["errors_and_gaps"]) == (20, 0)
    assert kept["events"] > 0
    assert kept["bare_reads_times_as_much"] > 0
