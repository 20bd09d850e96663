"""The program behind `fork_server`: it forks a keeper for every command it is asked to start.

Run as `python -I -S fork_server_process.py SOCKET KEEPER LAUNCHER`: it uses the standard library alone and
loads the two files by path, once. What starts a confined command is then a fork of a small process that has
everything at hand, where two interpreters would have to start.

A request is eight bytes of length, with the handles (stdin, stdout, stderr, LIFE, NEWS) attached to the first
of them, and JSON: `argv`, `cwd`, `environment`, `mark`. Nothing is answered: the keeper tells its own news.
End of file means that our owner is gone; keepers notice that themselves.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

HANDLES = 5
HEAD_BYTES = 8


def load(name: str, path: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = path
    SourceFileLoader(name, path).exec_module(module)
    return module


def read_all(server: socket.socket, size: int) -> bytes:
    """Exactly so many bytes; fewer when the other side is gone."""
    parts: list[bytes] = []
    while size > 0 and (part := server.recv(min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def serve(server: socket.socket, keeper: ModuleType, launcher: ModuleType) -> None:
    while True:
        head, handles, _, _ = socket.recv_fds(server, HEAD_BYTES, HANDLES)
        for handle in handles:
            os.set_inheritable(handle, False)
        head += read_all(server, HEAD_BYTES - len(head)) if head else b""
        size = int.from_bytes(head, "big")
        body = read_all(server, size)
        if len(head) < HEAD_BYTES or len(body) < size or len(handles) != HANDLES:
            return
        if os.fork() == 0:
            try:
                server.close()
                keep(json.loads(body), list(handles), keeper, launcher)
            finally:
                os._exit(0)
        for handle in handles:
            os.close(handle)


def keep(asked: dict[str, Any], handles: list[int], keeper: ModuleType, launcher: ModuleType) -> None:
    """Become the keeper of a command, in a session of its own."""
    os.setsid()
    *streams, life, news = handles
    for number, handle in enumerate(streams):
        os.dup2(handle, number)
        os.close(handle)
    os.environ.clear()
    os.environ.update(asked["environment"])
    command = list(asked["argv"])
    confined = command[:4] == [sys.executable, "-I", "-S", launcher.__file__]

    def become(argv: list[str]) -> None:
        if confined:
            launcher.become(argv[4:])
        os.execvp(argv[0], argv)  # noqa: S606 - a list of arguments and no shell is what we want

    keeper.name(str(asked["mark"]))
    try:
        os.chdir(str(asked["cwd"]))
    except OSError as error:
        os.write(news, b"d %d\n" % (error.errno or 0))
        return
    keeper.keep(life, news, command, become)


def reap(*_: object) -> None:
    """Take what keepers leave at once, also the time they used: it counts as our owner's."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main(argv: list[str]) -> None:
    signal.signal(signal.SIGCHLD, reap)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C is for our owner
    with socket.socket(fileno=int(argv[1])) as server:
        server.set_inheritable(False)
        keeper, launcher = load("keeper", argv[2]), load("launcher", argv[3])
        import_module("warnings")  # `os.execvp` asks for it, and each fork would load it anew
        keeper.libc()
        gc.disable()
        gc.freeze()  # a fork that collected garbage would touch, and so copy, every page
        serve(server, keeper, launcher)


if __name__ == "__main__":
    main(sys.argv)
    os._exit(0)
