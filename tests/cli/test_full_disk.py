"""The disk is really full at some moment of a run: it ends in words, and goes on when there is room again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

RECIPE = """\
name: r
steps:
  - {id: a, agent: explorer, prompt: A}
  - {id: w, agent: worker, prompt: W, write_set: ["w/**"], depends_on: [a]}
  - id: m
    agent: explorer
    for_each: lists.range(12)
    depends_on: [w]
    prompt: "{{item}} {{steps.a.output}}"
output: "{{steps.m.output}}"
"""
SCRIPT = json.dumps(
    {
        "default": "x{{step}}" * 800,
        "steps": {"a": "A" * 20_000, "w": {"output": "w", "writes": {"w/f.txt": "y" * 100_000}}},
    }
)
WITHIN = """
set -e
mount -t tmpfs -o size="$1"k tmpfs "$2"
cp "$3"/* "$2"
cd "$2"
fanfold() { "$PYTHON" -m fanfold.cli.main "$@"; }
set +e
fanfold run r.yaml --script s.json --yes > /dev/null 2> "$3/errors"
echo "run $?"
mount -o remount,size=30m "$2"
fanfold resume last > /dev/null 2>> "$3/errors"
echo "resume $?"
fanfold verify last > /dev/null 2>> "$3/errors"
echo "verify $?"
wc -c < w/f.txt
"""
UNSHARE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def _in_a_small_disk(folder: Path, kib: int) -> tuple[list[str], str]:
    """What the commands came to on a disk of that size, and what they said."""
    (folder / "files").mkdir()
    (folder / "disk").mkdir()
    (folder / "files" / "r.yaml").write_text(RECIPE)
    (folder / "files" / "s.json").write_text(SCRIPT)
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", WITHIN, "sh", str(kib), str(folder / "disk"), str(folder / "files")],
        env={**os.environ, "PYTHON": sys.executable, "FANFOLD_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if not done.stdout:
        pytest.skip("needs namespaces and mounts: make test-full on a Linux that allows them")
    return done.stdout.split("\n"), (folder / "files" / "errors").read_text()


@pytest.mark.parametrize("kib", [520, 800, 1_060, 1_120])
def test_a_run_on_a_full_disk_ends_with_an_error_and_continues_when_there_is_space(
    kib: int, tmp_path: Path
) -> None:
    came_to, said = _in_a_small_disk(tmp_path, kib)
    assert came_to[:4] == ["run 1", "resume 0", "verify 0", "100000"], said
    assert "error[store.full]: the disk is full" in said
    assert "Traceback" not in said
