"""Agents that are programs: each runs in the workspace and the sandbox of its session.

The caller that runs the steps gives back ends an `AgentPrograms`. Its implementation knows the sandbox and
how to end the programs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from fanfold.agents.backend import SessionFailed, SessionRequest
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import JSON

NetworkReach: TypeAlias = Literal["none", "provider", "all"]
"""The network access of an agent: none, its provider through a socket in its home, or all."""
FURNISHED = "furnished"
"""A file next to a home, out of the agent's reach: the user's configuration is in the home."""
SOCKET = ".fanfold/provider.sock"
"""The path of that socket below the home."""
FIRST_PROXY_PORT = 47_113
FIRST_OPEN_PORT = 1_024
"""Only the system itself can listen on ports below this one."""


def proxy_port(ports: Collection[int]) -> int:
    """Return the port of the proxy for the socket, on the agent's own loopback.

    `ports` are the other ports in use there.
    """
    return next(port for port in count(FIRST_PROXY_PORT) if port not in ports)


class AgentHome(Struct, frozen=True):
    """The private home of an agent, kept between calls and for sessions that continue it."""

    outside: Path
    inside: Path
    """Its path for the agent."""
    workspace: str
    """The path of the workspace for the agent."""


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

    def said(self) -> str:
        """Return its output on stderr, as far as it was kept."""
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

    async def check_reach(self, network: NetworkReach) -> None:
        """Raise an error if this machine cannot enforce that network access."""
        ...

    async def start(
        self, request: SessionRequest, argv: Sequence[str], confines: SandboxRequest
    ) -> AgentProgram:
        """Start a program in its session's workspace; raises `FanfoldError` or `OSError`."""
        ...


# -----------------------------------------------------------------------------------------------------------
# Tools of an agent, each called by its name.
#
# Rules
# * A toolbox belongs to one session. It knows that session's folder, posture and write-set, and nothing about
#   the run. The caller that runs the session creates the toolbox; an agent only names tools.
# * A tool that cannot do what was requested raises `ToolFailed`. Class `tool` is a result for the agent,
#   which can try something else. `permission` and `violation` are refusals: nothing was changed.
# * `mutates` is true if running a call twice could differ from running it once. Such calls are recorded
#   before they run and never repeated without informing the agent.


class ToolFailed(SessionFailed):
    """A tool call failed; ends the session unless the back end passes the error to the agent."""

    def __init__(self, kind: str, code: str, message: str, hint: str = "") -> None:
        super().__init__(Failure(kind, code, message, hint, retryable=kind == "tool"))

    @property
    def refused(self) -> bool:
        """True if the call was denied, as opposed to impossible."""
        return self.failure.kind in ("permission", "violation")


class Toolbox(Protocol):
    """The tools of one session."""

    def mutates(self, name: str) -> bool:
        """Return whether the tool changes anything; true for unknown tools."""
        ...

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        """Call a tool and return its result as a JSON value; raises `ToolFailed`."""
        ...
