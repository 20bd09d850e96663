"""The meeting point of commands and events: which command an event answers."""

from __future__ import annotations

from fanfold.errors import BugError
from fanfold.kernel.commands import Command
from fanfold.kernel.nodes import State


def unexpected(message: str) -> BugError:
    """An event that contradicts the state: a host's bug or a damaged log, never guessed at."""
    return BugError("kernel.unexpected_event", message)


def take(state: State, shape: type[Command], run: str, step: str = "") -> Command:
    """Take the first command off the agenda; it must be the one this event answers."""
    command = state.agenda[0] if state.agenda else None
    fits = command is not None and type(command) is shape and command.run == run
    if fits and (not step or getattr(command, "step", "") == step):
        return state.agenda.popleft()
    raise unexpected(f"an answer to {shape.__name__} of {step or run} came, but {command} is due")


def require_idle(state: State, what: str) -> None:
    """Reports from outside are weighed one at a time, when everything decided has been answered."""
    if state.agenda:
        raise unexpected(f"{what} came before {state.agenda[0]} was answered")
