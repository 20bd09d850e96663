"""The package is typed for those who use it: two checkers agree, and the program does what its types say."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.work import PATIENCE_S
from tools.tidy import ROOT

pytestmark = pytest.mark.full

PROGRAM = Path(__file__).with_name("program.py")


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def test_the_package_says_that_it_is_typed():
    import fanfold

    assert (Path(fanfold.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize(
    "checker", [["mypy", "--strict"], ["pyright", "--pythonpath", sys.executable]], ids=["mypy", "pyright"]
)
def test_a_program_that_uses_it_passes_and_a_wrong_one_does_not(checker: list[str], tmp_path: Path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(PROGRAM.read_text().replace(".points[0].upper()", ".points.title"))
    done = run(*checker, str(PROGRAM), str(wrong))
    found = [line for line in done.stdout.splitlines() if "error:" in line]
    assert done.returncode == 1, done.stdout + done.stderr
    assert found, done.stdout
    assert all("wrong.py" in line and "title" in line for line in found), done.stdout


def test_it_does_what_its_types_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
