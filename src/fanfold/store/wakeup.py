"""Telling the owner of a run tree to look into the database now.

Rules
* A datagram says nothing but "look". Requests are rows; a datagram that is lost, doubled, forged or
  late changes nothing, so nobody waits for delivery and nobody trusts the content.
* The address follows from the database's path and the root's id, so any process of the project can
  compute it. On Linux it is an abstract name, which leaves nothing behind when the owner dies; elsewhere
  a socket file in a folder of this user alone, with a name short enough for the limit on socket paths.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from hashlib import blake2b
from pathlib import Path

from fanfold.store.folder import private_folder
from fanfold.store.protocol import StoreFault

SLOTS = 4
"""Listeners of one root at a time: an owner that lost its lease may not have hung up yet."""


class Listener:
    """What an owner listens on; give it to an event loop by `fileno`, or await `wait`."""

    def __init__(self, bell: socket.socket, file: Path | None) -> None:
        self._bell = bell
        self._file = file

    def fileno(self) -> int:
        return self._bell.fileno()

    async def wait(self) -> None:
        """Until somebody rings; also when somebody rang since the last time."""
        await asyncio.get_running_loop().sock_recv(self._bell, 16)
        self.drain()

    def drain(self) -> bool:
        """Forget all rings so far; whether there were any."""
        rang = False
        while True:
            try:
                self._bell.recv(16)
            except BlockingIOError:
                return rang
            rang = True

    def close(self) -> None:
        self._bell.close()
        if self._file is not None:
            self._file.unlink(missing_ok=True)


class Wakeups:
    """The doorbells of one project; `folder` is its `.fanfold` folder.

    >>> bells = Wakeups(Path("some/.fanfold"))
    >>> bells.wake("run")
    False
    >>> owner = bells.listen("run")
    >>> bells.wake("run"), owner.drain(), owner.drain()
    (True, True, False)
    >>> owner.close()
    """

    def __init__(self, folder: Path, *, abstract: bool = sys.platform == "linux") -> None:
        self._project = os.path.realpath(folder)
        self._abstract = abstract

    def listen(self, root: str) -> Listener:
        """Be woken by `wake(root)`, from now until closed."""
        for address in self._addresses(root):
            bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            bell.setblocking(False)
            try:
                bell.bind(address)
            except OSError:
                bell.close()
                if self._abstract or _is_answered(address):
                    continue
                Path(address).unlink(missing_ok=True)  # left behind by an owner that was killed
                return self.listen(root)
            return Listener(bell, None if self._abstract else Path(address))
        raise StoreFault(
            "store.wakeup",
            f"too many processes listen for requests to run {root}",
            hint="end processes of this project that hang",
        )

    def wake(self, root: str) -> bool:
        """Ring; whether somebody listens. Never blocks and never fails."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
            bell.setblocking(False)
            heard = [_ring(bell, address) for address in self._addresses(root)]
        return any(heard)

    def _addresses(self, root: str) -> list[str]:
        name = blake2b(f"{self._project}\0{root}".encode(), digest_size=12).hexdigest()
        prefix = f"\0fanfold-{os.getuid()}-" if self._abstract else f"{_socket_folder()}/"
        return [f"{prefix}{name}-{slot}" for slot in range(SLOTS)]


def _ring(bell: socket.socket, address: str) -> bool:
    try:
        bell.sendto(b"\n", address)
    except BlockingIOError:
        return True  # the owner has not looked at earlier rings yet; it will
    except OSError:
        return False
    return True


def _is_answered(address: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.setblocking(False)
        return _ring(bell, address)


def _socket_folder() -> Path:
    """Directly below the temporary folder: paths of sockets are limited to about 100 bytes."""
    folder = private_folder(Path(tempfile.gettempdir()) / f"fanfold-{os.getuid()}")
    state = folder.lstat()
    if state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise StoreFault("store.wakeup", f"{folder} is not this user's alone", hint="remove it")
    return folder
