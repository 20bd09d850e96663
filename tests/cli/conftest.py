"""A project in a folder of its own, and a command line that runs there."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fanfold.cli.main import main
from tests.work import PATIENCE_S


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
            command, capture_output=True, check=False, env={**os.environ, **environment}, timeout=PATIENCE_S
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def background(project: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a command as a process and go on; whatever still runs when the test ends is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "fanfold.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()  # a process that it left may still hold the other end


@pytest.fixture
def until(fanfold: Callable[..., Result]) -> Callable[..., Any]:
    """Look at a run again and again until it is as expected; the last look."""

    def wait(expected: Callable[[Any], bool], run: str = "last", timeout_s: float = PATIENCE_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            seen = fanfold("inspect", run, "--json")
            if seen.status == 0 and expected(seen.json()):
                return seen.json()
            assert time.monotonic() < deadline, f"still {seen.out[:500]} {seen.err}"
            time.sleep(0.03)

    return wait
