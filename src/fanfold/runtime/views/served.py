"""Where a project is served, as whoever started it is told."""

from __future__ import annotations

from msgspec import Struct


class Served(Struct, frozen=True):
    """`link` lets a browser in, and is shown this once; None where only configured tokens count."""

    url: str
    link: str | None
    taken_over: list[str]
    """Runs whose process had died, and which go on."""
