"""Durations as recipes write them: `500ms`, `90s`, `5m`, `2h`, or a plain number of seconds."""

from __future__ import annotations

import re

_FORM = re.compile(r"([0-9]{1,12})(ms|s|m|h)", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_MOST_SECONDS = 10**12


def parse_duration(text: str) -> int | None:
    """Milliseconds, or None when the text is not a duration.

    >>> parse_duration("90s")
    90000
    """
    found = _FORM.fullmatch(text)
    return int(found[1]) * _UNIT_MS[found[2]] if found else None


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
