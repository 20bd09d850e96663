"""The messages between us and an agent, line by line, before the protocol's own library sees them.

Rules
* What an agent tells of its work (`session/update`) becomes facts here, from the plain JSON: agents tell more
  kinds of things than any version of the library knows, and what is not known is passed over.
* The library gets requests and answers alone. Lines that are no message never reach it: it would print them.
* What comes behind the answer to a prompt belongs to nobody.
* A question for permission is put into the protocol's form first: what it does not know is no way to say yes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from fanfold.agents.command.events import Called, Delta, Fact, Returned, Said, consumed, decode_line
from fanfold.agents.command.known_calls import short
from fanfold.agents.command.lines import CHUNK_BYTES, LineCutter
from fanfold.agents.confined import AgentProgram
from fanfold.kernel.plan import JSON

UPDATE = "session/update"
PROMPT = "session/prompt"
PERMISSION = "session/request_permission"
TOOL_KINDS = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
KINDS = ("allow_once", "allow_always", "reject_once", "reject_always")
MAX_OPEN_CALLS = 64
_OVER = ("completed", "failed")


class AgentMessages:
    """A transport of the library's, over the pipes of a program.

    `hear` is given each fact, and no more is read before it has taken it; `garbage` is called for each line
    that is no message.
    """

    def __init__(
        self,
        program: AgentProgram,
        hear: Callable[[Fact], Awaitable[None]],
        garbage: Callable[[], None],
    ) -> None:
        self._program = program
        self._hear = hear
        self._garbage = garbage
        self._lines = LineCutter()
        self._ready: list[dict[str, Any]] = []
        self._calls: dict[str, dict[str, JSON]] = {}
        self._asked: Any = None
        self.is_listening = False
        """Whether what is told belongs to this turn; what comes before it is history."""

    async def send(self, message: dict[str, Any]) -> None:
        if message.get("method") == PROMPT:
            self._asked = message.get("id")
        self._program.stdin.write(msgspec.json.encode(message) + b"\n")
        await self._program.stdin.drain()

    async def receive(self) -> dict[str, Any] | None:
        """The next message for the library; None when there is no more."""
        while not self._ready:
            await self._program.stdin.drain()  # who asks and does not listen is not asked for more
            data = await self._program.stdout.read(CHUNK_BYTES)
            if not data:
                return None
            for line in self._lines.add(data):
                if line is None or line.strip():
                    for fact in self._take(line):
                        await self._hear(fact)
            await asyncio.sleep(0)  # others must get a turn, however much is said
        return self._ready.pop(0)

    async def close(self) -> None:
        """The program is ended by who started it."""

    def _take(self, line: bytes | None) -> list[Fact]:
        """What a line tells of the agent's work; what is for the library is kept ready for it."""
        message = decode_line(line or b"")
        if not isinstance(message, dict) or not isinstance(message.get("method", ""), str):
            self._garbage()
            return []
        if message.get("method") != UPDATE:
            self._ready.append(_in_form(message))
            if "method" not in message and self._asked is not None and message.get("id") == self._asked:
                self.is_listening = False
            return []
        params = message.get("params")
        update = params.get("update") if isinstance(params, dict) else None
        return self._facts(update) if isinstance(update, dict) and self.is_listening else []

    def _facts(self, update: Mapping[str, JSON]) -> list[Fact]:
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                return [Said(_text(update.get("content")), str(update.get("messageId") or ""), "", True)]
            case "agent_thought_chunk":
                return [Delta("")]  # a sign of life
            case "tool_call" | "tool_call_update":
                return self._call(update)
            case "usage_update":
                cost = update.get("cost")
                return consumed({"usd": cost.get("amount")}) if isinstance(cost, dict) else []
        return []

    def _call(self, update: Mapping[str, JSON]) -> list[Fact]:
        """A call, put together from what is told of it bit by bit: its arguments may come late."""
        name = short(str(update.get("toolCallId") or ""))
        known = self._calls.pop(name, {})
        known.update({key: value for key, value in update.items() if value not in (None, {}, [], "")})
        if known.get("status") not in _OVER:
            self._calls[name] = known
            while len(self._calls) > MAX_OPEN_CALLS:
                del self._calls[next(iter(self._calls))]
        tool = _tool(known)
        facts: list[Fact] = []
        if known.get("rawInput") is not None or known.get("status") in (*_OVER, "in_progress"):
            facts.append(Called(name, tool, known.get("rawInput")))
        else:
            facts.append(Delta(""))
        if known.get("status") in _OVER:
            text = _text(known.get("content")) or _text(known.get("rawOutput"))
            facts.append(Returned(name, text, known["status"] == "failed", tool, known.get("rawInput")))
        return facts


def _tool(known: Mapping[str, JSON]) -> str:
    """What a tool is called: agents have names of their own beside the kinds of the protocol."""
    meta = known.get("_meta")
    for inner in meta.values() if isinstance(meta, dict) else ():
        if isinstance(inner, dict) and isinstance(inner.get("toolName"), str):
            return str(inner["toolName"])
    return str(known.get("kind") or known.get("title") or "tool")


def _text(content: JSON) -> str:
    """The text of a block, a list of them, or of what a tool put out."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(_text, content)))
    if isinstance(content, dict):
        if content.get("type") == "diff":
            return f"{content.get('path')}: changed"
        inner = content.get("text", content.get("content", content.get("output")))
        return _text(inner) if inner is not None else ""
    return ""


def _in_form(message: dict[str, Any]) -> dict[str, Any]:
    """A message that the library can read: it answers what it cannot, or waits for ever."""
    error = message.get("error")
    if error is not None and not (isinstance(error, dict) and isinstance(error.get("message"), str)):
        return {**message, "error": {"code": -32603, "message": f"an error that says: {error}"[:1_000]}}
    if message.get("method") != PERMISSION:
        return message
    params = message.get("params")
    said = params if isinstance(params, dict) else {}
    options, call = said.get("options"), said.get("toolCall")
    kept = [
        {"optionId": one["optionId"], "kind": one["kind"], "name": str(one.get("name") or one["kind"])}
        for one in (options if isinstance(options, list) else ())
        if isinstance(one, dict) and isinstance(one.get("optionId"), str) and one.get("kind") in KINDS
    ]
    known = call if isinstance(call, dict) else {}
    asked = {
        "toolCallId": str(known.get("toolCallId") or ""),
        **{key: known[key] for key in ("kind", "title") if isinstance(known.get(key), str)},
    }
    if asked.get("kind") not in TOOL_KINDS:
        asked.pop("kind", None)
    session = said.get("sessionId")
    return {**message, "params": {"sessionId": str(session), "toolCall": asked, "options": kept}}
