"""The hierarchy of all Fanfold errors, by the party at fault.

* `AuthorError`: the recipe, the flags or the configuration are wrong. The author can fix it.
* `WorldError`: something outside Fanfold failed or refused (disk, provider, permission, budget).
* `BugError`: Fanfold contradicts itself. Never the user's fault; exit status 70.

Each error has a stable `code`, a `message` that explains what to do, an optional `hint`, JSON-serializable
`details`, and the `exit_status` of the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_WAITING = 3
EXIT_PERMISSION = 4
EXIT_BUDGET = 5
EXIT_NOT_FOUND = 6
EXIT_CANCELLED = 7
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130


class FanfoldError(Exception):
    """Base class of all errors that Fanfold raises deliberately."""

    fault: ClassVar[str] = "world"
    default_exit_status: ClassVar[int] = EXIT_FAILED

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str = "",
        details: Mapping[str, object] | None = None,
        exit_status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.details: dict[str, object] = dict(details or {})
        self.exit_status = self.default_exit_status if exit_status is None else exit_status
        self._notes: list[str] = []

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # a hint may still change
        """The lines that a traceback shows below the message."""
        return [*([f"hint: {self.hint}"] if self.hint else ()), *self._notes]

    def add_note(self, note: str) -> None:
        """Add a line to tracebacks. Needed because `__notes__` returns a new list each time."""
        self._notes.append(note)

    def __reduce__(self) -> tuple[object, ...]:
        """Support copy and pickle with all attributes; `args` alone cannot recreate the error."""
        return _unfilled, (type(self), self.args), self.__dict__


def _unfilled(kind: type[FanfoldError], args: tuple[object, ...]) -> FanfoldError:
    """Create an error without calling `__init__`; unpickling then sets its attributes."""
    return kind.__new__(kind, *args)


class AuthorError(FanfoldError):
    """An invalid recipe, flag or configuration value."""

    fault = "author"
    default_exit_status = EXIT_USAGE


class WorldError(FanfoldError):
    """Something outside Fanfold failed or refused: disk, process, provider, permission, budget."""

    fault = "world"
    default_exit_status = EXIT_FAILED


class NotFoundError(WorldError):
    """No run, step, recipe or role of that name exists here."""

    default_exit_status = EXIT_NOT_FOUND


class BugError(FanfoldError):
    """Fanfold broke one of its own rules; please report it."""

    fault = "bug"
    default_exit_status = EXIT_INTERNAL
