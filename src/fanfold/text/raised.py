"""What a handler raised, in words: it may raise anything, and asking what it says runs its code again."""

from __future__ import annotations

MAX_CHARACTERS = 10_000
MAX_OF_A_GROUP = 5


def said(raised: BaseException) -> str:
    """Its kind and its words.

    >>> said(ValueError("no such word"))
    'ValueError: no such word'
    >>> said(ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("no"), KeyError("a")]))
    "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions): ValueError: no; KeyError: 'a'"
    """
    told = f"{type(raised).__name__}: {words_of(raised)}".removesuffix(": ")
    if isinstance(raised, BaseExceptionGroup):  # its own words say nothing of what happened
        inside = "; ".join(map(said, _members(raised)))
        told = f"{told}: {inside}"[:MAX_CHARACTERS]
    return told


def _members(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The first exceptions of a group that are no groups themselves."""
    found: list[BaseException] = []
    rest: list[BaseException] = [group]
    while rest and len(found) < MAX_OF_A_GROUP:
        one = rest.pop(0)
        if isinstance(one, BaseExceptionGroup):
            rest = [*one.exceptions, *rest]
        else:
            found.append(one)
    return found


def words_of(raised: BaseException) -> str:
    """Its words, as text that a frame and a log can hold."""
    try:
        words = str(raised)
    except BaseException:  # noqa: BLE001 - whoever wrote it may have written that, too
        words = "(it cannot say)"
    return words.encode("utf-8", "backslashreplace").decode()[:MAX_CHARACTERS]
