"""Room in SQLite's write-ahead log, made before it is needed.

A commit that makes a file longer has to wait for the journal of the file system as well, which costs about
as much again. SQLite lets its log grow by what a commit writes, and removes it with the last connection; so
every process would pay for it anew until its first checkpoint. One that has written more than a little puts
zeros behind the log, a good piece at a time, and its commits write over them.

Rules
* Zeros go behind the end of the file, and only while this process holds the lock for writing: nobody else
  makes the log longer or shorter meanwhile.
* Zeros are no frame of a log (there is no page 0), so whoever reads it after a crash stops there, as at what
  is left of an earlier round.
* It is help and no more: what fails here fails silently, and the commit finds the file as it is. Where room
  is scarce nothing is taken ahead of need: others of the run, and of the machine, need it now.
"""

from __future__ import annotations

import os

import apsw

FRAME_BYTES = 4_096 + 24
"""What a page takes in the log."""
WORTH_PAGES = 48
"""A process that writes less never needs more than the first few pages."""
AHEAD_BYTES = 128 * 1024
"""More than nearly every commit writes."""
PIECE_BYTES = 1024 * 1024
MIN_FREE_BYTES = 64 * PIECE_BYTES
"""With less free on the disk nothing is taken ahead."""


class LogRoom:
    """Of the write-ahead log of one database, in which so many pages wait for a checkpoint."""

    def __init__(self, file: str, max_pages: int) -> None:
        self._log = f"{file}-wal"
        self._max_bytes = max_pages * FRAME_BYTES + AHEAD_BYTES
        self.pages = 0
        """In the log after the last commit."""

    def committed(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        """What SQLite calls after each commit."""
        self.pages = pages
        return apsw.SQLITE_OK

    def make_room(self, known: os.stat_result | None) -> None:
        """Have room for the next commit in the log, as it was known last; inside a write transaction."""
        needed = min(self.pages * FRAME_BYTES + AHEAD_BYTES, self._max_bytes)
        if known is None or self.pages < WORTH_PAGES or needed <= known.st_size:
            return
        try:
            log = os.open(self._log, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                disk, found = os.fstatvfs(log), os.fstat(log)
                if disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES:
                    self._max_bytes = 0  # not again
                elif os.path.samestat(found, known):  # what was put in its place is not ours to write
                    end = found.st_size
                    os.pwrite(log, bytes(min(PIECE_BYTES, max(0, self._max_bytes - end))), end)
            finally:
                os.close(log)
        except OSError:
            self._max_bytes = 0  # not again
