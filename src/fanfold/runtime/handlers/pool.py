"""The processes of a run's functions, seen from the run: started when one is needed, kept for the next call.

Rules
* A process answers one call at a time; there are as many as calls run at the same time, and idle ones end
  after a while.
* A call that is given up ends its process with everything that came of it, and returns when nothing is left.
* A process gets the short environment that every program of a run gets, and the variables that the user's
  own configuration names; keys of providers are never among them. It works in the project's folder.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import Callable, Collection

import msgspec

from fanfold.runtime.handlers import worker
from fanfold.runtime.handlers.frames import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    CallFailure,
    FunctionCall,
    FunctionReply,
    Permitted,
    to_frame,
)
from fanfold.runtime.handlers.sources import Sources
from fanfold.sessions.processes import Process, end_tree, start_process
from fanfold.text.json_value import JSON

IDLE_S = 30.0
SAID_CHARS = 500


class FunctionProcesses:
    """Of one run. `session` is the mark by which its processes are found after a crash."""

    def __init__(self, project: str, sources: Sources, session: str, variables: Collection[str] = ()) -> None:
        self._project = project
        self._sources = sources
        self._session = session
        self._variables = variables
        self._idle: list[_FunctionProcess] = []
        self._all: set[_FunctionProcess] = set()

    async def call(self, handler: str, inputs: dict[str, JSON], begin: Callable[[], None]) -> FunctionReply:
        """Call a handler; `begin` is called right before, and may raise what speaks against it."""
        process = self._idle.pop() if self._idle else await self._start()
        process.is_used()
        try:
            begin()
            file = self._sources.handlers.get(handler)
            reply = await process.ask(FunctionCall(handler, file, inputs))
        except BaseException:
            await self._end(process)
            raise
        if reply is None:
            await self._end(process)
            return FunctionReply(error=process.epitaph())
        self._idle.append(process)
        process.rest(lambda: self._tire(process))
        return reply

    async def aclose(self) -> None:
        """End them all; another call would start new ones."""
        self._idle.clear()
        await asyncio.gather(*(self._end(process) for process in list(self._all)))

    async def _start(self) -> _FunctionProcess:
        given = {name: os.environ[name] for name in self._variables if name in os.environ}
        process = await start_process(
            [sys.executable, "-I", worker.__file__, *filter(os.path.isabs, sys.path)],
            cwd=self._project,
            session_id=self._session,
            env=given,
            interactive=True,
        )
        started = _FunctionProcess(process)
        started.tell(Permitted(self._project, self._sources.files))
        self._all.add(started)
        return started

    async def _end(self, process: _FunctionProcess) -> None:
        process.is_used()
        try:
            await process.end()
        finally:
            self._all.discard(process)

    def _tire(self, process: _FunctionProcess) -> None:
        if process in self._idle:
            self._idle.remove(process)
            process.ending = asyncio.create_task(self._end(process))


class _FunctionProcess:
    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._calls: StreamWriter = process.stdin
        self._replies: StreamReader = process.stdout
        self._tired: asyncio.TimerHandle | None = None
        self._status = 0
        self.ending: asyncio.Task[None] | None = None

    def tell(self, message: Permitted | FunctionCall) -> None:
        self._calls.write(to_frame(message))

    async def ask(self, call: FunctionCall) -> FunctionReply | None:
        """What it replies; None when it is no more, or says what no reply is."""
        self.tell(call)
        try:
            size = int.from_bytes(await self._replies.readexactly(HEADER_BYTES), "big")
            if size > MAX_FRAME_BYTES:
                return None
            return msgspec.json.decode(await self._replies.readexactly(size), type=FunctionReply)
        except (IncompleteReadError, ConnectionError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def rest(self, tire: Callable[[], None]) -> None:
        """Nothing to do for now."""
        self._tired = asyncio.get_running_loop().call_later(IDLE_S, tire)

    def is_used(self) -> None:
        if self._tired is not None:
            self._tired.cancel()
            self._tired = None

    async def end(self) -> None:
        await end_tree(self._process)
        self._status = await self._process.wait()

    def epitaph(self) -> CallFailure:
        """Why a process that was not asked to end did so, as far as it is known; after its end."""
        how = f"signal {-self._status}" if self._status < 0 else f"status {self._status}"
        said = self._process.said()[1].strip()[-SAID_CHARS:]
        message = f"the process of the function ended with {how}" + (f": {said}" if said else "")
        return CallFailure("agent", "function.died", message)
