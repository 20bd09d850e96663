"""A disk that fails on demand and remembers what a power cut would have left, below a real SQLite.

Rules
* Every read, write, sync, truncation and deletion is one operation with a number. A fault is planned by
  number, so a test can walk through all of them; a run without faults says how many there are.
* Nothing reaches the platters before a sync: `Platters` replays the operations and holds what is
  surely there, and what may be there, whole, torn, or in another order.
* Syncs are remembered, not performed: the tests ask what would have survived, not the real disk.

    disk = Disk("failing")
    store = SqliteStore(folder, vfs=disk.name)
    disk.plan(at=disk.count + 5, fault="full")
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Literal, NamedTuple, TypeAlias

import apsw

Fault: TypeAlias = Literal["io", "full", "short"]
SECTOR = 512


class Operation(NamedTuple):
    """One thing that was done to a file, as far as it was done."""

    kind: str
    file: str
    offset: int = 0
    data: bytes = b""


class Disk(apsw.VFS):
    """An SQLite VFS over the real one; pass `name` where a connection is opened."""

    def __init__(self, name: str, *, recording: bool = True) -> None:
        self.name = name
        self.count = 0
        self.operations: list[Operation] = []
        self.struck: list[str] = []
        """What each fault hit, as `kind file`."""
        self._recording = recording
        self.fault: Fault = "io"
        self._at = 0
        self.lasting = False
        super().__init__(name, "")

    def plan(self, at: int, fault: Fault, *, lasting: bool = False) -> None:
        """Fail operation `at`; with `lasting`, fail every write from then on until `heal`."""
        self._at, self.fault, self.lasting = at, fault, lasting

    def heal(self) -> None:
        """Nothing fails any more."""
        self._at = 0

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.strike("delete", filename)
        super().xDelete(filename, syncdir)
        self.record(Operation("delete", Path(filename).name))

    def record(self, operation: Operation) -> None:
        """Remember what was done."""
        if self._recording:
            self.operations.append(operation)

    def strike(self, kind: str, file: str) -> bool:
        """Count an operation; raise if it is to fail, True if it is a write to be cut short."""
        self.count += 1
        if not self._at or self.count < self._at:
            return False
        if self.count > self._at and not (self.lasting and kind == "write"):
            return False
        self.struck.append(f"{kind} {Path(file).name}")
        if self.fault == "short" and kind == "write":
            return True
        raise self.error(kind)

    def error(self, kind: str) -> Exception:
        """What the system would answer."""
        if self.fault != "io" and kind in ("write", "truncate"):
            return apsw.FullError("no space left (injected)")
        error = apsw.exception_for(_CODES[kind])
        error.args = ("the disk failed (injected)",)
        return error


_CODES = {
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "delete": apsw.SQLITE_IOERR_DELETE,
}


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name or "temporary"
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.strike("read", self._name)
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        cut = self._disk.strike("write", self._name)
        done = data[: len(data) // 2] if cut else data
        super().xWrite(done, offset)
        self._disk.record(Operation("write", Path(self._name).name, offset, bytes(done)))
        if cut:
            raise self._disk.error("write")

    def xTruncate(self, newsize: int) -> None:
        self._disk.strike("truncate", self._name)
        super().xTruncate(newsize)
        self._disk.record(Operation("truncate", Path(self._name).name, newsize))

    def xSync(self, flags: int) -> None:
        self._disk.strike("sync", self._name)
        self._disk.record(Operation("sync", Path(self._name).name))


class Platters:
    """What a power cut leaves, operation by operation."""

    def __init__(self) -> None:
        self._safe: dict[str, bytearray] = {}
        self._pending: dict[str, list[Operation]] = {}

    def apply(self, operation: Operation) -> None:
        """Let one more operation happen."""
        if operation.kind == "sync":
            content = self._safe.setdefault(operation.file, bytearray())
            for earlier in self._pending.pop(operation.file, []):
                _perform(content, earlier)
        elif operation.kind == "delete":
            self._safe.pop(operation.file, None)
            self._pending.pop(operation.file, None)
        else:
            self._pending.setdefault(operation.file, []).append(operation)

    def restore(self, folder: Path, rng: Random | None = None) -> None:
        """Write the files as found after the cut: what was synced and, with `rng`, any part of the rest."""
        for name in self._safe.keys() | (self._pending.keys() if rng else set()):
            content = bytearray(self._safe.get(name, b""))
            for operation in self._pending.get(name, []) if rng else []:
                assert rng is not None
                chance = rng.random()
                if chance < 0.5:
                    _perform(content, operation)
                elif chance < 0.7 and operation.kind == "write":
                    torn = rng.randrange(0, len(operation.data) + 1, SECTOR)
                    _perform(content, operation._replace(data=operation.data[:torn]))
            (folder / name).write_bytes(content)


def _perform(content: bytearray, operation: Operation) -> None:
    if operation.kind == "truncate":
        del content[operation.offset :]
        return
    end = operation.offset + len(operation.data)
    content.extend(bytes(max(0, end - len(content))))
    content[operation.offset : end] = operation.data
