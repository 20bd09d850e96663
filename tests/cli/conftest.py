"""A project in a folder of its own, and a command line that runs there."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fanfold.cli.main import main


class Result(NamedTuple):
    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project that is the current folder; the user's own files are out of reach."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FANFOLD_HOME", raising=False)
    monkeypatch.delenv("FANFOLD_DEBUG", raising=False)
    return folder


@pytest.fixture
def fanfold(project: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run a command in this process."""

    def run(*arguments: str) -> Result:
        status = main(list(arguments))
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def shell(project: Path) -> Callable[..., Result]:
    """Run a command as a process, with changes to its environment."""

    def run(*arguments: str | bytes, **environment: str) -> Result:
        command = [sys.executable, "-m", "fanfold.cli.main", *arguments]
        done = subprocess.run(
            command, capture_output=True, check=False, env={**os.environ, **environment}, timeout=60
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
