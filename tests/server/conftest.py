"""A project with runs, served by a process of its own, and a client that may do everything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.work import PATIENCE_S

RECIPE = """
name: team
description: Look at things, then ask
inputs: [{name: topic, default: owls}]
steps:
  - {id: look, agent: explorer, for_each: '["a", "b", "c"]', prompt: "Look at {{item}} of {{inputs.topic}}"}
  - {id: note, agent: worker, depends_on: [look], prompt: "Write {{steps.look.output}}", write_set: [n.txt]}
  - {id: ok, approve: "Good?", show: "{{steps.note.output}}", depends_on: [note]}
  - {id: done, agent: explorer, depends_on: [ok], prompt: "Sum up {{steps.note.output}}"}
"""
SCRIPT = """
default: {output: "found by {{step}}", usage: {input_tokens: 3, output_tokens: 4}}
steps:
  note: {output: noted, writes: {n.txt: "new\\n"}}
"""


class Server(NamedTuple):
    """One `fanfold serve`; `client` holds its token and sends no cookies."""

    process: subprocess.Popen[str]
    folder: Path
    url: str
    token: str
    client: httpx2.Client

    def get(self, path: str, **parameters: Any) -> Any:
        """The document at a path."""
        reply = self.client.get(path, params=parameters or None)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def post(self, path: str, body: Any, status: int = 200) -> Any:
        reply = self.client.post(path, json=body)
        assert reply.status_code == status, reply.text
        return reply.json()

    @property
    def first(self) -> str:
        """The address of the oldest run, whatever other tests started since."""
        return f"/api/runs/{self.get('/api/runs')['items'][-1]['run_id']}"

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)


Serve = Callable[..., Server]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(home), "FANFOLD_HOME": str(home / ".fanfold")}


@contextmanager
def serving(folder: Path, home: Path) -> Iterator[Serve]:
    """Starts servers of a folder; those that still run at the end are stopped."""
    started: list[Server] = []

    def serve(*options: str) -> Server:
        process = subprocess.Popen(
            [sys.executable, "-m", "fanfold.cli.main", "serve", "--port", "0", "--json", *options],
            cwd=folder,
            env=environment(home),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        said = json.loads(line)
        token = (said["link"] or "=").partition("=")[2]
        headers = {"Authorization": f"Bearer {token}"}
        # Each request by a connection of its own: one that was kept may be closed just when it is used again.
        alone = httpx2.Limits(max_keepalive_connections=0)
        client = httpx2.Client(base_url=said["url"], headers=headers, timeout=PATIENCE_S, limits=alone)
        started.append(Server(process, folder, said["url"], token, client))
        return started[-1]

    try:
        yield serve
    finally:
        for server in started:
            server.client.close()
            if server.process.poll() is None:
                server.process.kill()
            server.process.communicate()


def ended(folder: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A `fanfold` command in the project, however it ended."""
    command = [sys.executable, "-m", "fanfold.cli.main", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def run_command(folder: Path, home: Path, *arguments: str) -> str:
    """A `fanfold` command that ends well, or waits; what it printed."""
    done = ended(folder, home, *arguments)
    assert done.returncode in (0, 3), done.stderr
    return done.stdout


def lay_out(folder: Path) -> None:
    (folder / ".fanfold" / "workflows").mkdir(parents=True)
    (folder / ".fanfold" / "workflows" / "team.yaml").write_text(RECIPE)
    (folder / "script.yaml").write_text(SCRIPT)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("project")
    lay_out(made)
    return made


@pytest.fixture(scope="module")
def server(folder: Path, home: Path) -> Iterator[Server]:
    """A server of a project in which one run waits for an approval."""
    with serving(folder, home) as serve:
        run_command(folder, home, "run", "team", "--script", "script.yaml", "--yes")
        yield serve()
