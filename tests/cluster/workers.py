"""A Temporal development server, workers of one project, and runs that users start there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.work import PATIENCE_S

TEMPORAL = Path(sys.executable).parent / "temporal"
FAST = ("history.transferProcessorMaxPollRPS", "history.timerProcessorMaxPollRPS")
"""The server reads its queues 20 times a second otherwise, and each step costs 45 ms more."""


class TemporalServer:
    """A development server on a free port. What it stores survives `kill`."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port: int = found.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        fast = [word for name in FAST for word in ("--dynamic-config-value", f"{name}=100000")]
        command = [
            str(TEMPORAL),
            "server",
            "start-dev",
            "--headless",
            "--ip",
            "127.0.0.1",
            "--log-level",
            "error",
        ]
        self._command = [
            *command,
            "--port",
            str(self.port),
            "--db-filename",
            str(folder / "temporal.db"),
            *fast,
        ]
        self.data, self._log = folder / "temporal.db", folder / "temporal.log"
        self.start()

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until(lambda: is_listening(self.port))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)


@contextmanager
def temporal_server(folder: Path) -> Iterator[str]:
    """A running development server; yields its address."""
    server = TemporalServer(folder)
    try:
        yield server.address
    finally:
        server.stop()


def is_listening(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


def until(found: Callable[[], Any]) -> Any:
    """Wait for something that another process does; returns it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return value


class Cluster:
    """Workers of one project, each a process."""

    def __init__(self, folder: Path, address: str) -> None:
        self.project = folder / "project"
        self.project.mkdir()
        (folder / "home").mkdir()
        self._folder = folder
        own = {name: value for name, value in os.environ.items() if not name.startswith("FANFOLD_")}
        self.environment = {
            **own,
            "HOME": str(folder / "home"),
            "FANFOLD_TEMPORAL": address,
            "FANFOLD_HEARTBEAT_S": "2",
        }
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *options: str, apart: bool = False, first: str = "", **more: str) -> None:
        """Start a worker, and wait until it takes jobs. `apart`: with its own home and without a checkout.

        `first` is Python code that its process runs first; `more` is added to its environment.
        """
        folder, environment = self.project, {**self.environment, **more}
        if apart:
            folder = self._folder / name
            folder.mkdir()
            environment = {**environment, "HOME": str(folder / "home")}
            (folder / "home").mkdir()
            folder = folder / "empty"
            folder.mkdir()
        log = self._folder / f"{name}.log"
        begin = f"import sys; {first or 'pass'}; from fanfold.cli.main import main; sys.exit(main())"
        command = [sys.executable, "-c", begin, "worker", "--name", name, *options]
        with open(log, "wb") as opened:
            self.workers[name] = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=opened, stderr=opened
            )
        until(lambda: b"takes steps" in log.read_bytes())

    def signal(self, name: str, number: signal.Signals) -> None:
        self.workers[name].send_signal(number)

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)
        self.workers.pop(name).wait(PATIENCE_S)

    def stop(self) -> None:
        """End all workers."""
        for worker in self.workers.values():
            worker.kill()
        for worker in self.workers.values():
            worker.wait(PATIENCE_S)

    def fanfold(self, *words: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command of a user in the project. `at`: on another machine, in this folder."""
        environment = self.environment if at is None else {**self.environment, "HOME": str(at)}
        return subprocess.run(
            [sys.executable, "-m", "fanfold.cli.main", *words],
            cwd=self.project if at is None else at,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def ok(self, *words: str, at: Path | None = None) -> str:
        done = self.fanfold(*words, at=at)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, recipe: str, *options: str) -> str:
        """Start a run in the background; returns its id."""
        (self.project / "recipe.yaml").write_text(recipe)
        return self.ok("run", "recipe.yaml", "--yes", "--detach", *options).strip()

    def events(self, run: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ok("logs", run, "--json").splitlines()]

    def about(self, run: str, word: str) -> list[dict[str, Any]]:
        """The data of the events of steps with this status."""
        return [one["data"] for one in self.events(run) if one["data"].get("status") == word]

    def placed(self, run: str) -> dict[str, str]:
        """The worker that completed each step."""
        facts = [one["data"] for one in self.events(run) if one["data"].get("what") == "placed"]
        return {fact["step"]: fact["worker"] for fact in facts}

    def finished(self, run: str) -> dict[str, Any]:
        """The document of a run, when it has ended."""

        def look() -> dict[str, Any] | None:
            document: dict[str, Any] = json.loads(self.ok("inspect", run, "--json"))
            return document if document["status"] in ("completed", "failed", "partial", "cancelled") else None

        try:
            found: dict[str, Any] = until(look)
        except AssertionError:
            shown = [self.fanfold(*words).stdout for words in (("cluster", "status"), ("logs", run))]
            raise AssertionError("\n".join(["the run does not end", *shown])) from None
        assert "ok" in self.ok("verify", run)
        return found
