"""The server of a peer that needs one: on loopback, with its data in the contender's folder, ended with it.

The standard library alone, as everywhere in this folder.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def free_port() -> int:
    """A port of this machine that nobody uses; whoever takes it must be quick."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """Run a server and give its process id. It says nothing, and does not outlive this process."""
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - no other thread runs yet
        )
    try:
        yield server.pid
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _die_with_parent() -> None:
    """A contender that takes too long is killed, and has no time to end what it started."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
