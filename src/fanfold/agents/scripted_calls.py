"""The tool calls of a scripted answer.

Rules
* The tools are the real ones. A script can do no more than an agent.
* A mutating call whose outcome was lost in a crash is not simply repeated. Its outcome is recorded as
  unknown. The writes of a script define the content of a file, so they are repeated only if the file differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fanfold.agents.backend import Progress, Record, SessionRequest, ToolFailed
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
from fanfold.agents.script import ScriptedCall
from fanfold.agents.tools.toolbox import SessionTools, Tools, use, wrong_call
from fanfold.language.json_text import aside


async def make_calls(
    calls: Sequence[ScriptedCall],
    toolbox_of: Callable[[SessionRequest], Tools] | None,
    request: SessionRequest,
    record: Record,
    progress: Progress,
) -> None:
    """Run the remaining calls; without `toolbox_of`, only with the tools of the request."""
    toolbox = (toolbox_of or SessionTools)(request)
    session = _Calls(toolbox, since_last_input(request.entries), record, progress)
    try:
        await toolbox.open()
        await session.announce(calls)
        for number, call in enumerate(calls, 1):
            name = await session.next_name(number, call, len(calls))
            if name:
                await session.call(name, call)
    finally:
        await toolbox.aclose()


class _Calls:
    """The tool calls of one answer, some of which may have run before a crash."""

    def __init__(self, toolbox: Tools, turn: Sequence[Entry], record: Record, progress: Progress) -> None:
        self._toolbox = toolbox
        self._record = record
        self._progress = progress
        self._begun = {entry.id for entry in turn if isinstance(entry, ToolCall)}
        self._ended = {entry.id: entry for entry in turn if isinstance(entry, ToolResult)}
        self._asked = any(isinstance(entry, Response) for entry in turn)

    async def announce(self, calls: Sequence[ScriptedCall]) -> None:
        """Record the response that requests the calls, unless an earlier execution did."""
        if not self._asked:
            asked = tuple(RequestedCall(str(i), call.tool, call.args) for i, call in enumerate(calls, 1))
            await self._record(Response(tool_calls=asked))

    async def next_name(self, number: int, call: ScriptedCall, count: int) -> str:
        """Return the id under which a call runs now; empty if a lost call turns out to be done.

        A lost call of a mutating tool is recorded as unknown. If it is repeated, it gets a new id.
        """
        name = str(number)
        known = self._ended.get(name)
        lost = known is None or known.outcome == "unknown"
        if not (lost and name in self._begun and self._toolbox.mutates(call.tool)):
            return name
        if known is None:
            await self._record(ToolResult(id=name, tool=call.tool, outcome="unknown"))
        return "" if await self._is_done(call) else str(count + number)

    async def call(self, name: str, call: ScriptedCall) -> None:
        """Run one call and record its result, unless an earlier execution did."""
        if name in self._ended and self._ended[name].error is None:
            return
        if name in self._ended:  # it was refused, and only the failure was lost in the crash
            await self._fail_again(call)
            return
        if (problem := await aside(self._wrong_arguments, call)) and name not in self._begun:
            error = ToolError("invalid_args", problem)
            await self._record(ToolResult(id=name, tool=call.tool, error=error))
            return
        if self._toolbox.mutates(call.tool) and name not in self._begun:
            await self._record(ToolCall(id=name, tool=call.tool, args=call.args))
        self._progress(calling(call.tool, call.args))
        try:
            result = await use(self._toolbox, call.tool, call.args)
        except ToolFailed as failed:
            error = ToolError(failed.code, failed.message, failed.hint, failed.failure.kind)
            await self._record(ToolResult(id=name, tool=call.tool, error=error))
            if failed.refused or self._toolbox.mutates(call.tool):
                raise
            return
        await self._record(ToolResult(id=name, tool=call.tool, result=result))

    def _wrong_arguments(self, call: ScriptedCall) -> str:
        """Return the problem with the arguments, as for a model; empty for a tool that the role lacks."""
        offered = any(one.name == call.tool for one in self._toolbox.offered())
        return wrong_call(self._toolbox, call.tool, call.args) if offered else ""

    async def _fail_again(self, call: ScriptedCall) -> None:
        if await aside(self._wrong_arguments, call):
            return  # it got this error and continued
        try:
            await use(self._toolbox, call.tool, call.args)
        except ToolFailed as failed:
            if failed.refused or self._toolbox.mutates(call.tool):
                raise

    async def _is_done(self, call: ScriptedCall) -> bool:
        """Return whether a lost write or delete happened; other calls count as done and stay `unknown`."""
        if call.tool not in ("write_file", "delete_file"):
            return True
        try:
            found = await self._toolbox.call("read_file", {"path": call.args["path"]})
        except ToolFailed:
            return call.tool == "delete_file"
        return call.tool == "write_file" and found["text"] == call.args["content"]
