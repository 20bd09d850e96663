"""Recording of a program's output as the entries of a session.

Rules
* A message of its model with the requested calls is one response. It is recorded when the first call returns
  or the next message starts. Results of tools are recorded as they arrive.
* Parts of a text are shown live. Only the whole text is recorded.
* A program can produce any amount of output. The recorded size of one text, of one call and of the whole is
  limited.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from fanfold.agents.backend import AgentProgram, Progress, SessionFailed, SessionRequest
from fanfold.agents.command.calls import ProgramCall, Turn
from fanfold.agents.command.events import (
    ConversationStart,
    Delta,
    DenialEvent,
    Fact,
    Hitch,
    LimitEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    TurnEnd,
    UsageEvent,
    limit_in,
    read_line,
)
from fanfold.agents.command.profile import Profile
from fanfold.agents.command.provider_gate import ProviderGate
from fanfold.agents.command.transcript_events import (
    MAX_TEXT_CHARS,
    CallEnd,
    GrowingText,
    KnownCall,
    short,
    sort_of,
)
from fanfold.agents.entries import (
    CallLoops,
    Entry,
    FailedRequest,
    RequestedCall,
    Response,
    TextDelta,
    ToolError,
    ToolResult,
    UsageUpdate,
    calling,
)
from fanfold.agents.spending import OpenRequest
from fanfold.kernel.events import NOTHING_SPENT, Usage
from fanfold.kernel.plan import JSON
from fanfold.language.json_text import read_json
from fanfold.language.terminal import shorten_line, shorten_middle, shorten_start
from fanfold.workspace.beneath import PathProblem, open_regular, resolve

MAX_RESULT_CHARS = 32_000
MAX_ARGUMENT_BYTES = 64_000
MAX_DEPTH = 40
MAX_ENTRIES = 5_000
MAX_CALLS = 64
"""Maximum number of calls in one message; a message with more is recorded as several."""
MAX_KEPT_BYTES = 64 * 1024 * 1024
NOT_KEPT = "[… its later messages and calls are not kept; its end is below …]"
MAX_DELTA_CHARS = 4_000
MAX_HITCH_CHARS = 500


class _Message(Struct):
    """The current message of the model."""

    words: GrowingText
    id: str = ""
    calls: list[RequestedCall] = []


class TranscriptRecorder:
    """Records one call of a program, from its first output to its last."""

    def __init__(
        self,
        record: Callable[[Entry], Awaitable[None]],
        progress: Progress,
        clean: Callable[[str], str],
        model: str = "",
        count: Callable[[Usage], Usage | None] = lambda usage: usage,
        request: OpenRequest | None = None,
    ) -> None:
        """Create a recorder.

        `clean` removes secrets from live output; `record` cleans the entries. `count` returns the cost of the
        call so far from the usage that the program reports; None: the cost is known only at the end.
        """
        self._count = count
        self._request = request
        self._by_message: dict[str, Usage] = {}
        self._recorded = NOTHING_SPENT
        self.ending = CallEnd()
        self.began: ConversationStart | None = None
        self.model = model
        self.spent: Usage | None = None
        self.is_in_trouble = False
        """Whether only errors arrived since its last progress."""
        self._hitches = 0
        """Number of these errors."""
        self.has_worked = False
        self.heard = 0
        """Number of facts that show progress."""
        self._got_on = False
        """Whether it worked since it last reported the end of a turn. Without progress, a failed end stays
        failed."""
        self._record_raw = record
        self._loops = CallLoops()
        self._progress = progress
        self._clean = clean
        self._message = _Message(GrowingText())
        self._entries = 0
        self._room = MAX_KEPT_BYTES
        self._is_full = False

    async def hear(self, fact: Fact) -> None:
        """Process one fact."""
        match fact:
            case ConversationStart():
                known = self.began
                if known is None or not known.conversation:
                    self.began = structs.replace(
                        fact, version=fact.version or (known.version if known else "")
                    )
                self.model = fact.model or self.model
                return
            case Hitch():
                self.ending.trouble(fact)
                self._hitches = self._hitches + 1 if self.is_in_trouble else 1
                self.is_in_trouble = True
                kind = sort_of(fact.text, fact.status) or "transport"
                message = shorten_line(fact.text, MAX_HITCH_CHARS)
                failed = FailedRequest(model=self.model, kind=kind, message=message, count=self._hitches)
                await self._note(failed)
                return
            case UsageEvent():
                await self._consumed(fact)
                return
            case DenialEvent() | LimitEvent():
                self.ending.refuse(fact)
                return
            case TurnEnd():
                earlier = self.ending.finished
                if earlier is None or not earlier.failed or fact.failed or self._got_on:
                    self.ending.finished = fact
                self._got_on = False
                return
            case Delta():
                self._progress(TextDelta(self._clean(fact.text[:MAX_DELTA_CHARS])))
            case TextEvent():
                await self._add_text(fact)
            case ToolCallEvent():
                await self._called(fact)
            case ToolResultEvent():
                await self._returned(fact)
        self.is_in_trouble = False
        self.heard += 1
        self.ending.limited = None
        self.has_worked = self._got_on = True

    @property
    def so_far(self) -> Usage | None:
        """The usage that the program reports: the total, or the sum by message until there is a total."""
        if self.spent is not None or not self._by_message:
            return self.spent
        used = list(self._by_message.values())
        prices = [usage.micro_usd for usage in used if usage.micro_usd is not None]
        return structs.replace(sum(used, NOTHING_SPENT), micro_usd=sum(prices) if prices else None).bounded()

    async def _consumed(self, fact: UsageEvent) -> None:
        """Reserve the usage that is not recorded yet; stop a program whose budget is used up."""
        if fact.message:
            known = self._by_message.get(fact.message, NOTHING_SPENT)
            self._by_message[fact.message] = max(fact.usage, known, key=lambda usage: usage.tokens)
            if self.spent is not None:  # it already reported the total
                return
        else:
            self.spent = fact.usage if self.spent is None else (self.spent + fact.usage).bounded()
        used = self.so_far
        assert used is not None, "something was used"
        left = (self._count(used) or used).beyond(self._recorded)
        if left.tokens or left.micro_usd:
            self._progress(UsageUpdate(used.tokens))
        if self._request is not None:
            self._request.reserve(left.tokens, left.micro_usd or 0)
        if self._request is not None and self._request.is_used_up and self.ending.finished is None:
            self.ending.stopped = self.ending.stopped or "budget"
        if not self._message.id and not self._message.calls and not self._message.words.text:
            # Record the usage since the last entry, because it was paid for even if the program fails.
            used = self.so_far
            usage = self.take_usage(None if used is None else self._count(used))
            if usage is not None and not self._is_full:
                await self._record(Response(model=self.model, usage=usage))

    def take_usage(self, total: Usage | None) -> Usage | None:
        """Return the part of a total that no entry has yet, for the next entry."""
        if total is None:
            return None
        usage = total.beyond(self._recorded)
        self._recorded += usage
        return usage if usage.tokens or usage.cached_tokens or usage.micro_usd else None

    def stir(self) -> None:
        """Report that the program is alive, without a fact."""
        self._progress(TextDelta(""))

    @property
    def text(self) -> str:
        """The last text of the program."""
        finished = self.ending.finished
        if finished is not None and finished.text is not None:
            return finished.text
        return self.ending.words.text

    async def close(self, last: Response | None = None) -> None:
        """Record the rest; `last` ends the session or the turn and replaces the last message."""
        left, self._message = self._message, _Message(GrowingText())
        text = left.words.text
        if last is not None:
            same = not text or text.strip() in (last.text.strip(), self.text.strip())
            if not same:
                await self._record(Response(model=self.model, text=text))
            await self._record(structs.replace(last, tool_calls=tuple(left.calls), model=self.model))
        elif text or left.calls:
            await self._record(Response(model=self.model, text=text, tool_calls=tuple(left.calls)))

    async def _add_text(self, fact: TextEvent) -> None:
        self.model = fact.model or self.model
        if fact.message != self._message.id or (self._message.calls and not fact.message):
            await self._flush()
        message = self._message
        message.id = fact.message
        if fact.text:
            message.words.add(fact.text, "" if fact.delta else "\n")
            self.ending.words = message.words
            self._progress(TextDelta(self._clean(fact.text[:MAX_DELTA_CHARS])))

    async def _called(self, fact: ToolCallEvent) -> KnownCall:
        known = self.ending.calls.find(fact.id)
        if known is not None:
            return known
        other = fact.message and self._message.id and fact.message != self._message.id
        if other or len(self._message.calls) >= MAX_CALLS:
            await self._flush()
        if fact.message:
            self._message.id = fact.message
        known = self.ending.calls.begin(fact.id, fact.tool)
        args = fact.args
        try:
            encoded = msgspec.json.encode(args)
            if len(encoded) > MAX_ARGUMENT_BYTES or _is_deep(args):
                args = shorten_middle(encoded.decode(), MAX_ARGUMENT_BYTES)
        except (TypeError, ValueError, RecursionError):
            args = None
        self._message.calls.append(RequestedCall(short(fact.id), known.tool, args))
        self._progress(calling(known.tool, fact.args, self._clean))
        return known

    async def _returned(self, fact: ToolResultEvent) -> None:
        # Some programs report a call only when it has finished.
        known = await self._called(ToolCallEvent(fact.id, fact.tool or "tool", fact.args))
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
            used = self.so_far
            usage = self.take_usage(None if used is None else self._count(used))
            response = Response(model=self.model, text=text, tool_calls=tuple(message.calls), usage=usage)
            await self._note(response)

    async def _note(self, entry: Entry) -> None:
        if self._is_full:
            return
        self._entries += 1
        self._room -= len(msgspec.json.encode(entry))
        self._is_full = self._entries > MAX_ENTRIES or self._room < 0
        await self._record(Response(model=self.model, text=NOT_KEPT) if self._is_full else entry)

    async def _record(self, entry: Entry) -> None:
        """Record an entry, and stop a program that repeats its calls without progress."""
        await self._record_raw(entry)
        if self._loops.observe(entry) == "stop":
            self.ending.loop = self._loops.failure()
            raise SessionFailed(self.ending.loop)


def _is_deep(value: JSON, depth: int = 0) -> bool:
    if depth > MAX_DEPTH:
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_is_deep(one, depth + 1) for one in inner)


# -----------------------------------------------------------------------------------------------------------
# Reading the output of a program line by line, while it makes progress.
#
# A line above the maximum length is dropped as garbage. The total output is not limited, because nothing of
# it is kept here. Formats without lines are kept up to a limit and read at the end.

CHUNK_BYTES = 64 * 1024
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_USAGE_FILES = 100
MAX_PLAIN_BYTES = 4 * MAX_TEXT_CHARS
LOOK_S = 0.2
"""How often stderr and the usage files of a program are read."""
SHORT_LIMIT_S = 90.0
"""A limit that resets sooner is left to the program, which waits for it."""


class LineCutter:
    """Splits data into lines; a line that is too long becomes None."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._too_long = False

    def add(self, data: bytes) -> Iterator[bytes | None]:
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._rest += part
            line, too_long = bytes(self._rest), self._too_long
            self._rest.clear()
            self._too_long = False
            yield None if too_long or len(line) > MAX_LINE_BYTES else line
        self._rest += rest
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest.clear()
            self._too_long = True

    def last(self) -> bytes | None:
        """Return the data after the last line break."""
        return None if self._too_long else bytes(self._rest)


async def listen(
    profile: Profile,
    program: AgentProgram,
    call: ProgramCall,
    _request: SessionRequest,
    _turn: Turn,
    transcript: TranscriptRecorder,
    attached: Callable[[], Awaitable[None]],
) -> None:
    """Give a program its task, record its output and find out its outcome; see `session.Listen`."""

    async def feed() -> None:
        try:
            program.stdin.write(call.stdin)
            await program.stdin.drain()
        except OSError:
            pass  # it does not read all of its input
        finally:
            program.stdin.close()

    feeding = asyncio.create_task(feed())
    reader = _Reader(profile, transcript, attached)
    try:
        await _read(program, profile, transcript, reader)
    finally:
        feeding.cancel()
    if not transcript.ending.stopped:
        await reader.end()
        try:  # a program that closed its output may still be running
            transcript.ending.exit_code = await asyncio.wait_for(program.wait(), profile.idle_s)
        except TimeoutError:
            transcript.ending.stopped = "idle"
    transcript.ending.stderr = program.stderr_text()


async def _read(
    program: AgentProgram, profile: Profile, transcript: TranscriptRecorder, reader: _Reader
) -> None:
    loop = asyncio.get_running_loop()
    got_on = loop.time()
    while True:
        limit = profile.patience_s if transcript.is_in_trouble else profile.idle_s
        left = got_on + limit - loop.time()
        try:
            data = await asyncio.wait_for(program.stdout.read(CHUNK_BYTES), max(0.0, left))
        except TimeoutError:
            transcript.ending.stopped = "trouble" if transcript.is_in_trouble else "idle"
            return
        if not data:
            return
        was = transcript.is_in_trouble
        await reader.read(data)
        if transcript.ending.stopped:
            return
        await asyncio.sleep(0)  # lets other tasks run, however much arrives
        if not transcript.is_in_trouble or not was:
            got_on = loop.time()


class _Reader:
    """Converts output in any format to facts."""

    def __init__(
        self, profile: Profile, transcript: TranscriptRecorder, attached: Callable[[], Awaitable[None]]
    ) -> None:
        self._profile = profile
        self._transcript = transcript
        self._attached = attached
        self._lines = LineCutter()
        self._plain = bytearray()

    async def read(self, data: bytes) -> None:
        if self._profile.output != "json_lines":
            self._plain += data
            if len(self._plain) > MAX_PLAIN_BYTES:  # the important part is mostly at the end
                del self._plain[: len(self._plain) - MAX_PLAIN_BYTES]
            self._transcript.stir()
            return
        for line in self._lines.add(data):
            await self._line(line)

    async def end(self) -> None:
        """Process the rest at the end of the output."""
        profile = self._profile
        if profile.output == "json_lines":
            await self._line(self._lines.last())
            return
        text = self._plain.decode("utf-8", "replace").strip()
        facts: list[Fact]
        if profile.output == "json" and profile.events:
            facts = read_line(text.encode(), profile.events) or []
        elif profile.output == "json":
            try:
                facts = [TurnEnd(text=text, value=read_json(text))]
            except ValueError:
                facts = [TextEvent(text)]
        else:
            output = text.rpartition("\n")[2] if profile.output == "last_line" else text
            facts = [TextEvent(shorten_start(output, MAX_TEXT_CHARS))]
        for fact in facts:
            await self._transcript.hear(fact)

    async def _line(self, line: bytes | None) -> None:
        if line is not None and not line.strip():
            return
        ending = self._transcript.ending
        ending.lines += 1
        facts = None if line is None else read_line(line, self._profile.events)
        self._transcript.stir()
        if facts is None:
            ending.garbage += 1
            return
        for fact in facts:
            known = self._transcript.began
            await self._transcript.hear(fact)
            if self._transcript.began is not known:
                await self._attached()


class UsageFiles:
    """Lines that a program adds to files in its home while it works."""

    def __init__(self, home: Path, pattern: str) -> None:
        self._home = home
        self._folder, _, self._name = pattern.partition("/**/")
        self._read: dict[str, int] = {}
        for place in self._places():
            self._add(place)

    def fresh(self) -> list[bytes]:
        """Return the complete lines since the last call."""
        return [line for place in self._places() for line in self._add(place)]

    async def next_minute(self, conversation: str) -> None:
        """Wait for the next minute if the file of a conversation is named by this one."""
        now = datetime.now(UTC)
        name = f"{now:%Y-%m-%dT%H-%M}-{conversation[:8]}"
        if any(name in place for place in await asyncio.to_thread(self._places)):
            await asyncio.sleep(60.5 - now.second)

    def _places(self) -> list[str]:
        if not self._name:
            return []
        found: list[str] = []
        for folder, _, names in os.walk(self._home / self._folder):  # follows no links
            found += [os.path.join(folder, name) for name in names if fnmatch(name, self._name)]
            if len(found) > MAX_USAGE_FILES:
                break
        return [os.path.relpath(path, self._home) for path in found[:MAX_USAGE_FILES]]

    def _add(self, place: str) -> list[bytes]:
        before = self._read.get(place, 0)
        try:
            with resolve(str(self._home), place) as spot:
                handle = open_regular(spot, place)
        except (PathProblem, OSError):
            return []
        with os.fdopen(handle, "rb") as file:
            file.seek(before)
            whole = file.read(MAX_LINE_BYTES).rpartition(b"\n")[0]
        self._read[place] = before + len(whole) + 1 if whole else before
        return whole.splitlines()


async def hear_usage(profile: Profile, transcript: TranscriptRecorder, files: UsageFiles) -> None:
    """Count the usage in the files of a program."""
    if not profile.usage_files:
        return
    for line in await asyncio.to_thread(files.fresh):
        for fact in read_line(line, profile.asides) or ():
            await transcript.hear(fact)


async def watch(
    profile: Profile,
    program: AgentProgram,
    transcript: TranscriptRecorder,
    gate: ProviderGate | None,
    usage: UsageFiles,
) -> None:
    """Stop a program that waits silently for a usage limit to reset or for an unreachable host.

    Some programs report that only to stderr, and some not at all.
    """
    loop = asyncio.get_running_loop()
    heard, got_on, read, lines = 0, loop.time(), 0, LineCutter()
    while True:
        await asyncio.sleep(LOOK_S)
        if transcript.ending.stopped:
            return  # its own output was the reason: the listener cancels and ends it
        await hear_usage(profile, transcript, usage)
        fresh, read = program.stderr_after(read)
        for line in lines.add(fresh):
            for fact in stderr_facts(profile, (line or b"").decode("utf-8", "replace")):
                await transcript.hear(fact)
        if transcript.heard != heard:
            heard, got_on = transcript.heard, loop.time()
        limited = transcript.ending.limited
        if limited is not None and transcript.ending.finished is None:
            waits_s = limited.until / 1_000 - time.time() if limited.until else profile.patience_s
            if waits_s > SHORT_LIMIT_S or loop.time() - got_on > profile.patience_s:
                transcript.ending.stopped = "limit"
        if loop.time() - got_on > profile.patience_s and not transcript.ending.stopped:
            if gate is not None and gate.unreached and not gate.has_reached:
                transcript.ending.stopped = "unreachable"
            elif transcript.is_in_trouble:
                transcript.ending.stopped = "trouble"
        if transcript.ending.stopped:
            await program.end()
            return


def stderr_facts(profile: Profile, line: str) -> list[Fact]:
    """Return the facts in a line of stderr: a usage limit, a retry, or an event of the format."""
    if line.startswith("{"):
        return read_line(line.encode(), profile.asides) or []
    if profile.retrying and not re.match(profile.retrying, line):
        return []  # other lines may quote the conversation
    is_limit, until = limit_in(profile, [line])
    if is_limit:
        return [LimitEvent(until, line.strip())]
    return [Hitch(line.strip())] if profile.retrying else []
