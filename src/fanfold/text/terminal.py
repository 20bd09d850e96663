"""The one way to a terminal for text that a model, a program, a file or a role supplied.

Rules
* Such text is shown, never obeyed. Control characters, escape sequences, overrides of the writing direction
  and whatever has no shape of its own come out as visible signs, so nobody's output can move the cursor, hide
  a line, reverse a path or drive the reader's terminal.
* Signs say what was there: `␛` and its like for control characters, `<U+202E>` for all others.
* Spaces of every width are shown as a space. A single variation selector stays (emoji need it), and so do a
  few combining marks on one letter; more of them serve only to hide or to smear.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from fanfold.text.excerpts import CUT

MIN_BOTH_ENDS = 8
"""Cells; below, both ends of a name would say less than its beginning."""
MAX_CACHED = 4_096
"""Of characters whose sign is remembered; a hostile text may use every one there is."""

# Printable by Unicode's word, yet without a shape: fillers, joiners, selectors, blanks.
_SHAPELESS = (
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0d\uffa0"
    "\U0001d159\U000e0100-\U000e01ef]"
)
_MARKS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_PILED_UP = f"(?<=[{_MARKS}]{{4}})[{_MARKS}]+|(?<=[\ufe0e\ufe0f])[\ufe0e\ufe0f]+"
# Both are compiled when they are first needed, which most commands never do: it takes a millisecond.


class _Signs(dict[int, str]):
    """What stands for each character, found when it is first met; those in `kept` stand for themselves."""

    def __init__(self, sign_of: Callable[[str], str], kept: str) -> None:
        super().__init__({ord(char): char for char in kept})
        self._sign_of = sign_of

    def __missing__(self, code: int) -> str:
        sign = self._sign_of(chr(code))
        if len(self) < MAX_CACHED:
            self[code] = sign
        return sign


def visible(text: str, *, keep: str = "", width: int | None = None) -> str:
    """The text as it may be printed, cut to `width` cells of a terminal; `keep` may name `\\n` and `\\t`.

    >>> visible("a\\x1b[2Jb\\u202ec\\td", keep="\\t")
    'a␛[2Jb<U+202E>c\\td'
    >>> visible("a long story", width=7)
    'a long…'
    """
    if width is not None:
        text = text[: 8 * width + 8]  # more cannot come into view: marks are few and signs only grow
    if not (text.isascii() and text.isprintable()):
        if "\r" in text and "\n" in keep:
            text = text.replace("\r\n", "\n")
        text = re.sub(_PILED_UP, "�", text).translate(_signs(_shown, keep))
    return text if width is None else cut_end(text, width)


def one_line(text: str, width: int | None = None) -> str:
    """The same on one line, for where a second one would look like something else."""
    return visible(" ".join(text.split()), width=width)


def visible_json(text: str) -> str:
    """JSON that means the same, with every character escaped that a terminal would act on."""
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_signs(_escaped, "\n"))


def cells(text: str) -> int:
    """How many cells of a terminal the text takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0 if category(char) in ("Mn", "Me") else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def cut_end(text: str, room: int) -> str:
    """The beginning of the text, within so many cells."""
    if cells(text) <= room:
        return text
    while text and cells(text) >= room:
        text = text[: -max(1, (cells(text) - room) // 2)]
    return text + CUT


def cut_start(text: str, room: int) -> str:
    """The end of the text, within so many cells."""
    if cells(text) <= room:
        return text
    while text and cells(text) >= room:
        text = text[max(1, (cells(text) - room) // 2) :]
    return CUT + text


def cut_name(text: str, room: int) -> str:
    """What something is called, within so many cells: words keep their beginning, a path or an address both
    its ends, since many of them begin alike.

    >>> cut_name("src/shop/orders/history/export.py", 20)
    'src/sh…ory/export.py'
    >>> cut_name("mend what the tests say", 12)
    'mend what t…'
    """
    if cells(text) <= room or " " in text or room < MIN_BOTH_ENDS:
        return cut_end(text, room)
    end = cut_start(text, room - room // 3)
    return cut_end(text, room - cells(end) + 1)[: -len(CUT)] + end


_signs = cache(_Signs)


def _is_visible(char: str) -> bool:
    return char.isprintable() and not re.match(_SHAPELESS, char)


def _shown(char: str) -> str:
    code = ord(char)
    if _is_visible(char):
        return char
    if code <= 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    from unicodedata import category

    return " " if category(char) == "Zs" else f"<U+{code:04X}>"


def _escaped(char: str) -> str:
    code = ord(char)
    if _is_visible(char):
        return char
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
