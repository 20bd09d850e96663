"""Programs that are agents, as a back end starts them: each in the workspace and the sandbox of its session.

Whoever runs the steps gives back ends an `AgentPrograms`; what is behind it knows the sandbox, and how to end
what it started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from fanfold.agents.backend import SessionRequest

NetworkReach: TypeAlias = Literal["none", "provider", "all"]
"""What an agent may reach: nobody, its provider through a socket in its home, everybody."""
FURNISHED = "furnished"
"""Beside a home, where no agent can reach it: that the user's configuration is in it."""
SOCKET = ".fanfold/provider.sock"
"""Where that socket is, below the home."""
FIRST_PROXY_PORT = 47_113
FIRST_OPEN_PORT = 1_024
"""Below it nobody may listen who is not the system's own."""


def proxy_port(ports: Collection[int]) -> int:
    """Where the agent finds a proxy that leads to the socket, on a loopback of its own; `ports` are those
    that it finds there besides.
    """
    return next(port for port in count(FIRST_PROXY_PORT) if port not in ports)


class AgentHome(Struct, frozen=True):
    """The private home of an agent: kept from one call of its session to the next, then for who goes on."""

    outside: Path
    inside: Path
    """Where it is for the agent."""
    workspace: str
    """Where the agent finds what it works on."""


class Confines(Struct, frozen=True, kw_only=True):
    """What an agent gets beyond its workspace."""

    home: AgentHome
    variables: Mapping[str, str] = {}
    named: frozenset[str] = frozenset()
    """Those of the variables that are secrets the user named for this very agent."""
    network: NetworkReach = "none"
    covered: tuple[str, ...] = ()
    """What of the project it is not to see, since it would obey it."""
    ports: tuple[int, ...] = ()
    """With `provider`: ports of this machine's loopback that it finds on its own."""


class AgentProgram(Protocol):
    """A program that runs."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader

    def said(self) -> str:
        """What it wrote to stderr, as far as it was kept."""
        ...

    async def wait(self) -> int:
        """Wait until it and all it started are gone; its exit code."""
        ...

    async def end(self) -> None:
        """End it with all it started; returns when nothing is left."""
        ...


class AgentPrograms(Protocol):
    """Starts agents for the sessions of one run."""

    async def home_of(self, request: SessionRequest, earlier: str = "") -> AgentHome:
        """The home of a session, made where there is none; a copy of `earlier`'s where one is named."""
        ...

    @property
    def environment_for(self) -> Callable[[SessionRequest], Mapping[str, str]]:
        """Of our environment, what servers of a session's role may be given where they name it."""
        ...

    async def check_reach(self, network: NetworkReach) -> None:
        """Raise where this machine cannot keep an agent to that."""
        ...

    async def start(self, request: SessionRequest, argv: Sequence[str], confines: Confines) -> AgentProgram:
        """Start a program in its session's workspace; raises `FanfoldError` or `OSError`."""
        ...
