"""The one way in which commands speak: text or JSON on stdout, colour only where it helps.

Text that came from outside (file names, recipe words, what agents and programs say) goes through `plain`
or `text.terminal.one_line`: nothing in it can drive the reader's terminal.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from fanfold.text.terminal import visible, visible_json

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
    try:
        out.write(_shown_in(_encoding_of(out), text))
        out.flush()
    except OSError:
        write_nowhere(out)
    except ValueError:
        pass  # it is closed


def _encoding_of(stream: TextIO) -> str:
    encoding: str | None = stream.encoding  # none at all where it is not a file
    return encoding or "utf-8"


def _shown_in(encoding: str, text: str) -> str:
    return text.encode(encoding, "backslashreplace").decode(encoding)


def write_nowhere(stream: TextIO) -> None:
    """Have what is, and was, written to a stream go nowhere."""
    try:
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
