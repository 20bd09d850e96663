"""Points in time and how long things took, as people and scripts read them."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


def when(at: int | None) -> str | None:
    """A point in time as people and scripts read it: ISO 8601 in UTC, milliseconds kept."""
    if not at:
        return None
    second, ms = divmod(at, 1_000)
    return f"{_second(second)}.{ms:03}Z"


@lru_cache(maxsize=256)
def _second(at: int) -> str:
    """A second as ISO 8601 has it: in a log many events share one."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def elapsed_ms(since: str | None, until: str | None = None) -> int | None:
    """What lies between two times of a document, or one of them and now."""
    if since is None:
        return None
    end = datetime.now(UTC) if until is None else datetime.fromisoformat(until)
    return round((end - datetime.fromisoformat(since)).total_seconds() * 1_000)


def duration(ms: int) -> str:
    """How long something took, as short as it can be said.

    >>> duration(34), duration(1234), duration(75_000), duration(3_725_000)
    ('34 ms', '1.2 s', '1 min 15 s', '1 h 2 min')
    """
    if ms < 100:
        return f"{max(0, ms)} ms"
    seconds = ms / 1_000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"
