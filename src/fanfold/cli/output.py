"""Output of commands: text or JSON on stdout, with colour only on a terminal.

Rules
* Text from outside (file names, recipe texts, output of agents and programs) goes through `plain` or
  `language.terminal.one_line`, so that it cannot control the reader's terminal.
* While an event loop runs, no write blocks: a pipe without a reader and a stopped terminal (Ctrl-S) delay no
  run. Pending output is kept up to `LIMIT`. Beyond that the oldest is dropped, and the loss is reported.
* Without an event loop, a write waits for a reader, but not for long once the reader has stopped.
* Streams of other programs do not change: `O_NONBLOCK` belongs to the open file, which a shell shares with
  its programs. So the file is opened again, or polled for room before each small piece.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import stat
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, TextIO

import msgspec

from fanfold.language.terminal import visible, visible_json, wrap_line

if TYPE_CHECKING:
    import asyncio

    from fanfold.agents.entries import News
    from fanfold.engine.run_tree import RunTree
    from fanfold.kernel.events import Envelope

_COLOURS = {
    "red": "31;1",
    "green": "32",
    "yellow": "33",
    "blue": "34;1",
    "magenta": "35",
    "cyan": "36",
    "bold": "1",
    "dim": "2",
}


MIN_COLUMNS = 20
MAX_FAILURES = 5
"""Failures that the summary of a run describes."""
_outboxes: dict[int, Outbox | None] = {}
"""Outboxes by file number, for streams that a run must not wait for."""


def print_text(text: str) -> None:
    """Write text to stdout; characters outside its encoding are replaced."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        sys.stdout.write(_shown_in(_encoding_of(sys.stdout), text))


def notify(text: str, stream: TextIO | None = None) -> None:
    """Write a notice to stderr.

    No write blocks or fails: after a closed reader or a full disk, notices are dropped.
    """
    out: TextIO = sys.stderr if stream is None else stream
    if stream is None:
        with suppress(OSError, ValueError):  # the next write to stdout reports it
            sys.stdout.flush()  # both streams may be one file, which keeps their order
    outbox = _outbox_of(out) if _outboxes else None
    try:
        if outbox is not None:
            outbox.put(text.encode(_encoding_of(out), "backslashreplace"))
            return
        out.write(_shown_in(_encoding_of(out), text))
        out.flush()
    except OSError:
        write_nowhere(out)
    except ValueError:
        pass  # it is closed


def wait_for_no_reader(stream: TextIO) -> None:
    """Never block on the reader of this stream from now on."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return  # it is no file
    if number not in _outboxes:
        _outboxes[number] = open_outbox(number)


def is_behind(stream: TextIO) -> bool:
    """Return whether output is pending because its reader is slow."""
    outbox = _outbox_of(stream)
    return outbox is not None and outbox.behind


def flush_notices(stream: TextIO) -> None:
    """Wait at the end of a run until its notices are read, as long as the reader reads."""
    outbox = _outbox_of(stream)
    try:
        if outbox is not None:
            outbox.finish()
    except OSError:
        write_nowhere(stream)


def _outbox_of(stream: TextIO) -> Outbox | None:
    try:
        return _outboxes.get(stream.fileno())
    except (OSError, ValueError):
        return None


def _encoding_of(stream: TextIO) -> str:
    encoding: str | None = stream.encoding  # none at all where it is not a file
    return encoding or "utf-8"


def _shown_in(encoding: str, text: str) -> str:
    return text.encode(encoding, "backslashreplace").decode(encoding)


def write_nowhere(stream: TextIO) -> None:
    """Discard pending and future output of a stream."""
    try:
        _outboxes.pop(stream.fileno(), None)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # not a real file; nothing to flush


def print_result(text: str) -> None:
    """Write a result: exactly in a file or a pipe; on a terminal printable and broken at words."""
    print_text(wrap_text(plain(text)) if sys.stdout.isatty() else text)


def wrap_text(text: str, others: str = "", stream: TextIO | None = None) -> str:
    """Return printable text broken at words to the width of the terminal; unchanged without a terminal."""
    if not (stream or sys.stdout).isatty():
        return text
    columns = max(MIN_COLUMNS, shutil.get_terminal_size().columns)
    return "\n".join(row for line in text.split("\n") for row in wrap_line(line, columns, "", others))


def print_json(document: object) -> None:
    """Write one JSON document and a line break."""
    print_text(f"{to_json(document)}\n")


def to_json(document: object) -> str:
    """Return JSON with non-ASCII characters unescaped and structs as objects."""
    try:
        return visible_json(msgspec.json.encode(document).decode())
    except UnicodeEncodeError:
        # A file name that is not UTF-8 contains lone surrogates, which JSON can only escape.
        return json.dumps(msgspec.to_builtins(document))


def first_lines(lines: Iterable[str], most: int, more: str) -> Iterator[str]:
    """Yield a number of lines, then `more` with the number of the rest."""
    every = list(lines)
    yield from every[:most]
    if len(every) > most:
        yield more.format(len(every) - most)


def plain(text: str) -> str:
    """Return text of several lines without control characters for a terminal."""
    return visible(text, keep="\n\t")


def paint(text: str, colour: str, on: bool) -> str:
    """Return text in a colour, unless colours are off."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if on and text else text


def wants_colour(stream: TextIO, refused: bool) -> bool:
    """Return whether to use colour: only on a terminal, and not with NO_COLOR or --no-color."""
    if refused or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def on_terminal() -> bool:
    """Return whether a user at a terminal can be asked."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


class Progress:
    """The progress display of a run. This base class, for `--quiet`, shows nothing."""

    def update(self, written: Sequence[Envelope], tree: RunTree) -> None:
        """Show new events, and the tree after them."""

    def hear(self, run: str, step: str, news: News) -> None:
        """Show an unrecorded update of a session."""

    def suspend(self) -> None:
        """Remove the display for a question."""

    def resume(self) -> None:
        """Show the display again after a question."""

    def close(self) -> None:
        """End the display."""


# -----------------------------------------------------------------------------------------------------------
# Statuses and times on a terminal.

COLOURS = {
    "completed": "green",
    "failed": "red",
    "timed_out": "red",
    "cancelled": "yellow",
    "waiting": "magenta",
    "retrying": "yellow",
    "interrupted": "yellow",
    "paused": "yellow",
    "skipped": "dim",
    "partial": "yellow",
}


def clock(at: int | str) -> str:
    """Return local time, of milliseconds or of the text in a document.

    The date is included if it is not the day of the first time that this process printed.
    """
    return _clock(at if isinstance(at, str) else at // 1_000)


@lru_cache(maxsize=256)
def _clock(at: int | str) -> str:
    """Return the local time of a second; cached, because a log has many events in one second."""
    point = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at, UTC)
    day, time = point.astimezone().strftime("%Y-%m-%d %H:%M:%S").split()
    return time if day == _today() else f"{day} {time}"


@lru_cache(maxsize=1)
def _today() -> str:
    return datetime.now(UTC).astimezone().strftime("%Y-%m-%d")


# -----------------------------------------------------------------------------------------------------------
# Output during a run: written without blocking

LIMIT = 65_536
CHUNK = 4_096
"""Longer texts are divided at line ends."""
PATIENCE_S = 2.0
"""The time after which a reader that reads nothing counts as gone."""
PIECE = 512
"""The bytes that a writable file accepts without blocking (guaranteed by POSIX for a pipe)."""


def open_outbox(number: int) -> Outbox | None:
    """Return an outbox for a file whose writes can block, else None."""
    try:
        mode = os.fstat(number).st_mode
    except OSError:  # closed
        return None
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number)):
        return None
    try:
        own = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        return Outbox(own, waits=False)
    except OSError:  # a socket, a terminal of another user, no /proc
        return Outbox(number, waits=True)


class Outbox:
    """Pending output to one file. `waits`: whether a write to the file can block."""

    def __init__(self, file: int, *, waits: bool) -> None:
        self._file = file
        self._piece = PIECE if waits else LIMIT
        self._waits = waits
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._begun = False
        """Whether the first piece is partly written."""
        self._patient = True
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that waits until the file is writable."""

    @property
    def behind(self) -> bool:
        """Return whether output is pending."""
        return bool(self._pieces)

    def put(self, content: bytes) -> None:
        """Write as soon as possible; raises the error of the file if it has no reader."""
        # A busy run writes hundreds of lines at once. In pieces, the oldest can be dropped.
        while len(content) > CHUNK and (end := content.rfind(b"\n", 0, CHUNK) + 1):
            self._pieces.append(content[:end])
            self._size += end
            content = content[end:]
        self._pieces.append(content)
        self._size += len(content)
        while self._size > LIMIT and len(self._pieces) > 1 + self._begun:
            first = self._pieces.popleft() if self._begun else None
            gone = self._pieces.popleft()
            self._size -= len(gone)
            self._left_out += gone.count(b"\n")
            if first is not None:
                self._pieces.appendleft(first)
        import asyncio  # most commands drive no run

        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self.finish()
        else:
            self._write()
            if self._pieces:
                self._loop.add_writer(self._file, self._room)

    def finish(self) -> None:
        """Wait until everything is written, as long as the reader reads."""
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
            self._pieces.clear()  # the reader is gone; the next write raises
            self._size, self._begun = 0, False
        if not self._pieces and self._loop is not None:
            self._loop.remove_writer(self._file)

    def _write(self) -> None:
        while self._pieces and (not self._waits or self._has_room(0)):
            first = self._pieces[0]
            if self._left_out and not self._begun:
                first = f"… {self._left_out} lines left out, which were not read in time\n".encode() + first
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
