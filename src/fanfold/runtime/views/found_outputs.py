"""What a search found, as every surface shows it."""

from __future__ import annotations

from msgspec import Struct


class FoundOutput(Struct, frozen=True):
    """An output that matches, with the words around the match."""

    run_id: str
    path: str
    role: str
    score: float
    excerpt: str


class FoundOutputs(Struct, frozen=True):
    """Best match first."""

    hits: list[FoundOutput]
