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
    """Exactly so many bytes; fewer when the other side is gone."""
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


def how_to_become(asked: dict[str, Any], launcher: ModuleType) -> Callable[[list[str]], None]:
    """Worked out before the fork, which then has the less to copy; see `launcher`."""
    command, variables = asked["argv"], asked["environment"]
    if command[:4] == [sys.executable, "-I", "-S", launcher.__file__]:
        start = launcher.prepare(command[4:], variables)
        return lambda _: launcher.become(start)
    return lambda argv: os.execvpe(argv[0], argv, variables)  # noqa: S606 - a list and no shell is what we want


def keep(
    asked: dict[str, Any], handles: list[int], keeper: ModuleType, become: Callable[[list[str]], None]
) -> None:
    """Become the keeper of a command, in a session of its own."""
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
    """Take what keepers leave at once, also the time they used: it counts as our owner's."""
    if os.getpid() != SERVER:
        return  # a keeper looks after its children itself
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main(argv: list[str]) -> None:
    keeper, launcher = load("keeper", argv[2]), load("launcher", argv[3])
    signal.signal(signal.SIGCHLD, reap)
    for number in keeper.HELD_BACK:
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C is for our owner
    with socket.socket(fileno=int(argv[1])) as server:
        server.set_inheritable(False)
        import_module("warnings")  # `os.execvpe` asks for it, and each fork would load it anew
        keeper.warm_up()
        launcher.warm_up()
        gc.disable()
        gc.freeze()  # a fork that collected garbage would touch, and so copy, every page
        serve(server, keeper, launcher)


if __name__ == "__main__":
    main(sys.argv)
    os._exit(0)
