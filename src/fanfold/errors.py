"""One hierarchy for everything that can go wrong, named by whose fault it is.

* `AuthorError`: the recipe, the flags or the configuration are wrong. The author can fix it.
* `WorldError`: something outside failed or said no (disk, provider, permission, budget).
* `BugError`: Fanfold contradicts itself. Never the user's fault; exit status 70.

Each error carries a stable `code`, a `message` that says what to do, an optional `hint`, JSON-able
`details`, and the `exit_status` the command line ends with.
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
    """Base of every error Fanfold raises on purpose."""

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
        """What a traceback shows below the message."""
        return [*([f"hint: {self.hint}"] if self.hint else ()), *self._notes]

    def add_note(self, note: str) -> None:
        """Have a traceback show this too; the list above is made anew for each look."""
        self._notes.append(note)

    def __reduce__(self) -> tuple[object, ...]:
        """Copied and sent to other processes as it is: `args` alone would not make it again."""
        return _unfilled, (type(self), self.args), self.__dict__


def _unfilled(kind: type[FanfoldError], args: tuple[object, ...]) -> FanfoldError:
    """An error before it is given what it holds."""
    return kind.__new__(kind, *args)


class AuthorError(FanfoldError):
    """What the author wrote cannot be used: a recipe, a flag, a configuration value."""

    fault = "author"
    default_exit_status = EXIT_USAGE


class WorldError(FanfoldError):
    """The outside failed or refused: disk, process, provider, permission, budget."""

    fault = "world"
    default_exit_status = EXIT_FAILED


class NotFoundError(WorldError):
    """A run, step, recipe or role of that name does not exist here."""

    default_exit_status = EXIT_NOT_FOUND


class BugError(FanfoldError):
    """Fanfold broke one of its own rules; please report it."""

    fault = "bug"
    default_exit_status = EXIT_INTERNAL
