"""What somebody says in very many pieces, as one text that has a largest size."""

from __future__ import annotations

MAX_TEXT_CHARS = 1_000_000


class GrowingText:
    """A text that grows; put together when somebody asks for it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = 0

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add(self, text: str, between: str = "") -> None:
        """Put more behind what is there, as far as there is room."""
        more = (between if self._chars else "") + text
        more = more[: MAX_TEXT_CHARS - self._chars]
        if more:
            self._pieces.append(more)
            self._chars += len(more)
