"""The scripted back end: agents that say and do what a file tells them, for tests and demonstrations.

Rules
* It behaves like a back end that pays for what it gets: each answer, tool call and tool result is recorded
  as it happens, and a session that runs again after a crash goes on behind what was recorded.
* Tools are the real ones. A script can do no more than an agent could.
* A call that changes something and whose outcome the crash swallowed is not repeated blindly: its outcome
  is recorded as unknown, and since a script's writes say what a file shall hold, it then looks and acts
  only when the file differs.
* One line per answered request goes to `calls_file`, appended in one write, so that tests which kill the
  process can count on disk how often an agent was asked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import UNSET

from fanfold.agents.backend import Progress, Record, SessionFailed, SessionRequest, SessionResult
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
from fanfold.agents.scripts.answer import ScriptedCall
from fanfold.agents.scripts.script import Script
from fanfold.agents.toolbox import ToolFailed
from fanfold.agents.toolbox.catalogue import SessionTools, Tools, use, wrong_call
from fanfold.errors import AuthorError
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.plan import JSON

CALLS_VARIABLE = "FANFOLD_SCRIPT_CALLS"


class ScriptedBackend:
    """Answers every session from a script.

    `calls_file` defaults to the file that the environment variable FANFOLD_SCRIPT_CALLS names, if any.
    """

    name = SCRIPTED

    def __init__(
        self,
        script: Script,
        calls_file: str | Path | None = None,
        toolbox: Callable[[SessionRequest], Tools] = SessionTools.of,
    ) -> None:
        self._script = script
        self._calls_file = calls_file or os.environ.get(CALLS_VARIABLE) or None
        self._toolbox = toolbox

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        turn = since_last_input(request.entries)
        for entry in turn:
            if isinstance(entry, Response) and entry.output is not UNSET:  # all was said before the crash
                return _result(entry.output, entry.usage or Usage(), turn)
        answer = self._script.answer(request.step, request.attempt)
        self._count(request)
        if answer is None:
            raise SessionFailed(_no_answer(self._script, request))
        if answer.delay_ms:
            await asyncio.sleep(answer.delay_ms / 1_000)
        if answer.calls:
            toolbox = self._toolbox(request)
            try:
                await toolbox.open()
                await _Calls(toolbox, turn, record, progress).carry_out(answer.calls)
            finally:
                await toolbox.aclose()
        if answer.fail is not None:
            failure = msgspec.structs.replace(answer.fail, step=request.step, attempt=request.attempt)
            raise SessionFailed(failure, answer.usage)
        text = answer.output if isinstance(answer.output, str) else ""
        await record(Response(text=text, usage=answer.usage, output=answer.output), may_wait=True)
        return _result(answer.output, answer.usage, turn)

    async def aclose(self) -> None:
        """Nothing is held."""

    def _count(self, request: SessionRequest) -> None:
        if self._calls_file is None:
            return
        line = f"{request.step} {request.attempt} {request.execution}\n".encode()
        handle = os.open(self._calls_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)


def make(setup: BackendSetup) -> ScriptedBackend:
    """With the script of the run; `AuthorError` when it has none."""
    if setup.script is None:
        raise AuthorError(
            "backend.no_script", "scripted agents need a script", hint="give one: --script FILE"
        )
    return ScriptedBackend(Script.load(setup.script, setup.script_file or "script"), toolbox=setup.toolbox)


class _Calls:
    """The tool calls of one answer, some of which may have been made before a crash."""

    def __init__(self, toolbox: Tools, turn: Sequence[Entry], record: Record, progress: Progress) -> None:
        self._toolbox = toolbox
        self._record = record
        self._progress = progress
        self._begun = {entry.id for entry in turn if isinstance(entry, ToolCall)}
        self._ended = {entry.id: entry for entry in turn if isinstance(entry, ToolResult)}
        self._asked = any(isinstance(entry, Response) for entry in turn)

    async def carry_out(self, calls: Sequence[ScriptedCall]) -> None:
        if not self._asked:
            asked = tuple(RequestedCall(str(i), call.tool, call.args) for i, call in enumerate(calls, 1))
            await self._record(Response(tool_calls=asked))
        for i, call in enumerate(calls, 1):
            name = str(i)
            known = self._ended.get(name)
            lost = known is None or known.outcome == "unknown"
            if lost and name in self._begun and self._toolbox.mutates(call.tool):
                if known is None:
                    await self._record(ToolResult(id=name, tool=call.tool, outcome="unknown"))
                if not await self._is_done(call):
                    await self._call(str(len(calls) + i), call)
            else:
                await self._call(name, call)

    async def _call(self, name: str, call: ScriptedCall) -> None:
        if name in self._ended and self._ended[name].error is None:
            return
        if name in self._ended:  # it was refused, and the crash swallowed only what came of that
            await self._fail_again(call)
            return
        if (problem := self._wrong_arguments(call)) and name not in self._begun:
            error = ToolError("invalid_args", problem)
            await self._record(ToolResult(id=name, tool=call.tool, error=error))
            return
        if self._toolbox.mutates(call.tool) and name not in self._begun:
            await self._record(ToolCall(id=name, tool=call.tool, args=call.args))
        self._progress(calling(call.tool, call.args))
        try:
            result = await use(self._toolbox, call.tool, call.args)
        except ToolFailed as failed:
            error = ToolError(failed.code, failed.message, failed.hint)
            await self._record(ToolResult(id=name, tool=call.tool, error=error))
            if failed.refused or self._toolbox.mutates(call.tool):
                raise
            return
        await self._record(ToolResult(id=name, tool=call.tool, result=result))

    def _wrong_arguments(self, call: ScriptedCall) -> str:
        """As a model is told; a script that names a tool which its role does not have is refused instead."""
        offered = any(one.name == call.tool for one in self._toolbox.offered())
        return wrong_call(self._toolbox, call.tool, call.args) if offered else ""

    async def _fail_again(self, call: ScriptedCall) -> None:
        if self._wrong_arguments(call):
            return  # it was told so, and went on
        try:
            await use(self._toolbox, call.tool, call.args)
        except ToolFailed as failed:
            if failed.refused or self._toolbox.mutates(call.tool):
                raise

    async def _is_done(self, call: ScriptedCall) -> bool:
        """Whether a write or delete that may have happened did; other calls are left at `unknown`."""
        if call.tool not in ("write_file", "delete_file"):
            return True
        try:
            found = await self._toolbox.call("read_file", {"path": call.args["path"]})
        except ToolFailed:
            return call.tool == "delete_file"
        return call.tool == "write_file" and found["text"] == call.args["content"]


def _result(output: JSON, usage: Usage, turn: Sequence[Entry]) -> SessionResult:
    trace = {"backend": ScriptedBackend.name, "continued": bool(turn)}
    return SessionResult(output=output, usage=usage, trace=trace)


def _no_answer(script: Script, request: SessionRequest) -> Failure:
    return Failure(
        "agent",
        "script.no_answer",
        f"the script has no answer for {request.step}",
        script.hint(request.step),
        retryable=False,
        step=request.step,
        attempt=request.attempt,
    )
