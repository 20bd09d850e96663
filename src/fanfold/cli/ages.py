"""Ages and moments as people type them: `90m`, `12h`, `30d`, `8w`, or a date."""

from __future__ import annotations

import re
import time
from datetime import datetime

from fanfold.errors import AuthorError

_AGE = re.compile(r"([0-9]{1,6})(m|h|d|w)", re.ASCII)
_UNIT_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}


def read_age(flag: str, text: str) -> int:
    """Milliseconds."""
    found = _AGE.fullmatch(text)
    if found is None:
        message = f"{flag} {text} is not an age"
        raise AuthorError("usage.bad_value", message, hint="write 90m, 12h, 30d or 8w")
    return int(found[1]) * _UNIT_MS[found[2]]


def read_moment(flag: str, text: str) -> int:
    """Milliseconds since the epoch, of so long ago or of a date (local time, unless it says another)."""
    if _AGE.fullmatch(text):
        return int(time.time() * 1_000) - read_age(flag, text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1_000)
    except (ValueError, OverflowError, OSError):
        message = f"{flag} {text} is neither an age nor a date"
        raise AuthorError("usage.bad_value", message, hint="write 12h, 30d, 2026-01-31 or …T12:00") from None
