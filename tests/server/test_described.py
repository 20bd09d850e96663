"""The OpenAPI document is true: schemathesis holds the server against it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.conftest import Server

pytestmark = pytest.mark.full

ALL = os.environ.get("HTTP_TEST") == "all"
"""`make http`: what lies at the edges of every parameter too, and more examples of each operation."""
CONFIG = """
[parameters]
"path.run" = "{run}"
"path.a" = "{run}"
"path.b" = "{run}"
"path.step" = "look[0]"
"path.session" = "{session}"
"path.name" = "team"

[checks.positive_data_acceptance]
# A text may be a string and no recipe, a limit higher than what this project allows, a step no agent's.
expected-statuses = ["2xx", "400", "403", "404", "409", "422"]

[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "409", "413", "415", "422"]
"""


def test_the_server_does_what_its_description_says(server: Server, tmp_path: Path) -> None:
    run = server.get("/api/runs")["items"][0]["run_id"]
    session = server.get(f"/api/runs/{run}/steps/look%5B0%5D")["session_id"]
    (tmp_path / "schemathesis.toml").write_text(CONFIG.format(run=run, session=session))
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "--config-file=schemathesis.toml",
            "run",
            f"{server.url}api/openapi.json",
            f"--header=Authorization: Bearer {server.token}",
            f"--max-examples={40 if ALL else 2}",
            "--exclude-path-regex=stream$",  # what has no end cannot be read to its end
            "--exclude-operation-id=pause_run",  # each waits for a process of its own
            "--exclude-operation-id=resume_run",
            f"--phases={'examples,coverage,fuzzing' if ALL else 'fuzzing'}",
            "--seed=1",
            "--no-color",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1_200,
        check=False,
    )
    assert done.returncode == 0, "\n".join(line[:400] for line in done.stdout.splitlines())
    assert "Tested: " in done.stdout, done.stdout[-2_000:]
