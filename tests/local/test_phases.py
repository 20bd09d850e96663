"""Phases on the small local model: whatever it answers, the run ends, and ends honestly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.conftest import slow
from tests.phases.test_audit_fix_verify import shop

pytestmark = pytest.mark.full

TIMEOUT_S = 900


@slow
def test_audit_fix_verify_ends_honestly_on_the_local_model(home: Path, tmp_path: Path):
    folder = shop(tmp_path / "shop")
    command = [sys.executable, "-m", "fanfold.cli.main", "run", "audit-fix-verify"]
    given = ["-i", 'packages=["cart"]', "--model", "local:smollm2", "--yes", "--json"]
    environment = {**os.environ, "FANFOLD_HOME": str(home), "FANFOLD_WORKFLOW_TIMEOUT_MS": "600000"}
    done = subprocess.run(
        [*command, *given], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert done.returncode in (0, 1), done.stderr
    tests = subprocess.run(
        [sys.executable, "-m", "unittest", "-q"], cwd=folder, check=False, capture_output=True
    )
    if result["status"] == "completed":
        assert tests.returncode == 0, "completed means that the tests pass"
    else:
        assert result["status"] in ("partial", "failed", "timed_out")
        assert (folder / ".fanfold/runs" / result["run_id"] / "report.md").exists()
    verified = [sys.executable, "-m", "fanfold.cli.main", "verify", "last"]
    assert subprocess.run(verified, cwd=folder, env=environment, check=False).returncode == 0
