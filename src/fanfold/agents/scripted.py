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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import UNSET, structs

from fanfold.agents.backend import Progress, Record, SessionFailed, SessionRequest, SessionResult, ToolFailed
from fanfold.agents.backend_registry import SCRIPTED, BackendSetup
from fanfold.agents.entries import (
    Entry,
    RequestedCall,
    Response,
    ToolCall,
    ToolError,
    ToolResult,
    calling,
    since_last_input,
)
from fanfold.agents.script import Script, ScriptedCall
from fanfold.agents.tools.toolbox import Tools, use, wrong_call
from fanfold.errors import AuthorError
from fanfold.kernel.events import Failure, Usage
from fanfold.language.json_text import JSON, aside

CALLS_VARIABLE = "FANFOLD_SCRIPT_CALLS"


class ScriptedBackend:
    """Answers every session from a script.

    `calls_file` defaults to the file in the environment variable FANFOLD_SCRIPT_CALLS, if it is set.
    """

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
            from fanfold.agents.scripted import make_calls
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


# -----------------------------------------------------------------------------------------------------------
# The tool calls of a scripted answer.
#
# Rules
# * The tools are the real ones. A script can do no more than an agent.
# * A mutating call whose outcome was lost in a crash is not simply repeated. Its outcome is recorded as
#   unknown. The writes of a script define the content of a file, so they are repeated only if the file
#   differs.


async def make_calls(
    calls: Sequence[ScriptedCall], toolbox: Tools, request: SessionRequest, record: Record, progress: Progress
) -> None:
    """Run the remaining calls of an answer, some of which may have run before a crash."""
    turn = since_last_input(request.entries)
    begun = {entry.id for entry in turn if isinstance(entry, ToolCall)}
    ended = {entry.id: entry for entry in turn if isinstance(entry, ToolResult)}
    session = _Calls(toolbox, begun, ended, record, progress)
    try:
        await toolbox.open()
        if not any(isinstance(entry, Response) for entry in turn):
            asked = tuple(RequestedCall(str(i), call.tool, call.args) for i, call in enumerate(calls, 1))
            await record(Response(tool_calls=asked))
        for number, call in enumerate(calls, 1):
            name, known = str(number), ended.get(str(number))
            lost = known is None or known.outcome == "unknown"
            if lost and name in begun and toolbox.mutates(call.tool):
                # A lost call of a mutating tool is recorded as unknown. If it is repeated, it gets a new id.
                if known is None:
                    await record(ToolResult(id=name, tool=call.tool, outcome="unknown"))
                if await session.is_done(call):
                    continue
                name = str(len(calls) + number)
            await session.call(name, call)
    finally:
        await toolbox.aclose()


class _Calls:
    """The tool calls of one answer, some of which may have run before a crash."""

    def __init__(
        self,
        toolbox: Tools,
        begun: set[str],
        ended: Mapping[str, ToolResult],
        record: Record,
        progress: Progress,
    ) -> None:
        self._toolbox = toolbox
        self._begun = begun
        self._ended = ended
        self._record = record
        self._progress = progress

    async def call(self, name: str, call: ScriptedCall) -> None:
        """Run one call and record its result, unless an earlier execution did."""
        known = self._ended.get(name)
        if known is not None and known.error is None:
            return
        problem = await aside(self._wrong_arguments, call)
        if known is not None and problem:
            return  # it got this error and continued
        if problem and name not in self._begun:
            error = ToolError("invalid_args", problem)
            await self._record(ToolResult(id=name, tool=call.tool, error=error))
            return
        mutates = self._toolbox.mutates(call.tool)
        if known is None:
            if mutates and name not in self._begun:
                await self._record(ToolCall(id=name, tool=call.tool, args=call.args))
            self._progress(calling(call.tool, call.args))
        try:
            result = await use(self._toolbox, call.tool, call.args)
        except ToolFailed as failed:
            if known is None:
                error = ToolError(failed.code, failed.message, failed.hint, failed.failure.kind)
                await self._record(ToolResult(id=name, tool=call.tool, error=error))
            if failed.refused or mutates:
                raise
            return
        if known is None:  # else it was refused, and only the failure was lost in the crash
            await self._record(ToolResult(id=name, tool=call.tool, result=result))

    def _wrong_arguments(self, call: ScriptedCall) -> str:
        """Return the problem with the arguments, as for a model; empty for a tool that the role lacks."""
        offered = any(one.name == call.tool for one in self._toolbox.offered())
        return wrong_call(self._toolbox, call.tool, call.args) if offered else ""

    async def is_done(self, call: ScriptedCall) -> bool:
        """Return whether a lost write or delete happened; other calls count as done and stay `unknown`."""
        if call.tool not in ("write_file", "delete_file"):
            return True
        try:
            found = await self._toolbox.call("read_file", {"path": call.args["path"]})
        except ToolFailed:
            return call.tool == "delete_file"
        return call.tool == "write_file" and found["text"] == call.args["content"]
