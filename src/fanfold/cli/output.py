"""The one way in which commands speak: text or JSON on stdout, colour only where it helps.

Text that came from outside (file names, recipe words, what agents and programs say) goes through `plain`
or `text.terminal.one_line`: nothing in it can drive the reader's terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, TextIO

from fanfold.language.terminal import visible, visible_json

if TYPE_CHECKING:
    from fanfold.cli.outbox import Outbox

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


_outboxes: dict[int, Outbox | None] = {}
"""By the number of their file, for streams that a run must not wait for."""


def say(text: str) -> None:
    """Write text to stdout, whatever its encoding can show."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        sys.stdout.write(_shown_in(_encoding_of(sys.stdout), text))


def tell(text: str, stream: TextIO | None = None) -> None:
    """Write what a person should know to stderr.

    Nobody waits for it: a reader that left and a disk that is full are no reason to stop anything. Then it is
    not written, here and later.
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
    """From now on, have no run wait for whoever reads this stream."""
    from fanfold.cli.outbox import open_outbox

    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return  # it is no file
    if number not in _outboxes:
        _outboxes[number] = open_outbox(stream)


def is_behind(stream: TextIO) -> bool:
    """Whether what was told is not all written, since nobody reads as fast."""
    outbox = _outbox_of(stream)
    return outbox is not None and outbox.behind


def finish_telling(stream: TextIO) -> None:
    """A run is over: wait for whoever reads what was told of it, as long as somebody does."""
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
    """Write what somebody may want to keep: exact in a file or a pipe, made visible on a terminal."""
    say(plain(text) if sys.stdout.isatty() else text)


def say_json(document: object) -> None:
    """Write one JSON document and a line break."""
    say(f"{to_json(document)}\n")


def to_json(document: object) -> str:
    """JSON as scripts expect it: non-ASCII as it is, structs as objects."""
    import msgspec

    try:
        return visible_json(msgspec.json.encode(document).decode())
    except UnicodeEncodeError:
        # A file name that is not UTF-8 holds lone surrogates, which only escapes can carry.
        import json

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
    """Whether somebody sits here who can be asked."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


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
    day on which this process first said one.
    """
    return _clock(at if isinstance(at, str) else at // 1_000)


@lru_cache(maxsize=256)
def _clock(at: int | str) -> str:
    """The same of a second: a log has many events in each."""
    from datetime import UTC, datetime

    point = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at, UTC)
    day, time = point.astimezone().strftime("%Y-%m-%d %H:%M:%S").split()
    return time if day == _today() else f"{day} {time}"


@lru_cache(maxsize=1)
def _today() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).astimezone().strftime("%Y-%m-%d")
