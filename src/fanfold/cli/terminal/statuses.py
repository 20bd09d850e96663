"""How statuses and times look on a terminal."""

from __future__ import annotations

from functools import lru_cache

COLOURS = {
    "completed": "green",
    "failed": "red",
    "timed_out": "red",
    "cancelled": "yellow",
    "waiting": "magenta",
    "retrying": "yellow",
    "interrupted": "yellow",
    "paused": "yellow",
    "skipped": "dim",
    "partial": "yellow",
}


def clock(at: int | str) -> str:
    """The local time of milliseconds, or of a time as documents have it; with its date where it is not of the
    day on which this process first said one.
    """
    return _clock(at if isinstance(at, str) else at // 1_000)


@lru_cache(maxsize=256)
def _clock(at: int | str) -> str:
    """The same of a second: a log has many events in each."""
    from datetime import UTC, datetime

    point = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at, UTC)
    day, time = point.astimezone().strftime("%Y-%m-%d %H:%M:%S").split()
    return time if day == _today() else f"{day} {time}"


@lru_cache(maxsize=1)
def _today() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).astimezone().strftime("%Y-%m-%d")
