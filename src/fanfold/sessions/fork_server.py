"""Starting commands cheaply: one small process per process of ours, which forks a keeper for each of them.

Rules
* It is started with the first command, knows nothing of our environment but what every command may know,
  holds nothing of a command after the fork, and leaves when we do. When somebody killed it, the next command
  starts another one.
* What is handed over are handles and words; the sandbox itself is put up in the fork, by the same launcher.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fanfold.sessions import fork_server_process, keeper
from fanfold.sessions.environment import ALLOWED
from fanfold.workspace.sandbox import launcher

_AT_ONCE = {"LD_BIND_NOW": "1"}
"""Functions of libraries are looked up when it starts, else each fork would do it again."""
_lock = threading.Lock()


class _Server(NamedTuple):
    owner: int
    """The process that talks to it: a fork of ours starts one of its own."""
    line: socket.socket
    process: subprocess.Popen[bytes]


_server: _Server | None = None


def fork_keeper(
    argv: Sequence[str], cwd: str, environment: Mapping[str, str], mark: str, handles: Sequence[int]
) -> None:
    """Start a keeper for a command: stdin, stdout, stderr, LIFE and NEWS are its handles, copied."""
    asked = {"argv": list(argv), "cwd": cwd, "environment": dict(environment), "mark": mark}
    body = json.dumps(asked).encode()
    head = len(body).to_bytes(fork_server_process.HEAD_BYTES, "big")
    with _lock:
        for attempt in (1, 2):
            try:
                line = _connect().line
                socket.send_fds(line, [head], list(handles))
                line.sendall(body)
            except OSError:
                _forget()
                if attempt == 2:
                    raise
            else:
                return


def _connect() -> _Server:
    global _server  # noqa: PLW0603 - one per process, as the processes it starts
    if _server is not None and _server.owner == os.getpid() and _server.process.poll() is None:
        return _server
    _forget()
    atexit.register(_forget)
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-I", "-S", fork_server_process.__file__, str(theirs.fileno())]
        process = subprocess.Popen(
            [*command, keeper.__file__, launcher.__file__],
            cwd="/",
            env={name: text for name, text in os.environ.items() if name in ALLOWED} | _AT_ONCE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    _server = _Server(os.getpid(), ours, process)
    return _server


def _forget() -> None:
    global _server  # noqa: PLW0603 - as above
    if _server is not None and _server.owner == os.getpid():
        _server.line.close()
        _server.process.wait()
    _server = None
