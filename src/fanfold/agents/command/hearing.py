"""What is heard of a program while it works, put down as the entries of a session.

Rules
* A message of its model with the calls it asks for is one response, recorded when the first of them came back
  or the next message begins. What its tools gave back is recorded as it arrives.
* GrowingText that are shown live are news; what is recorded is the whole.
* A program may say as much as it likes: what is kept of one text, of one call and of all of them is bounded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct, structs

from fanfold.agents.backend import Progress
from fanfold.agents.command.events import (
    Began,
    Called,
    Consumed,
    Delta,
    Denied,
    Fact,
    Hitch,
    Returned,
    Said,
    TurnEnd,
)
from fanfold.agents.command.growing_text import GrowingText
from fanfold.agents.command.known_calls import KnownCall, short
from fanfold.agents.command.verdict import CallEnd
from fanfold.agents.entries import (
    Entry,
    RequestedCall,
    Response,
    Retrying,
    Spent,
    TextDelta,
    ToolError,
    ToolResult,
    calling,
)
from fanfold.kernel.events import Usage
from fanfold.kernel.plan import JSON
from fanfold.text.excerpts import shorten_line, shorten_middle

MAX_RESULT_CHARS = 32_000
MAX_ARGUMENT_BYTES = 64_000
MAX_DEPTH = 40
MAX_ENTRIES = 5_000
MAX_CALLS = 64
"""Of one message; where there are more it is put down as several."""
MAX_KEPT_BYTES = 64 * 1024 * 1024
NOT_KEPT = "[… from here on it said and did more than is kept; how it ended is below …]"
MAX_DELTA_CHARS = 4_000


class _Message(Struct):
    """What the model is saying at the moment."""

    words: GrowingText
    id: str = ""
    calls: list[RequestedCall] = []


class Hearing:
    """One call of a program, from its first word to its last."""

    def __init__(
        self,
        record: Callable[[Entry], Awaitable[None]],
        progress: Progress,
        clean: Callable[[str], str],
        model: str = "",
    ) -> None:
        """`clean` takes secrets out of what is shown live; what is recorded is cleaned by `record`."""
        self.ending = CallEnd()
        self.began: Began | None = None
        self.model = model
        self.spent: Usage | None = None
        self.is_in_trouble = False
        """Nothing but errors since it last got on."""
        self.has_worked = False
        self._got_on = False
        """It worked since it last said that its turn is over: one that failed is over until then."""
        self._record = record
        self._progress = progress
        self._clean = clean
        self._message = _Message(GrowingText())
        self._entries = 0
        self._room = MAX_KEPT_BYTES
        self._is_full = False

    async def hear(self, fact: Fact) -> None:
        """Take one fact."""
        match fact:
            case Began():
                known = self.began
                if known is None or not known.conversation:
                    self.began = structs.replace(
                        fact, version=fact.version or (known.version if known else "")
                    )
                self.model = fact.model or self.model
                return
            case Hitch():
                self.ending.trouble(fact)
                self.is_in_trouble = True
                self._progress(Retrying("transport", 0.0))
                return
            case Consumed():
                self.spent = fact.usage if self.spent is None else (self.spent + fact.usage).bounded()
                self._progress(Spent(self.spent.tokens))
                return
            case Denied():
                self.ending.calls.deny(fact.id, fact.tool)
                return
            case TurnEnd():
                said = self.ending.finished
                if said is None or not said.failed or fact.failed or self._got_on:
                    self.ending.finished = fact
                self._got_on = False
                return
            case Delta():
                self._progress(TextDelta(self._clean(fact.text[:MAX_DELTA_CHARS])))
            case Said():
                await self._said(fact)
            case Called():
                await self._called(fact)
            case Returned():
                await self._returned(fact)
        self.is_in_trouble = False
        self.has_worked = self._got_on = True

    def stir(self) -> None:
        """It says something that is no fact, or no fact yet: it lives."""
        self._progress(TextDelta(""))

    @property
    def text(self) -> str:
        """What it said last."""
        finished = self.ending.finished
        if finished is not None and finished.text is not None:
            return finished.text
        return self.ending.words.text

    async def close(self, last: Response | None = None) -> None:
        """Put down what is left; `last` ends the session, or the turn, and stands for the last message."""
        left, self._message = self._message, _Message(GrowingText())
        text = left.words.text
        if last is not None:
            same = not text or text.strip() in (last.text.strip(), self.text.strip())
            if not same:
                await self._record(Response(model=self.model, text=text))
            await self._record(structs.replace(last, tool_calls=tuple(left.calls), model=self.model))
        elif text or left.calls:
            await self._record(Response(model=self.model, text=text, tool_calls=tuple(left.calls)))

    # ------------------------------------------------------------------------------------- a message

    async def _said(self, fact: Said) -> None:
        self.model = fact.model or self.model
        if fact.message != self._message.id or (self._message.calls and not fact.message):
            await self._flush()
        message = self._message
        message.id = fact.message
        if fact.text:
            message.words.add(fact.text, "" if fact.delta else "\n")
            self.ending.words = message.words
            self._progress(TextDelta(self._clean(fact.text[:MAX_DELTA_CHARS])))

    async def _called(self, fact: Called) -> KnownCall:
        known = self.ending.calls.find(fact.id)
        if known is not None:
            return known
        other = fact.message and self._message.id and fact.message != self._message.id
        if other or len(self._message.calls) >= MAX_CALLS:
            await self._flush()
        if fact.message:
            self._message.id = fact.message
        known = self.ending.calls.begin(fact.id, fact.tool)
        args = _bounded(fact.args)
        self._message.calls.append(RequestedCall(short(fact.id), known.tool, args))
        self._progress(calling(known.tool, fact.args, self._clean))
        return known

    async def _returned(self, fact: Returned) -> None:
        # Some tell of a call only when it is over.
        known = await self._called(Called(fact.id, fact.tool or "tool", fact.args))
        if known.returned:
            return
        await self._flush()
        self.ending.calls.come_back(known, failed=fact.failed)
        name, text = short(fact.id), shorten_middle(fact.text, MAX_RESULT_CHARS)
        if fact.failed:
            error = ToolError("tool.failed", shorten_line(text, MAX_RESULT_CHARS))
            await self._note(ToolResult(id=name, tool=known.tool, error=error))
        else:
            await self._note(ToolResult(id=name, tool=known.tool, result=text))

    async def _flush(self) -> None:
        message, self._message = self._message, _Message(GrowingText())
        text = message.words.text
        if text or message.calls:
            await self._note(Response(model=self.model, text=text, tool_calls=tuple(message.calls)))

    async def _note(self, entry: Entry) -> None:
        if self._is_full:
            return
        self._entries += 1
        self._room -= len(msgspec.json.encode(entry))
        self._is_full = self._entries > MAX_ENTRIES or self._room < 0
        await self._record(Response(model=self.model, text=NOT_KEPT) if self._is_full else entry)


def _bounded(args: JSON) -> JSON:
    """Arguments as they may be recorded: bounded in size and depth."""
    try:
        text = msgspec.json.encode(args)
    except (TypeError, ValueError, RecursionError):
        return None
    if len(text) <= MAX_ARGUMENT_BYTES and not _is_deep(args):
        return args
    return shorten_middle(text.decode(), MAX_ARGUMENT_BYTES)


def _is_deep(value: JSON, depth: int = 0) -> bool:
    if depth > MAX_DEPTH:
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_is_deep(one, depth + 1) for one in inner)
