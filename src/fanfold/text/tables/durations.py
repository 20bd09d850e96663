"""Durations as recipes write them: `500ms`, `90s`, `5m`, `2h`, or a plain number of seconds."""

from __future__ import annotations

import re

from fanfold.text.patterns import regex

_FORM = regex(r"([0-9]{1,12})(ms|s|m|h)", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_MOST_SECONDS = 10**12
_IN_WORDS = regex(r"([0-9]{1,9}) *([a-z]+)", re.ASCII | re.IGNORECASE)
_UNIT_WORDS = {
    **dict.fromkeys(("millisecond", "milliseconds", "msec", "msecs"), "ms"),
    **dict.fromkeys(("second", "seconds", "sec", "secs"), "s"),
    **dict.fromkeys(("minute", "minutes", "min", "mins"), "m"),
    **dict.fromkeys(("hour", "hours", "hr", "hrs"), "h"),
    **{unit: unit for unit in _UNIT_MS},
}
_DAYS = ("d", "day", "days")


def parse_duration(text: str) -> int | None:
    """Milliseconds, or None when the text is not a duration.

    >>> parse_duration("90s")
    90000
    """
    found = _FORM.fullmatch(text)
    return int(found[1]) * _UNIT_MS[found[2]] if found else None


def meant_duration(text: str) -> str:
    """The duration that people mean by words that are none; empty where nobody can tell.

    >>> meant_duration("5 minutes"), meant_duration("2d"), meant_duration("soon")
    ('5m', '48h', '')
    """
    found = _IN_WORDS.fullmatch(text.strip())
    if found is None:
        return ""
    number, word = found[1], found[2].lower()
    if word in _DAYS:
        return f"{24 * int(number)}h"
    return f"{number}{_UNIT_WORDS[word]}" if word in _UNIT_WORDS else ""


def duration_ms(value: object) -> int | None:
    """Milliseconds that a value of a recipe stands for, or None when it is no duration.

    >>> duration_ms(1.5)
    1500
    """
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST_SECONDS:
        return round(value * 1_000)
    return None
