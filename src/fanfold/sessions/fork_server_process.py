"""The fork server: a small program that forks a reaper process for every command it starts.

Run as `python -I -S fork_server_process.py SOCKET REAPER LAUNCHER`. It uses only the standard library, and
loads the two files by path, once. A sandboxed command then needs only a fork of a small process, instead of
the start of two interpreters.

A request is a length of eight bytes and a JSON object with `argv`, `cwd`, `environment` and `mark`. The
handles (stdin, stdout, stderr, LIFE, NEWS) are attached to the first byte. The server sends no answer: the
reaper reports on NEWS. End of file means that the owner process has ended; reapers detect that themselves.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

HANDLES = 5
HEAD_BYTES = 8
SERVER = os.getpid()


def load(name: str, path: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = path
    SourceFileLoader(name, path).exec_module(module)
    return module


def read_all(server: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes; fewer if the other side has closed the connection."""
    parts: list[bytes] = []
    while size > 0 and (part := server.recv(min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def serve(server: socket.socket, keeper: ModuleType, launcher: ModuleType) -> None:
    line = server.fileno()
    while True:
        head, handles, _, _ = socket.recv_fds(server, HEAD_BYTES, HANDLES)
        for handle in handles:
            os.set_inheritable(handle, False)
        head += read_all(server, HEAD_BYTES - len(head)) if head else b""
        size = int.from_bytes(head, "big")
        body = read_all(server, size)
        if len(head) < HEAD_BYTES or len(body) < size or len(handles) != HANDLES:
            return
        asked = json.loads(body)
        become = how_to_become(asked, launcher)
        if os.fork() == 0:
            try:
                os.close(line)
                keep(asked, list(handles), keeper, become)
            finally:
                os._exit(0)
        for handle in handles:
            os.close(handle)
        del asked, body, become


def how_to_become(asked: dict[str, Any], launcher: ModuleType) -> Callable[[list[str], int], None]:
    """Return the function that turns a fork into the command, computed before the fork to copy less."""
    command, variables = asked["argv"], asked["environment"]
    if command[:4] == [sys.executable, "-I", "-S", launcher.__file__]:
        start = launcher.prepare(command[4:], variables)
        return lambda _, status_fd: launcher.become(start, status_fd)
    return lambda argv, _: os.execvpe(argv[0], argv, variables)  # noqa: S606 - a list and no shell is what we want


def keep(
    asked: dict[str, Any], handles: list[int], keeper: ModuleType, become: Callable[[list[str], int], None]
) -> None:
    """Become the reaper of a command, in a session of its own."""
    os.setsid()
    *streams, life, news = handles
    for number, handle in enumerate(streams):
        os.dup2(handle, number)
        os.close(handle)
    keeper.name(str(asked["mark"]))
    try:
        os.chdir(str(asked["cwd"]))
    except OSError as error:
        os.write(news, b"d %d\n" % (error.errno or 0))
        return
    keeper.keep(life, news, asked["argv"], become)


def reap(*_: object) -> None:
    """Collect ended reapers at once, with their CPU time, which counts for the owner process."""
    if os.getpid() != SERVER:
        return  # a reaper collects its children itself
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main(argv: list[str]) -> None:
    keeper, launcher = load("keeper", argv[2]), load("launcher", argv[3])
    signal.signal(signal.SIGCHLD, reap)
    for number in keeper.HELD_BACK:
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C in a terminal is for the owner process
    with socket.socket(fileno=int(argv[1])) as server:
        server.set_inheritable(False)
        import_module("warnings")  # `os.execvpe` imports it, and each fork would load it again
        keeper.warm_up()
        launcher.warm_up()
        gc.disable()
        gc.freeze()  # garbage collection in a fork would write to, and so copy, every page
        serve(server, keeper, launcher)


if __name__ == "__main__":
    main(sys.argv)
    os._exit(0)
