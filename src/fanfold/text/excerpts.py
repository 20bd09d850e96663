"""What is shown of a text that is too long to be shown whole; what was cut is always marked."""

from __future__ import annotations

CUT = "…"
"""Stands where something was cut; whoever looks for the beginning of a secret looks for this mark too."""


def shorten(text: str, limit: int) -> str:
    """The beginning, in at most `limit` characters.

    >>> shorten("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= limit else text[: max(0, limit - 1)] + CUT


def shorten_line(text: str, limit: int) -> str:
    """The same of a text on one line, every run of white space a single space."""
    return shorten(" ".join(text.split()), limit)


def shorten_start(text: str, limit: int) -> str:
    """The end, in at most `limit` characters.

    >>> shorten_start("abcdef", 4)
    '…def'
    """
    return text if len(text) <= limit else CUT + text[len(text) - max(0, limit - 1) :]


def shorten_middle(text: str, limit: int, tail: float = 1 / 3) -> str:
    """The beginning and the end (`tail` of the limit), and how much is missing between.

    >>> shorten_middle("0123456789", 6)
    '0123\\n[… 4 characters left out …]\\n89'
    """
    if len(text) <= limit:
        return text
    end = int(limit * tail)
    left_out = len(text) - limit
    return f"{text[: limit - end]}\n[… {left_out:,} characters left out …]\n{text[len(text) - end :]}"
