"""Usage limits of agents that are programs: whether a limit was reached, and when it resets.

Rules
* Data from the program (a `limited` fact) comes first. Without it, the program's output is compared with the
  patterns of its profile. Each pattern has the date on which that output was seen.
* A time without a date is its next occurrence, in the time zone of this machine unless a zone is named. A
  time that passed a moment ago is due: the limit was reached just as it reset. A time with minutes means the
  end of that minute.
* A limit without a readable reset time pauses the run. A time further away than `MAX_AHEAD` is ignored.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from fanfold.agents.command.profile import Profile

MAX_AHEAD = timedelta(days=40)
JUST_PASSED = timedelta(minutes=10)
MAX_WORDS_CHARS = 200
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_SPAN = r"(?i)(\d+(?:\.\d+)?)\s*(d|h|m(?!s)|s)[a-z]*"
_CLOCK = r"(?i)\b(\d{1,2})(?::(\d{2}))?\s*([ap])\.?m\b|\b(\d{1,2}):(\d{2})\b"
_DATE = rf"(?i)\b({'|'.join(_MONTHS)})[a-z]*\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(\d{{4}}))?"
_DAY = rf"(?i)\b({'|'.join(_DAYS)})[a-z]*\b"
_SHIFT = r"\b(?:GMT|UTC)([+-]\d{1,2})\b"
_ZONE = r"\(([A-Za-z_]+(?:/[A-Za-z_+\-0-9]+)*)\)"


def limit_in(profile: Profile, texts: Iterable[str]) -> tuple[bool, int]:
    """Return whether a program reports a usage limit, and when the limit resets; 0 if unknown."""
    for text in texts:
        for limit in profile.limits:
            found = re.search(limit.pattern, text[:4_000], re.IGNORECASE | re.DOTALL)
            if found is not None:
                words = found.groupdict().get("when") or ""
                return True, reset_at(words) if words else 0
    return False, 0


def reset_at(said: object, now: float | None = None, zone: tzinfo | None = None) -> int:
    """Return the reset time that a program reports, in milliseconds since the epoch; 0 if there is none.

    >>> at = datetime(2026, 11, 18, 20, 0, tzinfo=UTC).timestamp()
    >>> datetime.fromtimestamp(reset_at("9pm", at, UTC) / 1_000, UTC).isoformat()
    '2026-11-18T21:00:00+00:00'
    >>> datetime.fromtimestamp(reset_at("Mon 9am (UTC)", at) / 1_000, UTC).isoformat()
    '2026-11-23T09:00:00+00:00'
    >>> reset_at(1795040000, at), reset_at("soon")
    (1795040000000, 0)
    """
    here = datetime.fromtimestamp(time.time() if now is None else now, zone).astimezone(zone)
    try:
        if isinstance(said, int | float) and not isinstance(said, bool):
            return _bounded(_from_number(said), here)
        words = str(said).strip()[:MAX_WORDS_CHARS]
        return _bounded(_from_number(int(words)) if words.isdecimal() else _from_words(words, here), here)
    except (ValueError, OverflowError):  # a day that does not exist, or a duration beyond the calendar
        return 0


def _from_number(number: float) -> datetime | None:
    seconds = number / 1_000 if number > 10**11 else number
    return datetime.fromtimestamp(seconds, UTC) if 10**9 < seconds < 10**10 else None


def _from_words(words: str, here: datetime) -> datetime | None:
    shifted = re.search(_SHIFT, words)
    if shifted is not None:
        here = here.astimezone(timezone(timedelta(hours=int(shifted[1]))))
    named = re.search(_ZONE, words)
    if named is not None and (zone := _zone(named[1])) is not None:
        here = here.astimezone(zone)
    clock = re.search(_CLOCK, words)
    if clock is None:
        spans = re.findall(_SPAN, words)
        seconds = sum(float(count) * _UNITS[unit.lower()] for count, unit in spans)
        return here + timedelta(seconds=seconds) if spans else None
    hour, minute = int(clock[1] or clock[4]), int(clock[2] or clock[5] or 0)
    if clock[3]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if clock[3].lower() == "p" else 0)
    if hour > 23 or minute > 59:
        return None
    named_s = 0 if clock[2] is None and clock[5] is None else 59
    at = here.replace(hour=hour, minute=minute, second=named_s, microsecond=0)
    date, day = re.search(_DATE, words), re.search(_DAY, words)
    if date is not None:
        return _on_date(at, date, here)
    if day is not None:
        at += timedelta(days=(_DAYS.index(day[1].lower()) - at.weekday()) % 7)
    if at < here - JUST_PASSED:
        at += timedelta(days=7 if day is not None else 1)
    return at


def _on_date(at: datetime, date: re.Match[str], here: datetime) -> datetime:
    month = _MONTHS.index(date[1].lower()) + 1
    at = at.replace(month=month, day=int(date[2]), year=int(date[3] or at.year))
    return at if date[3] or at >= here - JUST_PASSED else at.replace(year=at.year + 1)


def _zone(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    try:
        return UTC if name.upper() in ("UTC", "GMT") else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def _bounded(at: datetime | None, here: datetime) -> int:
    if at is None or not here - timedelta(days=1) < at < here + MAX_AHEAD:
        return 0
    return int(at.timestamp() * 1_000)
