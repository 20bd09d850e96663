"""The scripted back end: agents that answer from a script, for tests and demonstrations.

Rules
* It behaves like a paid back end: each answer, tool call and tool result is recorded as it happens. A session
  that runs again after a crash continues after the last recorded entry.
* One line per answered request is appended to `calls_file` in one write. Tests that kill the process use it
  to count the requests to an agent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET, structs

from fanfold.agents.backend import Progress, Record, SessionFailed, SessionRequest, SessionResult
from fanfold.agents.backend_registry import SCRIPTED, BackendSetup
from fanfold.agents.entries import Entry, Response, since_last_input
from fanfold.agents.script import Script
from fanfold.errors import AuthorError
from fanfold.kernel.events import Failure, Usage
from fanfold.language.json_text import JSON

if TYPE_CHECKING:
    from fanfold.agents.tools.toolbox import Tools


CALLS_VARIABLE = "FANFOLD_SCRIPT_CALLS"


class ScriptedBackend:
    """Answers every session from a script; `calls_file` defaults to $FANFOLD_SCRIPT_CALLS."""

    name = SCRIPTED

    def __init__(
        self,
        script: Script,
        calls_file: str | Path | None = None,
        toolbox: Callable[[SessionRequest], Tools] | None = None,
    ) -> None:
        self._script = script
        self._calls_file = calls_file or os.environ.get(CALLS_VARIABLE) or None
        self._toolbox = toolbox

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        turn = since_last_input(request.entries)
        for entry in turn:
            if isinstance(entry, Response) and entry.output is not UNSET:  # it finished before the crash
                return _result(entry.output, entry.usage or Usage(), turn)
        answer = self._script.answer(request.step, request.attempt)
        if self._calls_file is not None:
            line = f"{request.step} {request.attempt} {request.execution}\n".encode()
            handle = os.open(self._calls_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)
        if answer is None:
            message = f"the script has no answer for {request.step}"
            failure = Failure("agent", "script.no_answer", message, self._script.hint(request.step), False)
            raise SessionFailed(structs.replace(failure, step=request.step, attempt=request.attempt))
        if answer.delay_ms:
            await asyncio.sleep(answer.delay_ms / 1_000)
        if answer.calls:
            from fanfold.agents.scripted_calls import make_calls
            from fanfold.agents.tools.toolbox import SessionTools  # it loads every tool

            tools = (self._toolbox or SessionTools)(request)
            await make_calls(answer.calls, tools, request, record, progress)
        if answer.fail is not None:
            failure = structs.replace(answer.fail, step=request.step, attempt=request.attempt)
            raise SessionFailed(failure, answer.usage)
        text = answer.output if isinstance(answer.output, str) else ""
        await record(Response(text=text, usage=answer.usage, output=answer.output), may_wait=True)
        return _result(answer.output, answer.usage, turn)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""


def make(setup: BackendSetup) -> ScriptedBackend:
    """Return the back end with the script of the run; `AuthorError` if there is none."""
    if setup.script is None:
        raise AuthorError(
            "backend.no_script", "scripted agents need a script", hint="give one: --script FILE"
        )
    return ScriptedBackend(Script.load(setup.script, setup.script_file or "script"), toolbox=setup.toolbox)


def _result(output: JSON, usage: Usage, turn: Sequence[Entry]) -> SessionResult:
    trace = {"backend": ScriptedBackend.name, "continued": bool(turn)}
    return SessionResult(output=output, usage=usage, trace=trace)
