"""What a handler raised, in words: it may raise anything, and asking what it says runs its code again."""

from __future__ import annotations

MAX_CHARACTERS = 10_000


def said(raised: BaseException) -> str:
    """Its kind and its words.

    >>> said(ValueError("no such word"))
    'ValueError: no such word'
    """
    return f"{type(raised).__name__}: {words_of(raised)}".removesuffix(": ")


def words_of(raised: BaseException) -> str:
    """Its words, as text that a frame and a log can hold."""
    try:
        words = str(raised)
    except BaseException:  # noqa: BLE001 - whoever wrote it may have written that, too
        words = "(it cannot say)"
    return words.encode("utf-8", "backslashreplace").decode()[:MAX_CHARACTERS]
