"""What a phase gave, as those who judge it or sum it up are shown it: bounded, whatever the phase's size.

Rules
* A prompt has room for so many characters and no more. What does not fit is cut in the open, every cut is
  counted, and the whole output can always be searched (`query_workflow`).
* Pieces keep their order, so that two hosts make the same prompt of the same outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from fanfold.runtime.records.values import Piece
from fanfold.text.excerpts import shorten, shorten_middle

JUDGED_CHARS = 60_000
"""Of a phase's result, for one critic or reviewer."""
MIN_SHARE = 300


class BoundedText(Struct, frozen=True):
    """A text made of pieces, and what of them is not in it."""

    text: str
    left_out: int
    """Characters."""


def show(pieces: Sequence[Piece], limit: int = JUDGED_CHARS) -> BoundedText:
    """Pieces one after the other within a limit; the long ones are cut so that each is seen."""
    whole = sum(len(one.text) for one in pieces)
    if whole <= limit:
        return BoundedText("\n\n".join(f"{one.name}:\n{one.text}" for one in pieces), 0)
    most = max(1, limit // MIN_SHARE)
    seen = pieces[:most]
    share = _share([len(one.text) for one in seen], limit)
    parts = [f"{one.name}:\n{shorten_middle(one.text, share)}" for one in seen]
    shown = sum(min(len(one.text), share) for one in seen)
    if len(seen) < len(pieces):
        parts.append(f"[… {len(pieces) - len(seen)} more outputs are not shown; query_workflow finds them …]")
    return BoundedText("\n\n".join(parts), whole - shown)


def _share(lengths: Sequence[int], limit: int) -> int:
    """The most that any piece may take so that all fit: short ones leave their room to the others."""
    left, share = limit, 0
    for done, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - done)
        if length > share:
            break
        left -= length
    return max(1, share)


def pack(pieces: Sequence[Piece], window: int) -> tuple[list[list[Piece]], int]:
    """Pieces in groups that fit a window each, in order; and how many characters had to be cut for that."""
    groups: list[list[Piece]] = []
    room, left_out = 0, 0
    for one in pieces:
        text = one.text if len(one.text) <= window else shorten_middle(one.text, window)
        left_out += max(0, len(one.text) - window)
        needed = len(one.name) + len(text) + 4
        if not groups or needed > room:
            groups.append([])
            room = window
        groups[-1].append(Piece(one.name, text))
        room -= needed
    return groups, left_out


def extract(pieces: Sequence[Piece], limit: int) -> str:
    """The beginning of each piece, together no longer than `limit`."""
    share = max(40, limit // max(1, len(pieces)))
    lines, used = [], 0
    for number, one in enumerate(pieces):
        line = shorten(f"{one.name}: {' '.join(one.text.split())}", share)
        if used + len(line) > limit:
            lines.append(f"… and {len(pieces) - number} more")
            break
        lines.append(line)
        used += len(line) + 1
    return "\n".join(lines)
