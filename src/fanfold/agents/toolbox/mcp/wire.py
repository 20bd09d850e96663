"""The messages of an MCP server that is a program: one JSON value a line, on its stdin and stdout.

The official client takes any pair of streams. Its own pair starts the program itself and trusts it; ours is
handed a program that runs in a sandbox, and trusts it with nothing.

Rules
* Writing never waits. A program that does not read what we send cannot hold a session up; when too much is
  left unread it is given up.
* Only what is needed passes: answers to what was asked, and questions of the server, which must be answered.
  Notifications and whatever is not a message are noise. Some is normal (programs print greetings), a flood of
  it is the end of the connection.
* A line has a longest length. A longer one is dropped as it comes, and what was asked and not answered counts
  as answered by it: nobody waits for the rest.
* A flood leaves the event loop to others: after some lines everybody else gets a turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Self

from fanfold.agents.backend import SessionRequest

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage
    from mcp.types import JSONRPCMessage, RequestId

MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_UNREAD_BYTES = 16 * 1024 * 1024
MAX_NOISE_BYTES = 32 * 1024 * 1024
NOISE_BYTES_PER_S = 1024 * 1024
"""How fast noise is forgotten: a server may chat for hours, but not flood for seconds."""
LINE_COST_BYTES = 256
"""What handling a line costs us besides its length, counted as noise."""
REQUEST_COST_BYTES = 4 * 1024
CHUNK_BYTES = 64 * 1024
LINES_A_TURN = 256
ENDED = "it has ended"
FLOODED = "it sent more than anybody asked for, and was ended"
DEAF = "it does not read what it is sent, and was ended"
TOO_LONG = f"its answer was longer than {MAX_LINE_BYTES // 1024**2} MiB and was dropped"
_INTERNAL_ERROR = -32603


class TalkingProgram(Protocol):
    """A running program that can be talked to."""

    @property
    def stdin(self) -> asyncio.StreamWriter: ...
    @property
    def stdout(self) -> asyncio.StreamReader: ...

    def said(self) -> str:
        """What it wrote to stderr so far."""
        ...

    async def end(self) -> None:
        """End it with all it started; returns when nothing is left."""
        ...


class StartServer(Protocol):
    """Starts a program for a session, in its workspace and sandbox; OSError when there is none to start."""

    async def __call__(
        self, request: SessionRequest, argv: Sequence[str], environment: Mapping[str, str], /
    ) -> TalkingProgram: ...


class _Stream:
    """What the client expects of either direction: something to enter, leave and close."""

    closed = False

    async def aclose(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class MessageWriter(_Stream):
    """Sends messages to a server; `asked` holds the requests that it has not answered."""

    def __init__(self, stdin: asyncio.StreamWriter, ended: Callable[[str], None]) -> None:
        self._stdin = stdin
        self._tell_ended = ended
        self.asked: set[RequestId] = set()

    async def send(self, item: SessionMessage, /) -> None:
        from anyio import BrokenResourceError
        from mcp.types import JSONRPCRequest

        if self.closed or self._stdin.is_closing():
            raise BrokenResourceError
        if self._stdin.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._tell_ended(DEAF)
            raise BrokenResourceError
        if isinstance(item.message, JSONRPCRequest):
            self.asked.add(item.message.id)
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        self._stdin.write(line.encode() + b"\n")


class MessageReader(_Stream):
    """Gives the messages of a server, until it ends or floods us; `ended` is told why."""

    def __init__(
        self, stdout: asyncio.StreamReader, asked: set[RequestId], ended: Callable[[str], None]
    ) -> None:
        self._stdout = stdout
        self._asked = asked
        self._tell_ended = ended
        self._flooded = False
        self._buffer = bytearray()
        self._searched = 0
        self._dropping = False
        self._given_up: deque[SessionMessage] = deque()
        self._noise = 0.0
        self._noise_at = asyncio.get_running_loop().time()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        from anyio import EndOfStream

        try:
            return await self.receive()
        except EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> SessionMessage:
        from anyio import EndOfStream

        lines = 0
        while not self.closed:
            if self._given_up:
                return self._given_up.popleft()
            if self._flooded:
                break
            line = self._line()
            if line is not None:
                message = self._message(line)
                if message is not None:
                    return message
                lines += 1
                if lines % LINES_A_TURN == 0:
                    await asyncio.sleep(0)
                continue
            if self._given_up:
                continue
            data = await self._stdout.read(CHUNK_BYTES)
            if not data:
                break
            self._buffer += data
            await asyncio.sleep(0)  # reading waits only while there is nothing to read
        self._tell_ended(FLOODED if self._flooded else ENDED)
        raise EndOfStream

    def _line(self) -> bytes | None:
        """The next whole line that is not too long, if it has come."""
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end < 0:
                break
            line, dropped = bytes(self._buffer[:end]), self._dropping
            del self._buffer[: end + 1]
            self._searched, self._dropping = 0, False
            if not dropped:
                return line
        self._searched = len(self._buffer)
        if self._dropping or self._searched > MAX_LINE_BYTES:
            self._count(self._searched)
            self._buffer.clear()
            self._searched = 0
            if not self._dropping:
                self._dropping = True
                self._give_up()
        return None

    def _message(self, line: bytes) -> SessionMessage | None:
        """What a line says, if it is for us."""
        from mcp.shared.message import SessionMessage
        from mcp.types import JSONRPCError, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter

        message: JSONRPCMessage | None = None
        if line.lstrip().startswith(b"{"):
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                pass  # no message: noise
        if isinstance(message, JSONRPCResponse | JSONRPCError) and self._is_awaited(message.id):
            self._noise = 0.0
            return SessionMessage(message)
        self._count(len(line) + LINE_COST_BYTES)
        if isinstance(message, JSONRPCRequest):
            self._count(REQUEST_COST_BYTES)
            return SessionMessage(message)
        return None

    def _is_awaited(self, answered: RequestId | None) -> bool:
        if isinstance(answered, str) and answered.isdecimal() and len(answered) < 20:
            answered = int(answered)  # we number requests; some servers answer with texts
        if answered not in self._asked:
            return False
        self._asked.discard(answered)
        return True

    def _give_up(self) -> None:
        """Answer everything that was asked ourselves."""
        from mcp.shared.message import SessionMessage
        from mcp.types import ErrorData, JSONRPCError

        for request_id in sorted(self._asked, key=str):
            error = ErrorData(code=_INTERNAL_ERROR, message=TOO_LONG)
            self._given_up.append(SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error)))
        self._asked.clear()

    def _count(self, noise_bytes: int) -> None:
        now = asyncio.get_running_loop().time()
        forgotten = (now - self._noise_at) * NOISE_BYTES_PER_S
        self._noise = max(0.0, self._noise - forgotten) + noise_bytes
        self._noise_at = now
        self._flooded = self._flooded or self._noise > MAX_NOISE_BYTES
