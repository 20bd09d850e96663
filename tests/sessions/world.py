"""A project on disk with a real store, and agents that do as they are told."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from fanfold.agents.backend import Backend, Progress, Record, SessionRequest, SessionResult
from fanfold.agents.backend_registry import Backends
from fanfold.agents.entries import Response, UserInput
from fanfold.agents.script import Script, ScriptedBackend
from fanfold.sessions.log import read_entries
from fanfold.sessions.processes import run_process
from fanfold.sessions.supervisor import Supervisor
from fanfold.store.journal import Journal
from fanfold.store.sqlite import SqliteStore
from tests.session_requests import session_request
from tests.work import PATIENCE_S


class Shell:
    """A back end that runs its prompt as a shell command: an agent with real processes."""

    name = "shell"

    async def aclose(self) -> None:
        """Nothing is held."""

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        session = request.session_id
        ended = await run_process(["bash", "-c", request.prompt], cwd="/", session_id=session)
        return SessionResult(output=ended.stdout)


class Gated:
    """A back end whose sessions wait until the test lets them go; it tells who is inside."""

    name = "gated"

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.order: list[str] = []
        self.most = 0
        self.entries: dict[str, list[Any]] = {}
        self._gates: dict[str, asyncio.Event] = {}

    def gate(self, step: str) -> asyncio.Event:
        return self._gates.setdefault(step, asyncio.Event())

    def has(self, step: str) -> bool:
        return step in self.inside

    async def aclose(self) -> None:
        """Nothing is held."""

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        self.inside.append(request.step)
        self.order.append(request.step)
        self.most = max(self.most, len(self.inside))
        self.entries[request.session_id] = list(request.entries)
        try:
            await self.gate(request.step).wait()
            await record(Response(text=request.prompt, output=request.prompt))
        finally:
            self.inside.remove(request.step)
        return SessionResult(output=request.prompt, summary=f"did {request.prompt}")


def _same(backend: Backend) -> Backend:
    return backend


class World:
    """One store, opened again at will as another process would."""

    def __init__(self, folder: Path, script: str = "default: OK from {{step}}") -> None:
        self.folder = folder
        self.store = SqliteStore(folder / ".fanfold", durability="normal")
        self.owner = Journal(self.store, "r1")
        """Where whoever owns the run of these sessions writes."""
        self.gated = Gated()
        self.backends: dict[str, Backend] = {
            "scripted": ScriptedBackend(Script.load(script, "script.yaml"), folder / "calls"),
            "gated": self.gated,
            "shell": Shell(),
        }

    def supervisor(self, **given: Any) -> Supervisor:
        makers = {name: partial(_same, backend) for name, backend in self.backends.items()}
        return Supervisor(Backends(makers), **given)

    def request(self, step: str = "a", **given: Any) -> SessionRequest:
        session = f"s-{step}-{given.get('attempt', 1)}"
        defaults = {"session_id": session, "run_id": "r1", "workspace": str(self.folder), "read_only": True}
        return session_request(**{"step": step, **defaults, **given})

    def kinds(self, session: str) -> list[str]:
        """The kinds of the entries of a session."""
        return [str(entry.__struct_config__.tag) for entry in read_entries(self.store, session)]

    def texts(self, session: str) -> list[str]:
        """What was said in a session."""
        entries = read_entries(self.store, session)
        return [entry.text for entry in entries if isinstance(entry, UserInput | Response)]


def run_in(world: World, story: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a story to its end; nothing may take longer than a minute."""
    try:
        return asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    finally:
        world.store.close()
