"""The tool calls of a scripted answer.

Rules
* The tools are the real ones. A script can do no more than an agent.
* A mutating call whose outcome was lost in a crash is not simply repeated. Its outcome is recorded as
  unknown. The writes of a script define the content of a file, so they are repeated only if the file differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fanfold.agents.backend import Progress, Record, SessionRequest, ToolFailed
from fanfold.agents.entries import (
    RequestedCall,
    Response,
    ToolCall,
    ToolError,
    ToolResult,
    calling,
    since_last_input,
)
from fanfold.agents.script import ScriptedCall
from fanfold.agents.tools.toolbox import Tools, use, wrong_call
from fanfold.language.json_text import aside


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
