"""Listening to a program: its output line by line, for as long as it gets on.

A line that is longer than we read is dropped as garbage, and how much a program says in all is not bounded:
nothing of it is kept here. Formats that are no lines are kept up to a limit and read at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from fanfold.agents.backend import SessionRequest
from fanfold.agents.command.calls import ProgramCall, Turn
from fanfold.agents.command.events import Fact, Said, TurnEnd, read_line
from fanfold.agents.command.growing_text import MAX_TEXT_CHARS
from fanfold.agents.command.hearing import Hearing
from fanfold.agents.command.profile import Profile
from fanfold.agents.confined import AgentProgram
from fanfold.text.excerpts import shorten_start
from fanfold.text.json_value import read_json

CHUNK_BYTES = 64 * 1024
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_PLAIN_BYTES = 4 * MAX_TEXT_CHARS


class LineCutter:
    """Cuts what arrives into lines; one that is too long comes as None."""

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
        """What came behind the last line break."""
        return None if self._too_long else bytes(self._rest)


async def listen(
    profile: Profile,
    program: AgentProgram,
    call: ProgramCall,
    _request: SessionRequest,
    _turn: Turn,
    hearing: Hearing,
    attached: Callable[[], Awaitable[None]],
) -> None:
    """Give a program its task, hear it to its end, and find out how it ended; see `session.Listen`."""
    feeding = asyncio.create_task(_feed(program, call.stdin))
    reader = _Reader(profile, hearing, attached)
    try:
        await _read(program, profile, hearing, reader)
    finally:
        feeding.cancel()
    if not hearing.ending.stopped:
        await reader.end()
        try:  # one that can say nothing any more need not be over
            hearing.ending.exit_code = await asyncio.wait_for(program.wait(), profile.idle_s)
        except TimeoutError:
            hearing.ending.stopped = "idle"
    hearing.ending.stderr = program.said()


async def _feed(program: AgentProgram, stdin: bytes) -> None:
    try:
        program.stdin.write(stdin)
        await program.stdin.drain()
    except OSError:
        pass  # it does not want to hear all of it
    finally:
        program.stdin.close()


async def _read(program: AgentProgram, profile: Profile, hearing: Hearing, reader: _Reader) -> None:
    loop = asyncio.get_running_loop()
    got_on = loop.time()
    while True:
        limit = profile.patience_s if hearing.is_in_trouble else profile.idle_s
        left = got_on + limit - loop.time()
        try:
            data = await asyncio.wait_for(program.stdout.read(CHUNK_BYTES), max(0.0, left))
        except TimeoutError:
            hearing.ending.stopped = "trouble" if hearing.is_in_trouble else "idle"
            return
        if not data:
            return
        was = hearing.is_in_trouble
        await reader.read(data)
        await asyncio.sleep(0)  # others must get a turn, however much is said
        if not hearing.is_in_trouble or not was:
            got_on = loop.time()


class _Reader:
    """Makes facts of what arrives, whatever the format."""

    def __init__(self, profile: Profile, hearing: Hearing, attached: Callable[[], Awaitable[None]]) -> None:
        self._profile = profile
        self._hearing = hearing
        self._attached = attached
        self._lines = LineCutter()
        self._plain = bytearray()

    async def read(self, data: bytes) -> None:
        if self._profile.output != "json_lines":
            self._plain += data
            if len(self._plain) > MAX_PLAIN_BYTES:  # what matters is mostly at the end
                del self._plain[: len(self._plain) - MAX_PLAIN_BYTES]
            self._hearing.stir()
            return
        for line in self._lines.add(data):
            await self._line(line)

    async def end(self) -> None:
        """There is no more."""
        if self._profile.output == "json_lines":
            await self._line(self._lines.last())
            return
        text = self._plain.decode("utf-8", "replace").strip()
        for fact in _plain_facts(self._profile, text):
            await self._hearing.hear(fact)

    async def _line(self, line: bytes | None) -> None:
        if line is not None and not line.strip():
            return
        ending = self._hearing.ending
        ending.lines += 1
        facts = None if line is None else read_line(line, self._profile.events)
        self._hearing.stir()
        if facts is None:
            ending.garbage += 1
            return
        for fact in facts:
            known = self._hearing.began
            await self._hearing.hear(fact)
            if self._hearing.began is not known:
                await self._attached()


def _plain_facts(profile: Profile, text: str) -> list[Fact]:
    if profile.output == "json" and profile.events:
        line = text.encode()
        return read_line(line, profile.events) or []
    if profile.output == "json":
        try:
            return [TurnEnd(text=text, value=read_json(text))]
        except ValueError:
            return [Said(text)]
    said = text.rpartition("\n")[2] if profile.output == "last_line" else text
    return [Said(shorten_start(said, MAX_TEXT_CHARS))]
