"""Where children work, as far as sessions have to know.

Rules
* A home is entered before a turn and left after it. After success its changes are brought back and nothing
  of it stays; after anything else it is kept, and the child's next turn goes on in it.
* What happened to a home is evidence, which the child's log gets.
* Nobody's home is gone while somebody works in it: whoever calls these methods sees them to their end.
"""

from __future__ import annotations

from typing import Any, Protocol

from fanfold.kernel.events import Failure
from fanfold.sessions.opened import Settings


class Home(Protocol):
    """Where one child works for a turn, or for several."""

    @property
    def path(self) -> str:
        """The folder for its tools."""
        ...

    @property
    def shown(self) -> str:
        """The folder as the log names it."""
        ...

    async def enter(self) -> None:
        """Be there: found again as it was left, or made. Entering twice changes nothing."""
        ...

    async def bring_back(self) -> Failure | None:
        """Put what changed where it belongs; the failure when it may not or cannot be put there."""
        ...

    async def clear(self) -> None:
        """Leave nothing of it."""
        ...

    async def keep(self, why: str) -> None:
        """Go, and let it stay as it is for the next turn. Never fails: there is a failure already."""
        ...

    def abandon(self) -> None:
        """Go at once, without a word: the history belongs to another process now."""
        ...

    def take_evidence(self) -> list[dict[str, Any]]:
        """What happened since it was last asked."""
        ...


class Housing(Protocol):
    """Gives children their homes."""

    def home_of(self, session_id: str, role: str, settings: Settings) -> Home: ...

    async def clear(self, session_id: str) -> None:
        """Throw away what is kept of a child that will not run again."""
        ...


class Outdoors:
    """No homes: every child works right in the folder that its settings name."""

    def home_of(self, session_id: str, role: str, settings: Settings) -> Home:  # noqa: ARG002 - all are alike
        return _Folder(settings.workspace)

    async def clear(self, session_id: str) -> None:
        """Nothing is kept."""


class _Folder:
    """A folder that is there anyway."""

    def __init__(self, path: str) -> None:
        self.path = self.shown = path

    async def enter(self) -> None:
        """It is there."""

    async def bring_back(self) -> Failure | None:
        return None

    async def clear(self) -> None:
        """It is not ours to clear."""

    async def keep(self, why: str) -> None:
        """It stays."""

    def abandon(self) -> None:
        """There is nothing to let go of."""

    def take_evidence(self) -> list[dict[str, Any]]:
        return []
