"""The same tests, once more as somebody who is not root."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from tools.tidy import ROOT

pytestmark = pytest.mark.full

NOBODY = 65534
ELSEWHERE = (
    "grain",
    "many_threads",
    "limits",
    "no_names",
    "looking_only",
    "never_merged",
    "conflict_is_data",
)
"""Tests of what is the same for everybody, by a word of their names: once is enough."""
# What setpriv itself executes may still have root's capabilities; what `env` executes has not.
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", "env"]


def interpreter() -> str | None:
    """A Python of this version that anybody may execute."""
    for candidate in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        ask = [candidate, "-c", "import sys; print(*sys.version_info[:2])"]
        try:
            ended = subprocess.run([*AS_NOBODY, *ask], capture_output=True, text=True, check=False)
        except OSError:
            return None
        if ended.stdout.split() == [str(part) for part in sys.version_info[:2]]:
            return candidate
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo make test-full")
def test_everything_holds_without_root():
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv: apt-get install util-linux")
    python = interpreter()
    if python is None:
        pytest.skip("needs a Python that every user may execute: apt-get install python3")
    folder = Path(tempfile.mkdtemp(prefix="fanfold-nobody-"))
    try:
        os.chown(folder, NOBODY, NOBODY)
        (folder / "home").mkdir()
        os.chown(folder / "home", NOBODY, NOBODY)
        tests = [
            str(ROOT / "tests/workspace" / f"test_{name}.py") for name in ("snapshots", "merges", "sandbox")
        ]
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/tests"]
        packages = sysconfig.get_paths()["purelib"]
        environment = {
            "PATH": f"/usr/local/bin:/usr/bin:/bin:{Path(python).parent}",
            "HOME": str(folder / "home"),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}:{packages}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        selected = [*command, "-k", " and ".join(f"not {word}" for word in ELSEWHERE), *tests]
        ended = subprocess.run(
            [*AS_NOBODY, *selected], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-1000:]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
