"""What a back end is: whatever does an agent's work, be it a model, a program or a script.

Rules
* A back end runs one session for one attempt of one step. It never starts sessions, never decides
  about retries, timeouts or workspaces, and keeps nothing between sessions.
* Whatever it learns from outside (a model's response, a tool's result) it hands to `record` as it
  arrives. Recorded entries are durable when that returns, and come back as `entries` when the
  session runs again after a crash: what was paid for once is not asked for again.
* It ends by returning a `SessionResult`, by raising `SessionFailed` with the failure's class, or by
  being cancelled; then it must leave nothing running.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct, field

from fanfold.agents.entries import Entry, News
from fanfold.agents.role import Role
from fanfold.errors import WorldError
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.plan import JSON

Progress: TypeAlias = Callable[[News], None]

SUMMARY_CHARS = 600
"""Of a step's output, for the steps that depend on it."""


class Record(Protocol):
    """Remembers an entry."""

    async def __call__(self, entry: Entry, *, may_wait: bool = False) -> None:
        """Return when the entry is durable. What nobody paid for, and nothing but the end of the session
        follows from, may wait for the next commit.
        """
        ...


class SessionFailed(WorldError):
    """The session ended without a result; `failure` says why and whether trying again may help."""

    def __init__(self, failure: Failure, usage: Usage | None = None) -> None:
        super().__init__(failure.code, failure.message, hint=failure.hint)
        self.failure = failure
        self.usage = usage


class SessionRequest(Struct, frozen=True, kw_only=True):
    """Everything a back end needs to do one attempt of one step."""

    session_id: str
    run_id: str
    step: str
    """Tree path of the step (`kids[0]/up`), which scripts answer by."""
    attempt: int
    execution: int
    role: Role
    """Who does it, as far as the step lets it: with the model, turns, tools and posture of this session."""
    prompt: str
    placed: tuple[str, ...] = ()
    """Large texts of other steps that stand in the prompt, in order: they are stored already."""
    max_output_tokens: int | None = None
    """A bound on each response; a text that reaches it is taken as it is, cut."""
    max_micro_usd: int | None = None
    """What is left of a budget in dollars; for agents that can be told to stop there."""
    output_schema: JSON = None
    outputs: tuple[str, ...] = ()
    workspace: str = "."
    read_set: tuple[str, ...] = ()
    write_set: tuple[str, ...] = ()
    root: bool = False
    """Whether a person talks to this session: it may delegate, and start workflows."""
    earlier: Sequence[Entry] = ()
    """The conversation that this session goes on with, recorded by the sessions before it, oldest first."""
    entries: Sequence[Entry] = ()
    """What was recorded so far, oldest first: the earlier conversation, then what an earlier execution of
    this attempt recorded. Empty where the prompt is the first word."""


class SessionResult(Struct, frozen=True, kw_only=True):
    """What a finished session hands back."""

    output: JSON
    summary: str = ""
    """In the agent's own words, where it gives any."""
    usage: Usage = Usage()
    trace: dict[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """`name` is what `--agent-backend` and roles call it."""

    name: str

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        """Run the session to its end."""
        ...

    async def aclose(self) -> None:
        """Let go of connections. Sessions may still come: they make new ones."""
        ...
