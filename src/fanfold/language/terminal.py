"""Safe terminal output for text from a model, a program, a file or a role.

Rules
* Such text is shown, never interpreted. Control characters, escape sequences, direction overrides and
  invisible characters are shown as visible symbols. So no output can move the cursor, hide a line, reverse a
  path or control the terminal.
* Symbols show the original character: `␛` and similar ones for control characters, `<U+202E>` for all others.
* Spaces of every width are shown as a space. A single variation selector is kept (emoji need it), and so are
  a few combining marks on one letter. More of them only hide or smear text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

# -----------------------------------------------------------------------------------------------------------
# Shortening of long texts; every cut is marked.

CUT = "…"
"""The mark of a cut; redaction of cut secrets also searches for this mark."""


def shorten(text: str, limit: int) -> str:
    """Return the start of a text, in at most `limit` characters.

    >>> shorten("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= limit else text[: max(0, limit - 1)] + CUT


def shorten_line(text: str, limit: int) -> str:
    """Return the start of a text on one line, with every run of white space as a single space."""
    return shorten(" ".join(text.split()), limit)


def shorten_start(text: str, limit: int) -> str:
    """Return the end of a text, in at most `limit` characters.

    >>> shorten_start("abcdef", 4)
    '…def'
    """
    return text if len(text) <= limit else CUT + text[len(text) - max(0, limit - 1) :]


def shorten_middle(text: str, limit: int, tail: float = 1 / 3) -> str:
    """Return the start and the end (`tail` of the limit), and how much is missing between.

    >>> shorten_middle("0123456789", 6)
    '0123\\n[… 4 characters left out …]\\n89'
    """
    if len(text) <= limit:
        return text
    end = int(limit * tail)
    left_out = len(text) - limit
    return f"{text[: limit - end]}\n[… {left_out:,} characters left out …]\n{text[len(text) - end :]}"


def fair_shares(lengths: Sequence[int], limit: int, weights: Sequence[int] = ()) -> list[int]:
    """Return each text's share of `limit`, by weight; the unused share of short texts goes to the others.

    >>> fair_shares([10, 500, 500], 210)
    [10, 100, 100]
    """
    weights = weights or [1] * len(lengths)
    shares, left = [0] * len(lengths), limit
    order = sorted(range(len(lengths)), key=lambda one: lengths[one] / weights[one])
    weight = sum(weights)
    for one in order:
        shares[one] = min(lengths[one], left * weights[one] // weight)
        left -= shares[one]
        weight -= weights[one]
    return shares


MIN_BOTH_ENDS = 8
"""Cells; below this, both ends of a name are less useful than its start."""
MAX_CACHED = 4_096
"""Limit of cached characters, because a hostile text may use all that exist."""

# Printable according to Unicode, but invisible: fillers, joiners, selectors, blanks.
_SHAPELESS = (
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0d\uffa0"
    "\U0001d159\U000e0100-\U000e01ef]"
)
_MARKS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_PILED_UP = f"(?<=[{_MARKS}]{{4}})[{_MARKS}]+|(?<=[\ufe0e\ufe0f])[\ufe0e\ufe0f]+"
# Both are compiled on demand, which takes a millisecond and most commands never need.


class _Signs(dict[int, str]):
    """The symbol for each character, computed on demand; characters in `kept` stay unchanged."""

    def __init__(self, sign_of: Callable[[str], str], kept: str) -> None:
        super().__init__({ord(char): char for char in kept})
        self._sign_of = sign_of

    def __missing__(self, code: int) -> str:
        sign = self._sign_of(chr(code))
        if len(self) < MAX_CACHED:
            self[code] = sign
        return sign


def visible(text: str, *, keep: str = "", width: int | None = None) -> str:
    """Return the text in printable form, cut to `width` cells of a terminal; `keep` can have `\\n` and `\\t`.

    >>> visible("a\\x1b[2Jb\\u202ec\\td", keep="\\t")
    'a␛[2Jb<U+202E>c\\td'
    >>> visible("a long story", width=7)
    'a long…'
    """
    if width is not None:
        text = text[: 8 * width + 8]  # more is never visible: marks are few, and symbols are not shorter
    if not (text.isascii() and text.isprintable()):
        if "\r" in text and "\n" in keep:
            text = text.replace("\r\n", "\n")
        text = re.sub(_PILED_UP, "�", text).translate(_signs(_shown, keep))
    return text if width is None else cut_end(text, width)


def one_line(text: str, width: int | None = None) -> str:
    """Return the printable text on one line, where a second line could be mistaken for something else."""
    return visible(" ".join(text.split()), width=width)


def visible_json(text: str) -> str:
    """Return equivalent JSON in which every character that a terminal would interpret is escaped."""
    return text if text.isascii() and text.isprintable() else text.translate(_signs(_escaped, "\n"))


def cells(text: str) -> int:
    """Return how many cells of a terminal the text takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0 if category(char) in ("Mn", "Me") else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def cut_end(text: str, room: int) -> str:
    """Return the start of the text, within so many cells."""
    if cells(text) <= room:
        return text
    while text and cells(text) >= room:
        text = text[: -max(1, (cells(text) - room) // 2)]
    return text + CUT


def wrap_line(line: str, columns: int, first: str = "", others: str = "") -> list[str]:
    """Return a printable line as rows of a terminal, with the prefix `first`, then `others`.

    A row ends after a space of its second half, or where there is no more room.

    >>> wrap_line("a long story of two rows", 16, "- ", "  ")
    ['- a long story ', '  of two rows']
    """
    rows: list[str] = []
    at, before, is_narrow = 0, first, line.isascii()
    while at < len(line) or not rows:
        room = max(MIN_BOTH_ENDS, columns - len(before))
        end = at + room
        if not is_narrow:
            end, used = at, 0
            while end < len(line) and (used := used + cells(line[end])) <= room:
                end += 1
            end = max(end, at + 1)
        if end < len(line):
            space = line.rfind(" ", at + (end - at) // 2, end)
            end = end if space < 0 else space + 1
        rows.append(before + line[at:end])
        at, before = end, others
    return rows


def cut_start(text: str, room: int) -> str:
    """Return the end of the text, within so many cells."""
    if cells(text) <= room:
        return text
    while text and cells(text) >= room:
        text = text[max(1, (cells(text) - room) // 2) :]
    return CUT + text


def cut_name(text: str, room: int) -> str:
    """Return a name within so many cells.

    Words keep their start. A path or an address keeps both ends, because many of them start alike.

    >>> cut_name("src/shop/orders/history/export.py", 20)
    'src/sh…ory/export.py'
    >>> cut_name("fix what the tests say", 12)
    'fix what th…'
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


# -----------------------------------------------------------------------------------------------------------
# The text of an exception from a handler, which can be of any kind and run its own code.

MAX_CHARACTERS = 10_000
MAX_OF_A_GROUP = 5


def exception_text(error: BaseException) -> str:
    """Return type and message of an exception, and of the first members of a group.

    >>> exception_text(ValueError("no such word"))
    'ValueError: no such word'
    >>> exception_text(ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("no"), KeyError("a")]))
    "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions): ValueError: no; KeyError: 'a'"
    """
    text = f"{type(error).__name__}: {exception_message(error)}".removesuffix(": ")
    if not isinstance(error, BaseExceptionGroup):
        return text
    # The group's own message has no details. Groups inside it are replaced by their members.
    members: list[BaseException] = []
    rest: list[BaseException] = [error]
    while rest and len(members) < MAX_OF_A_GROUP:
        first = rest.pop(0)
        if isinstance(first, BaseExceptionGroup):
            rest = [*first.exceptions, *rest]
        else:
            members.append(first)
    return f"{text}: {'; '.join(map(exception_text, members))}"[:MAX_CHARACTERS]


def exception_message(error: BaseException) -> str:
    """Return the message of an exception, as text that a frame and a log can store."""
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - the author of an exception can write any `__str__`
        message = "(its message cannot be read)"
    return message.encode("utf-8", "backslashreplace").decode()[:MAX_CHARACTERS]
