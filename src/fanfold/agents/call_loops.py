"""Detects agents that call tools without progress.

A call is progress if its tool, arguments and result have not occurred together in this turn of the agent. Two
kinds of calls count neither way: calls of tools that wait for others (`wait_agent` …), and calls whose
arguments a program does not report.

Rules
* The same call with the same result `MAX_REPEATS` times since the last progress, or `MAX_IDLE_CALLS` calls
  without any, is a loop.
* The first loop of a turn is a warning, which the agent reads with the result of its call. The second fails
  the step (`agent.loop`). An agent that is a program cannot be warned: only its second loop has an effect.
* A session that continues after a crash processes its recorded entries again, and so has the same state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET

from fanfold.agents.entries import Entry, Response, ToolCall, ToolResult
from fanfold.kernel.events import Failure

MAX_REPEATS = 5
MAX_IDLE_CALLS = 25
WAITING_TOOLS = ("wait_agent", "workflow_status", "list_agents")
WARNING = (
    "You repeat calls that you made before, with the same results. Nothing changes by repeating them: do"
    " something else, or finish and state what you could not do. If you go on like this, the step fails."
)
NOT_KNOWN = b"null"
Verdict: TypeAlias = Literal["", "warn", "stop"]
_encode = msgspec.json.Encoder(order="sorted").encode


class CallLoops:
    """The calls of one turn of an agent, from its entries."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._arguments: dict[str, bytes] = {}
        self._seen: set[int] = set()
        self._repeats: dict[int, int] = {}
        """How often each call had the same result since the last progress."""
        self._idle = 0
        self._warned = False
        self.tool = ""
        """The tool that was called last."""
        for entry in entries:
            self.observe(entry)

    def observe(self, entry: Entry) -> Verdict:
        """Process the next entry; return the verdict on the call whose result it is."""
        if isinstance(entry, Response):
            self._arguments = {call.id: _encode(call.args) for call in entry.tool_calls}
        elif isinstance(entry, ToolCall):
            self._arguments[entry.id] = _encode(entry.args)
        elif isinstance(entry, ToolResult) and entry.output is UNSET and not entry.complaint:
            return self._judge(entry)
        return ""

    def failure(self) -> Failure:
        """Return the failure of a step whose agent did not stop."""
        message = f"its agent repeated calls of {self.tool} and others without progress, also after a warning"
        hint = "look at its transcript, then change the prompt, its tools or its model"
        return Failure("agent", "agent.loop", message, hint, retryable=False)

    def _judge(self, entry: ToolResult) -> Verdict:
        arguments = self._arguments.get(entry.id, NOT_KNOWN)
        if arguments == NOT_KNOWN or entry.tool.endswith(WAITING_TOOLS):
            return ""
        self.tool = entry.tool
        outcome = _encode((entry.error, None if entry.result is UNSET else entry.result, entry.outcome))
        call = hash((entry.tool, arguments, outcome))
        if call not in self._seen:
            self._seen.add(call)
            self._repeats, self._idle = {call: 1}, 0
            return ""
        self._idle += 1
        self._repeats[call] = self._repeats.get(call, 0) + 1
        if self._repeats[call] < MAX_REPEATS and self._idle < MAX_IDLE_CALLS:
            return ""
        verdict: Verdict = "stop" if self._warned else "warn"
        self._warned, self._repeats, self._idle = True, {}, 0
        return verdict
