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
    """The local time of day, of milliseconds or of a time as documents have it."""
    return _clock(at if isinstance(at, str) else at // 1_000)


@lru_cache(maxsize=256)
def _clock(at: int | str) -> str:
    """The same of a second: a log has many events in each."""
    from datetime import UTC, datetime

    point = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at, UTC)
    return point.astimezone().strftime("%H:%M:%S")
