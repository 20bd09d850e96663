"""Lists that are given in pieces: the items, and where the next piece begins."""

from __future__ import annotations

from msgspec import Struct

from fanfold.kernel.events import Envelope
from fanfold.runtime.views.runs.rows import RunRow


class RunPage(Struct, frozen=True):
    """Newest first. `next` is the cursor of what follows, None at the end."""

    items: list[RunRow]
    next: str | None


class EventPage(Struct, frozen=True):
    """Events of a tree in the order they happened. `next` and `previous` are the numbers to ask on from."""

    items: list[Envelope]
    next: int | None
    """`after` for the events that follow; None where the log ends for now."""
    previous: int | None
    """`before` for the events that came earlier; None at the first."""
