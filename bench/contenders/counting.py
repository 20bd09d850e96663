"""Counts what SQLite writes, below every connection of this process: with BENCH_COUNTED in the environment.

A page in the write-ahead log is two writes (a header and the page), and one more where it is written back.
Counting takes time, so a turn that counts is not one that is timed.
"""

from __future__ import annotations

import os

import apsw


class Writes(apsw.VFS):
    """The disk, with a tally."""

    def __init__(self) -> None:
        self.count = self.bytes = 0
        self.below = apsw.vfs_names()[0]
        super().__init__("counting", self.below, makedefault=True)

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - named by SQLite
        return _File(self, name, flags)

    def reset(self) -> None:
        self.count = self.bytes = 0


class _File(apsw.VFSFile):
    def __init__(self, writes: Writes, name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        self._writes = writes
        super().__init__(writes.below, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - named by SQLite
        self._writes.count += 1
        self._writes.bytes += len(data)
        super().xWrite(data, offset)


WRITES = Writes() if os.environ.get("BENCH_COUNTED") else None
