"""What is told while a run is driven: written as far as somebody reads, and never waited for.

Rules
* While a loop runs, nothing waits: a pipe that nobody reads and a terminal that was stopped (Ctrl-S) hold up
  no run. What finds no room is kept, up to `LIMIT`; of more than that the oldest goes, and how much is told.
* Where no loop runs, a run is over or not begun: then a reader is waited for, but not for long once it has
  stopped reading.
* Nobody else's stream changes: `O_NONBLOCK` belongs to the open file, which a shell and its other programs
  share. So the file is opened once more, or asked whether it has room before each small piece.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
from collections import deque
from time import monotonic
from typing import TextIO

LIMIT = 65_536
PATIENCE_S = 2.0
"""How long a reader may stand still before it counts as gone."""
PIECE = 512
"""What a file surely takes when it says that it has room (POSIX promises as much for a pipe)."""


def open_outbox(stream: TextIO) -> Outbox | None:
    """An outbox for a stream that may make its writer wait; None for one that never does."""
    try:
        number = stream.fileno()
        mode = os.fstat(number).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number)):
            return None
    except (OSError, ValueError):  # closed, or no file at all
        return None
    try:
        own = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        return Outbox(own, waits=False)
    except OSError:  # a socket, a terminal of somebody else's, no /proc
        return Outbox(number, waits=True)


class Outbox:
    """What is on its way to one file; `waits` if the file does not return at once from a write."""

    def __init__(self, file: int, *, waits: bool) -> None:
        self._file = file
        self._piece = PIECE if waits else LIMIT
        self._waits = waits
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._begun = False
        """Whether a part of the first piece was written."""
        self._patient = True
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that says when there is room."""

    @property
    def behind(self) -> bool:
        """Whether something is still to be written."""
        return bool(self._pieces)

    def put(self, content: bytes) -> None:
        """Write this when there is room; raises what the file says when nobody can read it any more."""
        self._pieces.append(content)
        self._size += len(content)
        while self._size > LIMIT and len(self._pieces) > 1 + self._begun:
            self._leave_out()
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self.finish()
        else:
            self._write()
            if self._pieces:
                self._loop.add_writer(self._file, self._room)

    def finish(self) -> None:
        """Wait for whoever reads, as long as it does."""
        moved = monotonic()
        while self._pieces:
            size = self._size
            self._write()
            if self._size < size:
                moved = monotonic()
                continue
            left_s = moved + PATIENCE_S - monotonic()
            if left_s <= 0 or not self._patient:
                self._patient = False
                return
            self._has_room(left_s)

    def _room(self) -> None:
        try:
            self._write()
        except OSError:
            self._pieces.clear()  # nobody reads it any more; the next to tell something is told so
            self._size, self._begun = 0, False
        if not self._pieces and self._loop is not None:
            self._loop.remove_writer(self._file)

    def _leave_out(self) -> None:
        first = self._pieces.popleft() if self._begun else None
        gone = self._pieces.popleft()
        self._size -= len(gone)
        self._left_out += gone.count(b"\n")
        if first is not None:
            self._pieces.appendleft(first)

    def _write(self) -> None:
        while self._pieces and (not self._waits or self._has_room(0)):
            first = self._pieces[0]
            if self._left_out and not self._begun:
                first = f"… {self._left_out} lines left out, nobody read them in time\n".encode() + first
            try:
                done = os.write(self._file, first[: self._piece])
            except BlockingIOError:
                return
            if not self._begun:
                self._left_out = 0
            self._size += len(first) - len(self._pieces[0]) - done
            self._begun = done < len(first)
            if self._begun:
                self._pieces[0] = first[done:]
            else:
                self._pieces.popleft()

    def _has_room(self, wait_s: float) -> bool:
        asked = select.poll()
        asked.register(self._file, select.POLLOUT)
        return bool(asked.poll(wait_s * 1_000))
