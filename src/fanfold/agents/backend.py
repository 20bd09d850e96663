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

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from msgspec import Struct, field

from fanfold.agents.entries import Entry, News, SavedTree
from fanfold.agents.instructions import with_limits
from fanfold.agents.role import Role
from fanfold.agents.spending import UNLIMITED, Account
from fanfold.agents.tool_names import ROOT_TOOLS, ToolSpec
from fanfold.errors import FanfoldError, WorldError
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.plan import JSON
from fanfold.language.json_text import misfits, with_text_only

if TYPE_CHECKING:
    import asyncio

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


TRACE: ContextVar[str] = ContextVar("fanfold.traceparent", default="")
"""The W3C trace context of the step that runs in this task; empty if telemetry is off."""


class SentText(Struct, frozen=True):
    """A text of a person for a running step, as the log of the run has it."""

    text: str
    by: str
    call: str = ""
    """The call of `ask_user` that it answers; empty for a message."""


def no_texts() -> Sequence[SentText]:
    """The texts for a step that no person writes to."""
    return ()


class UserQuestion(Struct, frozen=True):
    """A question of an agent. Its step waits until a person answers, and then continues."""

    question: str
    show: str
    call: str
    """The call of `ask_user`."""


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
    save_files: Callable[[], Awaitable[SavedTree | None]] | None = None
    """Stores the files of the session after a mutating call, for another machine that may continue it."""
    texts: Callable[[], Sequence[SentText]] = no_texts
    """Returns the texts that people sent to the step so far, in order."""
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
        where = folder or self.folder or self.workspace
        return with_limits(self.role, folder=where, write_set=self.write_set, lead=self.root)


class SessionResult(Struct, frozen=True, kw_only=True):
    """The result of a finished session."""

    output: JSON
    summary: str = ""
    """The agent's own summary, if it wrote one."""
    usage: Usage = Usage()
    trace: dict[str, Any] = field(default_factory=dict)
    asks: UserQuestion | None = None
    """Set if the agent needs an answer of a person: the session has not finished."""
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


_importer: list[Any] = []
_imported: set[str] = set()


async def import_in_thread(modules: Iterable[str]) -> None:
    """Import heavy modules in a thread, so that other sessions continue meanwhile.

    It is always the same thread, because circular imports fail if two threads start at once.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor
    from importlib import import_module

    missing = sorted(set(modules) - _imported)  # a module in `sys.modules` may still be loading
    if not missing:
        return
    if not _importer:
        _importer.append(ThreadPoolExecutor(1, thread_name_prefix="fanfold-imports"))

    def import_all() -> None:
        for module in missing:
            import_module(module)
            _imported.add(module)

    await asyncio.get_running_loop().run_in_executor(_importer[0], import_all)


def subject_of(backend: Backend, role: Role) -> str:
    """Return the shared dependency of a role's sessions, as in `Failure.subject`; empty: none."""
    names: Callable[[Role], str] | None = getattr(backend, "subject", None)
    return "" if names is None else names(role)


# -----------------------------------------------------------------------------------------------------------
# Agents that are programs: each runs in the workspace and the sandbox of its session.
#
# The caller that runs the steps gives back ends an `AgentPrograms`. Its implementation knows the sandbox and
# how to end the programs.

NetworkReach: TypeAlias = Literal["none", "provider", "all"]
"""The network access of an agent: none, its provider through a socket in its home, or all."""
FURNISHED = "furnished"
"""A file next to a home, out of the agent's reach: the user's configuration is in the home."""
SOCKET = ".fanfold/provider.sock"
"""The path of that socket below the home."""
GATE = "gate"
"""A file next to a home, out of the agent's reach, if the proxy has a port: the port and a secret."""
FIRST_PROXY_PORT = 47_113
FIRST_OPEN_PORT = 1_024
"""Only the system itself can listen on ports below this one."""


def proxy_port(ports: Collection[int]) -> int:
    """Return the port of the proxy on the agent's own loopback; `ports` are the others in use there."""
    return next(port for port in count(FIRST_PROXY_PORT) if port not in ports)


class AgentHome(Struct, frozen=True):
    """The private home of an agent, kept between calls and for sessions that continue it."""

    outside: Path
    inside: Path
    """Its path for the agent."""
    workspace: str
    """The path of the workspace for the agent."""
    own_network: bool = True
    """Whether the agent has a loopback of its own; otherwise the proxy needs a port of this machine's."""


class SandboxRequest(Struct, frozen=True, kw_only=True):
    """The resources of an agent beyond its workspace."""

    home: AgentHome
    variables: Mapping[str, str] = {}
    named: frozenset[str] = frozenset()
    """The variables that are secrets which the user named for this agent."""
    network: NetworkReach = "none"
    covered: tuple[str, ...] = ()
    """Files of the project that are hidden from the agent, because it would obey them."""
    ports: tuple[int, ...] = ()
    """With `provider`: ports of this machine's loopback that the agent can reach on its own loopback."""


class AgentProgram(Protocol):
    """A running program."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader

    def stderr_text(self) -> str:
        """Return its output on stderr, as far as it was kept."""
        ...

    def stderr_after(self, position: int) -> tuple[bytes, int]:
        """Return its output on stderr after a position, as far as it was kept, and the new position."""
        ...

    async def wait(self) -> int:
        """Wait until it and its child processes have ended; return its exit code."""
        ...

    async def end(self) -> None:
        """End it with all its child processes; return when nothing is left."""
        ...

    def check_started(self) -> None:
        """After its end: raise `WorldError` or `OSError` if the sandbox never executed it."""
        ...


class AgentPrograms(Protocol):
    """Starts agents for the sessions of one run."""

    async def home_of(self, request: SessionRequest, earlier: str = "") -> AgentHome:
        """Return the home of a session, created if missing; with `earlier`, copied from that session."""
        ...

    @property
    def environment_for(self) -> Callable[[SessionRequest], Mapping[str, str]]:
        """Returns those of our environment variables that the servers of a session's role can name."""
        ...

    async def reach_here(self, network: NetworkReach) -> NetworkReach:
        """Return the access that is enforced here; raises if it is wider and the user did not accept that."""
        ...

    async def start(
        self, request: SessionRequest, argv: Sequence[str], confines: SandboxRequest
    ) -> AgentProgram:
        """Start a program in its session's workspace; raises `FanfoldError` or `OSError`."""
        ...


class ToolFailed(SessionFailed):
    """A tool call failed; ends the session unless the back end passes the error to the agent."""

    def __init__(self, kind: str, code: str, message: str, hint: str = "") -> None:
        super().__init__(Failure(kind, code, message, hint, retryable=kind == "tool"))

    @property
    def refused(self) -> bool:
        """True if the call was denied, as opposed to impossible."""
        return self.failure.kind in ("permission", "violation")


# -----------------------------------------------------------------------------------------------------------
# The tools of a session, and how an agent's calls reach them

MAX_CRASH_CHARS = 400
_log = logging.getLogger(__name__)


class Tools(Protocol):
    """The tools of one session, which are offered to its agent.

    Rules
    * A toolbox knows its session's folder, posture and write-set, and nothing about the run. The caller that
      runs the session creates it; an agent only names tools.
    * A tool that cannot do what was requested raises `ToolFailed`. Class `tool` is a result for the agent,
      which can try something else. `permission` and `violation` are refusals: nothing was changed.
    """

    async def open(self) -> None:
        """Prepare the tools; raise `SessionFailed` if a tool that the role names is unavailable."""
        ...

    async def aclose(self) -> None:
        """Release everything that `open` started, even if it failed. Nothing is left when this returns."""
        ...

    def offered(self) -> Sequence[ToolSpec]:
        """Return the tools of this session, always in the same order."""
        ...

    def mutates(self, name: str) -> bool:
        """Return whether running a call twice could differ from running it once; true for unknown tools."""
        ...

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        """Call a tool and return its result as a JSON value; raises `ToolFailed`."""
        ...


class ToolsAround:
    """Wraps other tools unchanged; subclasses add behavior before or after a call."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def open(self) -> None:
        await self._tools.open()

    async def aclose(self) -> None:
        await self._tools.aclose()

    def offered(self) -> Sequence[ToolSpec]:
        return self._tools.offered()

    def mutates(self, name: str) -> bool:
        return self._tools.mutates(name)

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        return await self._tools.call(name, args)


def wrong_call(tools: Tools, name: str, args: JSON) -> str:
    """Return the problem with a call before it runs: an unknown tool or invalid arguments; empty if none."""
    offered = {tool.name: tool for tool in tools.offered()}
    if name not in offered and name in ROOT_TOOLS:
        return ""  # the tool exists, and the call reports who can use it
    if name not in offered:
        return f'there is no tool "{name}" here; there are {", ".join(offered) or "none"}'
    if not isinstance(args, dict):
        return "the arguments are not a JSON object"
    return misfits(offered[name].schema, args)


async def use(tools: Tools, name: str, args: Mapping[str, Any]) -> JSON:
    """Call a tool for an agent; any error inside it becomes a `ToolFailed`."""
    try:
        return with_text_only(await tools.call(name, args))  # a result can contain file names
    except FanfoldError:
        raise
    except Exception as error:
        _log.exception("the tool %s crashed", name)
        message = f"{name} broke: {type(error).__name__}: {str(error)[:MAX_CRASH_CHARS]}"
        raise ToolFailed("tool", "tool.crashed", message, "try it with other arguments") from error
