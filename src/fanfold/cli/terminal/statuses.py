"""How statuses and times look on a terminal."""

from __future__ import annotations

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
    from datetime import UTC, datetime

    point = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at / 1_000, UTC)
    return point.astimezone().strftime("%H:%M:%S")
