"""Cron expressions with a time zone: five fields, as in crontab(5).

Rules
* Fields are minute, hour, day of month, month, day of week (0 and 7 are Sunday). Each is `*`, a number, a
  name, a range, a list, or one of these with a step. `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`.
* If both days are restricted, either of them is enough.
* A local time that a change of the clocks skips counts as much later as the clocks moved. One that occurs
  twice counts once, the first time.
"""

from __future__ import annotations

import re
from collections import deque
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from msgspec import Struct

from fanfold.errors import AuthorError

_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_DAYS = "sun mon tue wed thu fri sat".split()
_NAMES: dict[str, dict[str, int]] = {
    "month": {name: place for place, name in enumerate(_MONTHS, 1)},
    "day of week": {name: place for place, name in enumerate(_DAYS)},
}
_FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
)
_WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
MAX_DAYS = 366 * 9
"""29 February may be eight years away."""


class Cron(Struct, frozen=True):
    """A parsed expression."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    """Whether day of month and day of week are both restricted."""
    zone: ZoneInfo

    @staticmethod
    @lru_cache(maxsize=256)
    def parse(text: str, timezone: str = "UTC") -> Cron:
        """Parse an expression; raises `AuthorError`.

        >>> Cron.parse("30 3 * * mon-fri").next_after(0) // 60_000
        210
        """
        words = _WORDS.get(text.strip().lower(), text).split()
        if len(words) != len(_FIELDS):
            names = ", ".join(name for name, *_ in _FIELDS)
            raise _bad(text, f"has {len(words)} fields, not five", f"write {names}: 0 3 * * 1-5")
        sets = [_field(text, word, *field) for word, field in zip(words, _FIELDS, strict=True)]
        cron = Cron(
            minutes=tuple(sorted(sets[0])),
            hours=tuple(sorted(sets[1])),
            days=frozenset(sets[2]),
            months=frozenset(sets[3]),
            weekdays=frozenset(day % 7 for day in sets[4]),
            either_day=not words[2].startswith("*") and not words[4].startswith("*"),
            zone=_zone(timezone),
        )
        cron.next_after(0)  # raises for a day that no month has
        return cron

    def next_after(self, at_ms: int) -> int:
        """The first time after a moment, both in milliseconds since the epoch."""
        after = datetime.fromtimestamp(at_ms / 1_000, UTC)
        day = after.astimezone(self.zone).date() - timedelta(days=1)
        for _ in range(MAX_DAYS):
            if self._fits(day):
                found = self._first_on(day, after)
                if found is not None:
                    return int(found.timestamp() * 1_000)
            day += timedelta(days=1)
        raise _bad("the expression", "has no time in the next years", "choose a day that exists")

    def _fits(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either_day else of_month and of_week

    def _first_on(self, day: date, after: datetime) -> datetime | None:
        # Clocks move by at most a few hours, so earlier hours need no look.
        early = after.astimezone(self.zone).replace(tzinfo=None) - timedelta(hours=4)
        for hour in self.hours:
            if datetime.combine(day, time(hour, 59)) < early:
                continue
            for minute in self.minutes:
                moment = datetime.combine(day, time(hour, minute), self.zone).astimezone(UTC)
                if moment > after:
                    return moment
        return None

    def latest(self, after: int, now: int, most: int) -> list[int]:
        """The latest times after one moment, up to and including another, at most so many; oldest first."""
        found: deque[int] = deque(maxlen=most)
        for days in (0.5, 4, 32, 256, MAX_DAYS):  # after a long time only the end is walked through
            found.clear()
            at = begin = max(after, now - int(days * 86_400_000))
            while (at := self.next_after(at)) <= now:
                found.append(at)
            if len(found) == most or begin == after:
                break
        return list(found)

    @staticmethod
    def day_of(at_ms: int, timezone: str) -> date:
        """The day of a moment in a time zone."""
        return datetime.fromtimestamp(at_ms / 1_000, _zone(timezone)).date()


def _field(text: str, word: str, name: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    numbers = word.lower()
    for known, number in _NAMES.get(name, {}).items():
        numbers = re.sub(rf"\b{known}\b", str(number), numbers)
    for part in numbers.split(","):
        matched = re.fullmatch(r"(?a)(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?", part)
        if matched is None:
            raise _bad(text, f"{name} {word!r} cannot be read", "write *, 5, 1-5, 1,3 or */10")
        first, last, step = matched.groups()
        begin = low if first is None else int(first)
        end = high if first is None or (last is None and step) else int(last or first)
        if not low <= begin <= end <= high or step == "0":
            raise _bad(text, f"{name} {word!r} is out of range", f"use numbers from {low} to {high}")
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        hint = "use a name such as Europe/Berlin; a machine without zones needs: pip install tzdata"
        raise AuthorError("schedule.bad_value", f"there is no time zone {name!r}", hint=hint) from None


def _bad(text: str, why: str, hint: str) -> AuthorError:
    return AuthorError("schedule.bad_value", f"--cron {text!r}: {why}", hint=hint)
