"""The interface of back ends; a back end does an agent's work with a model, a program or a script.

Rules
* A back end runs one session for one attempt of one step. It never starts sessions, never decides about
  retries, timeouts or workspaces, and keeps no state between sessions.
* It passes every external result (a model's response, a tool's result) to `record` as it arrives. An entry is
  durable when `record` returns. After a crash, the entries are in `entries`, so that paid requests are not
  repeated.
* It ends by returning a `SessionResult`, by raising `SessionFailed` with the failure's class, or by being
  cancelled. Then it must leave nothing running.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct, field

from fanfold.agents.entries import Entry, News
from fanfold.agents.role import Role
from fanfold.agents.spending import UNLIMITED, Account
from fanfold.errors import WorldError
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.plan import JSON

Progress: TypeAlias = Callable[[News], None]

SUMMARY_CHARS = 600
"""Maximum length of the summary of a step's output, for the steps that depend on it."""


class Record(Protocol):
    """Stores an entry of a session."""

    async def __call__(self, entry: Entry, *, may_wait: bool = False) -> None:
        """Return when the entry is durable.

        With `may_wait`, the entry may wait for the next commit. Use it for entries that cost nothing and are
        followed only by the end of the session.
        """
        ...


class SessionFailed(WorldError):
    """The session ended without a result; `failure` has the reason and whether a retry may help."""

    def __init__(self, failure: Failure, usage: Usage | None = None) -> None:
        super().__init__(failure.code, failure.message, hint=failure.hint)
        self.failure = failure
        self.usage = usage


class SessionRequest(Struct, frozen=True, kw_only=True):
    """Everything a back end needs to do one attempt of one step."""

    session_id: str
    run_id: str
    step: str
    """Tree path of the step (`kids[0]/up`); scripts choose their replies by it."""
    attempt: int
    execution: int
    role: Role
    """The role with the model, turns, tools and posture that the step allows in this session."""
    prompt: str
    placed: tuple[str, ...] = ()
    """Large texts of other steps that the prompt contains, in order. They are already stored."""
    max_output_tokens: int | None = None
    """A limit for each response. A text that reaches the limit is accepted as it was cut."""
    account: Account = UNLIMITED
    """The spending limits; checked before each request to a model."""
    output_schema: JSON = None
    outputs: tuple[str, ...] = ()
    workspace: str = "."
    folder: str = ""
    """The working folder as the commands of the session see it; empty: the workspace."""
    read_set: tuple[str, ...] = ()
    write_set: tuple[str, ...] = ()
    strays: Callable[[], Awaitable[str]] | None = None
    """Returns the changes so far that are not allowed, as a correction for the agent; empty: none."""
    probe: bool = False
    """Whether this session is the first after an outage. Its first request is not retried, and its failure is
    expected."""
    root: bool = False
    """Whether a person talks to this session. Such a session can delegate and start workflows."""
    earlier: Sequence[Entry] = ()
    """The conversation that this session continues, recorded by earlier sessions, oldest first."""
    entries: Sequence[Entry] = ()
    """The recorded entries, oldest first: the earlier conversation, then the entries of an earlier execution
    of this attempt. Empty if the session starts with the prompt."""

    def described(self, folder: str = "") -> str:
        """Return the role's instructions, followed by the limits of this session."""
        from fanfold.agents.instructions import with_limits

        where = folder or self.folder or self.workspace
        return with_limits(self.role, folder=where, write_set=self.write_set, lead=self.root)


class SessionResult(Struct, frozen=True, kw_only=True):
    """The result of a finished session."""

    output: JSON
    summary: str = ""
    """The agent's own summary, if it wrote one."""
    usage: Usage = Usage()
    trace: dict[str, Any] = field(default_factory=dict)
    denied: dict[str, str] = field(default_factory=dict)
    """Tools that were denied and did not work later, with the reason. The supervisor sets it."""


class Backend(Protocol):
    """The interface of a back end; `name` is its name in `--agent-backend` and in roles.

    A back end whose sessions share a provider or a login also has `subject(role)`, see `subject_of`.
    """

    name: str

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        """Run the session to its end."""
        ...

    async def aclose(self) -> None:
        """Close the connections. Later sessions open new ones."""
        ...


def is_cancelled() -> bool:
    """Return whether the running task was asked to stop.

    If not, a CancelledError leaked from a scope inside a library. It means that the connection broke.
    """
    import asyncio

    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def subject_of(backend: Backend, role: Role) -> str:
    """Return the shared dependency of a role's sessions, as in `Failure.subject`; empty: none."""
    names: Callable[[Role], str] | None = getattr(backend, "subject", None)
    return "" if names is None else names(role)
