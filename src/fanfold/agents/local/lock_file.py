"""How processes agree on the one server of a model: a lock file that says who serves, and where.

Rules
* A server holds an exclusive lock on the file for as long as it lives. The kernel lets go of it however the
  process ends, so a file left by a killed server is seen to be stale, and a reused process id fools nobody.
* Only the holder writes the file, in one write, and never replaces it: a lock belongs to the file it was
  taken on. The file stays when the server is gone.
* A client first marks the server as used, then reads its state. A server that wants to stop first writes
  `stopping`, then looks at the mark. Whatever the order, one of the two notices the other, so nobody is sent
  to a server that is about to leave.
* There is one file per weights (path, size and time of change) and machine: loopback ends at the machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from fanfold.agents.local.weights import models_folder

State: TypeAlias = Literal["loading", "ready", "stopping"]

RECORD_BYTES = 1_024
"""Records are padded to this size, so that each write covers the whole of the one before."""


class ServerRecord(Struct, frozen=True):
    """What a server says about itself."""

    pid: int
    started_at: float
    """Seconds since the epoch."""
    state: State
    port: int | None = None

    @property
    def base_url(self) -> str:
        """Where the OpenAI-compatible API is; only when `ready`."""
        assert self.port is not None
        return f"http://127.0.0.1:{self.port}/v1"


class ServerFiles(NamedTuple):
    """The files around the server of one model."""

    weights: Path
    lock: Path
    used: Path
    log: Path


def place_of(weights: Path, home: Path) -> ServerFiles:
    """The files for these weights; nothing is made yet."""
    facts = weights.stat()
    identity = f"{weights}\0{facts.st_size}\0{facts.st_mtime_ns}\0{platform.node()}"
    key = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    folder = models_folder(home) / "servers"
    return ServerFiles(weights, folder / f"{key}.lock", folder / f"{key}.used", folder / f"{key}.log")


def prepare(place: ServerFiles) -> None:
    """Make the folder; only its owner may look inside."""
    place.lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def hold(place: ServerFiles) -> int | None:
    """Become the server: the locked file, to be kept open; None when another process is it."""
    handle = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        if _try_lock(handle, fcntl.LOCK_EX):
            return handle
        # A client that looks whether anyone serves holds a shared lock for a moment; that is no server.
        if not _try_lock(handle, fcntl.LOCK_SH):
            os.close(handle)
            return None
        fcntl.flock(handle, fcntl.LOCK_UN)


def write(handle: int, record: ServerRecord) -> None:
    """Say what this server is doing; for the holder only."""
    text = msgspec.json.encode(record).ljust(RECORD_BYTES)
    assert len(text) == RECORD_BYTES, "a record fits"
    os.pwrite(handle, text, 0)


def read(place: ServerFiles) -> ServerRecord | None:
    """What the living server says of itself; None when there is none.

    A server that has the lock and has not said anything yet counts as loading.
    """
    try:
        handle = os.open(place.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if _try_lock(handle, fcntl.LOCK_SH):
            return None  # closing the file gives the lock back
        text = os.pread(handle, RECORD_BYTES, 0)
    finally:
        os.close(handle)
    try:
        return msgspec.json.decode(text, type=ServerRecord)
    except msgspec.DecodeError:
        return ServerRecord(0, 0.0, "loading")


def mark_used(place: ServerFiles) -> None:
    """Tell the server that someone is about to use it."""
    place.used.touch(mode=0o600)


def last_used(place: ServerFiles) -> int:
    """When the server was last marked; only ever compared with an earlier answer."""
    try:
        return place.used.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def is_still_there(place: ServerFiles, handle: int) -> bool:
    """Whether clients can find the server: its lock file has not been deleted or replaced."""
    try:
        return os.path.samestat(place.lock.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
