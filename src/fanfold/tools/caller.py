"""Who calls a tool: in which project, with which permission, and which person can be asked.

Rules
* Tools are for root sessions: a model that a person talks to. No subagent gets them, whatever it was told.
* A question goes to a person, never back to the model: where no person can be asked, the answer is no, and
  the answer says how the person can allow it.
* A call may come in several rounds, each with one more answer of the person. `memory` is what carries over:
  what an earlier round began is not begun again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from msgspec import Struct, field

from fanfold.kernel.plan import JSON
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.starting.options import Options

Report: TypeAlias = Callable[[str], Awaitable[None]]
"""Tells whoever waits for a call that something happened, in a line."""


class Form(Struct, frozen=True, kw_only=True):
    """What a person is asked. `key` names the question within the call; `properties` are JSON Schemas."""

    key: str
    message: str
    properties: dict[str, dict[str, Any]]
    required: tuple[str, ...] = ()


class Filled(Struct, frozen=True):
    """What the person said; None when they sent the question away."""

    values: dict[str, JSON] | None


class Person(Protocol):
    async def fill_in(self, form: Form) -> Filled | None:
        """What the person says; None where nobody can be asked."""
        ...


class CallMemory(Struct):
    """What a call has done so far, for the rounds after this one."""

    run: str = ""
    """The run that it started."""
    misfits: dict[str, list[str]] = field(default_factory=dict)
    """Why answers of the person were not taken, by the question."""


class Caller(Struct, kw_only=True):
    """One call of one session."""

    project: Project
    options: Options
    """What is fixed for whatever the call starts: permission, model, back end."""
    person: Person | None = None
    report: Report | None = None
    memory: CallMemory = field(default_factory=CallMemory)
    open_run: str = ""
    """The open run whose children the session has; empty for those that people start by hand."""
    was_cancelled: Callable[[], bool] = lambda: True
    """Asked when a call is torn down: whether that was asked for, or only the connection was lost."""
    how_to_allow: str = "use a session with --permission auto"
    """What a person can do where nobody could be asked."""

    async def say(self, line: str) -> None:
        if self.report is not None:
            await self.report(line)
