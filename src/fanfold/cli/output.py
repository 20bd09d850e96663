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
"""By the number of their file, for streams that a run must not wait for."""


def print_text(text: str) -> None:
    """Write text to stdout, whatever its encoding can show."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        sys.stdout.write(_shown_in(_encoding_of(sys.stdout), text))


def notify(text: str, stream: TextIO | None = None) -> None:
    """Write what a person should know to stderr.

    No write waits: a reader that left and a full disk stop nothing. Then nothing is written, here and later.
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
    """From now on, have no run wait for the reader of this stream."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return  # it is no file
    if number not in _outboxes:
        _outboxes[number] = open_outbox(stream)


def is_behind(stream: TextIO) -> bool:
    """Whether some output is not written yet, because its reader is slow."""
    outbox = _outbox_of(stream)
    return outbox is not None and outbox.behind


def flush_notices(stream: TextIO) -> None:
    """Wait at the end of a run for the reader of its notices, as long as it reads."""
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
    """Have what is, and was, written to a stream go nowhere."""
    try:
        _outboxes.pop(stream.fileno(), None)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # it is not a real file; there is nothing left to flush into it


def hand_over(text: str) -> None:
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
    """JSON as scripts expect it: non-ASCII as it is, structs as objects."""
    try:
        return visible_json(msgspec.json.encode(document).decode())
    except UnicodeEncodeError:
        # A file name that is not UTF-8 holds lone surrogates, which only escapes can carry.
        return json.dumps(msgspec.to_builtins(document))


def first_lines(lines: Iterable[str], most: int, more: str) -> Iterator[str]:
    """So many of them, then `more` with how many are left."""
    every = list(lines)
    yield from every[:most]
    if len(every) > most:
        yield more.format(len(every) - most)


def plain(text: str) -> str:
    """Text of several lines without anything a terminal would act on."""
    return visible(text, keep="\n\t")


def paint(text: str, colour: str, on: bool) -> str:
    """Text in a colour, or as it is when colours are off."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if on and text else text


def wants_colour(stream: TextIO, refused: bool) -> bool:
    """Colour only on a terminal, and never against NO_COLOR or --no-color."""
    if refused or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def on_terminal() -> bool:
    """Whether a user at a terminal can be asked."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


class Progress:
    """Shows the progress of a run to a person; this one, of `--quiet`, shows nothing."""

    def update(self, written: Sequence[Envelope], tree: RunTree) -> None:
        """Show events that were just recorded, and the tree after them."""

    def hear(self, run: str, step: str, news: News) -> None:
        """Show what a session does right now; nothing of it is recorded."""

    def suspend(self) -> None:
        """Make room for a question."""

    def resume(self) -> None:
        """Continue after a question."""

    def close(self) -> None:
        """Stop: nothing more will happen."""


# -----------------------------------------------------------------------------------------------------------
# How statuses and times look on a terminal.

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
    """The local time of milliseconds, or of a time as documents have it; with its date where it is not of the
    day on which this process first printed one.
    """
    return _clock(at if isinstance(at, str) else at // 1_000)


@lru_cache(maxsize=256)
def _clock(at: int | str) -> str:
    """The same of a second: a log has many events in each."""
    point = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at, UTC)
    day, time = point.astimezone().strftime("%Y-%m-%d %H:%M:%S").split()
    return time if day == _today() else f"{day} {time}"


@lru_cache(maxsize=1)
def _today() -> str:
    return datetime.now(UTC).astimezone().strftime("%Y-%m-%d")


# -----------------------------------------------------------------------------------------------------------
# Output while a run is driven: written as far as there is a reader, without waiting

LIMIT = 65_536
CHUNK = 4_096
"""Longer texts are divided at line ends."""
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
    except OSError:  # a socket, a terminal of another user, no /proc
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
        """Write this when there is room; raises the error of the file once it has no reader."""
        # A busy run reports hundreds of lines at once: divided, the oldest of them can be left out.
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
        """Wait for the reader, as long as it reads."""
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
            self._pieces.clear()  # the reader left; the next write reports it
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
