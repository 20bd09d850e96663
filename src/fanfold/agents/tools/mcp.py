"""One MCP server for one session, from its start to its end.

Rules
* A connection has its own task. The official client has scopes that must be exited in the task that entered
  them, and an error inside it must not end the session.
* A server has a timeout for its start and for each call. Nothing waits longer for it.
* A server that is unusable at the start of the session fails the session (`mcp.unavailable`), because a role
  without its tools would do something else. A server that breaks later fails its calls (`tool.mcp_…`), and
  the session continues. A program that ended is not restarted, because its state is lost. The next call
  retries an address.
* After `aclose` no process and no connection is left, whatever the server does.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from fanfold.agents.backend import AgentProgram, SessionFailed, SessionRequest, ToolFailed, import_in_thread
from fanfold.agents.permissions import Action, PermissionDenied, Permissions
from fanfold.agents.tool_names import ToolSpec
from fanfold.agents.tools.mcp_servers import (
    Offer,
    Server,
    choose_offers,
    result_value,
    unavailable,
    wanted_servers,
)
from fanfold.errors import FanfoldError
from fanfold.kernel.plan import JSON
from fanfold.language.terminal import shorten_line, shorten_middle

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.shared.message import SessionMessage
    from mcp.types import CallToolResult, JSONRPCMessage, RequestId, Tool

    from fanfold.agents.backend import Tools

# -----------------------------------------------------------------------------------------------------------
# The messages of an MCP server that is a program: one JSON value per line, on its stdin and stdout.
#
# The official client accepts any pair of streams. Its own pair starts the program itself and trusts it. Ours
# gets a program in a sandbox and does not trust it.
#
# Rules
# * Writing never blocks. A program that does not read its input cannot block a session. It is ended when too
#   much is unread.
# * Only necessary messages pass: responses to requests, and requests of the server, which need a response.
#   Notifications and everything else are noise. Some noise is normal, because programs print greetings. A
#   flood of it ends the connection.
# * A line has a maximum length. A longer line is dropped while it arrives, and all open requests fail at
#   once, so that no call waits for the rest.
# * During a flood, other tasks get a turn after some lines.

MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_UNREAD_BYTES = 16 * 1024 * 1024
MAX_NOISE_BYTES = 32 * 1024 * 1024
NOISE_BYTES_PER_S = 1024 * 1024
"""How fast noise is forgotten: a server can send a little for hours, but not flood for seconds."""
LINE_COST_BYTES = 256
"""The cost of handling a line besides its length, counted as noise."""
REQUEST_COST_BYTES = 4 * 1024
CHUNK_BYTES = 64 * 1024
LINES_A_TURN = 256
ENDED = "it has ended"
FLOODED = "it sent too many unrequested messages, and was ended"
DEAF = "it does not read what it is sent, and was ended"
TOO_LONG = f"its answer was longer than {MAX_LINE_BYTES // 1024**2} MiB and was dropped"
_INTERNAL_ERROR = -32603


class StartServer(Protocol):
    """Starts a program for a session, in its workspace and sandbox; OSError if that is not possible."""

    async def __call__(
        self, request: SessionRequest, argv: Sequence[str], environment: Mapping[str, str], /
    ) -> AgentProgram: ...


class _Stream:
    """The interface that the client expects of both directions: enter, exit and close."""

    closed = False

    async def aclose(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class MessageWriter(_Stream):
    """Sends messages to a server; `asked` has the requests without a response."""

    def __init__(self, stdin: asyncio.StreamWriter, ended: Callable[[str], None]) -> None:
        self._stdin = stdin
        self._on_end = ended
        self.asked: set[RequestId] = set()

    async def send(self, item: SessionMessage, /) -> None:
        from anyio import BrokenResourceError
        from mcp.types import JSONRPCRequest

        if self.closed or self._stdin.is_closing():
            raise BrokenResourceError
        if self._stdin.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._on_end(DEAF)
            raise BrokenResourceError
        if isinstance(item.message, JSONRPCRequest):
            self.asked.add(item.message.id)
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        self._stdin.write(line.encode() + b"\n")


class MessageReader(_Stream):
    """Returns the messages of a server until it ends or floods; then it calls `ended` with the reason."""

    def __init__(
        self, stdout: asyncio.StreamReader, asked: set[RequestId], ended: Callable[[str], None]
    ) -> None:
        self._stdout = stdout
        self._asked = asked
        self._on_end = ended
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
            await asyncio.sleep(0)  # `read` yields to other tasks only if there is no data
        self._on_end(FLOODED if self._flooded else ENDED)
        raise EndOfStream

    def _line(self) -> bytes | None:
        """Return the next complete line within the limit, if it has arrived."""
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
                from mcp.shared.message import SessionMessage
                from mcp.types import ErrorData, JSONRPCError

                # All open requests fail at once.
                for request_id in sorted(self._asked, key=str):
                    error = ErrorData(code=_INTERNAL_ERROR, message=TOO_LONG)
                    self._given_up.append(
                        SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))
                    )
                self._asked.clear()
        return None

    def _message(self, line: bytes) -> SessionMessage | None:
        """Return the message in a line, if it is relevant."""
        from mcp.shared.message import SessionMessage
        from mcp.types import JSONRPCError, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter

        message: JSONRPCMessage | None = None
        if line.lstrip().startswith(b"{"):
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                pass  # not a message: noise
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            answered = message.id
            if isinstance(answered, str) and answered.isdecimal() and len(answered) < 20:
                answered = int(answered)  # our ids are numbers; some servers respond with strings
            if answered in self._asked:
                self._asked.discard(answered)
                self._noise = 0.0
                return SessionMessage(message)
        self._count(len(line) + LINE_COST_BYTES)
        if isinstance(message, JSONRPCRequest):
            self._count(REQUEST_COST_BYTES)
            return SessionMessage(message)
        return None

    def _count(self, noise_bytes: int) -> None:
        now = asyncio.get_running_loop().time()
        forgotten = (now - self._noise_at) * NOISE_BYTES_PER_S
        self._noise = max(0.0, self._noise - forgotten) + noise_bytes
        self._noise_at = now
        self._flooded = self._flooded or self._noise > MAX_NOISE_BYTES


LEAVE_S = 1.0
"""How long a program can take to end after its input is closed, before it is killed."""
SETTLE_S = 5.0
MAX_PAGES = 64
MAX_LISTED = 2_000
MAX_WORDS_CHARS = 300


async def load_client(over_http: bool) -> None:
    """Import the official client, which takes a second."""
    await import_in_thread(["mcp.client.session", *(["fanfold.agents.tools.mcp_http"] if over_http else [])])
    for name in ("mcp", "client"):  # the client logs mistakes of servers, which must not reach the terminal
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


class Connection:
    """A connection to a server; `tools` are those that it listed when it was reached."""

    def __init__(self, server: Server, request: SessionRequest, start: StartServer) -> None:
        self.server = server
        self.tools: list[Tool] = []
        self._request = request
        self._start = start
        self._session: ClientSession | None = None
        self._life: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._reaching = asyncio.Lock()
        self._ended_because = ""
        self._last_words = ""

    async def open(self) -> None:
        """Connect to the server and list its tools; raises `SessionFailed`."""
        await load_client(over_http=bool(self.server.url))
        self._stop = asyncio.Event()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(ready, self._stop))
        await ready

    async def call(self, tool: str, args: Mapping[str, Any]) -> CallToolResult:
        """Call a tool; raises `ToolFailed`."""
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

        session = self._session or await self._reach_again()
        life = self._life
        asked = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(args)))
        limit = asyncio.timeout(self.server.tool_timeout_s)
        try:
            async with limit:
                # Not `call_tool`, which would run the server's own patterns over the result.
                return await session.send_request(asked, CallToolResult)
        except TimeoutError as error:
            if not limit.expired():  # the server's own timeout, not ours
                raise self._call_failed(error) from None
            why = f"did not answer within {self.server.tool_timeout_s:g} s"
            hint = "the tool may have done its work; tool_timeout_sec in the role sets the limit"
            raise self._failed("timeout", why, hint) from None
        except Exception as error:  # noqa: BLE001 - whatever a server causes is news for the agent
            if life is not None and self._is_over(error, session):
                await asyncio.wait({life}, timeout=SETTLE_S)  # the task ends the program and sets the reason
                raise self._gone() from None
            raise self._call_failed(error) from None

    async def aclose(self) -> None:
        """Close the connection. The program has ended when this returns, even after a cancellation."""
        life = self._life
        if life is None:
            return
        if self._session is None and not self._stop.is_set():
            life.cancel()  # it is still starting
        self._session = None
        self._stop.set()
        interrupted: asyncio.CancelledError | None = None
        while not life.done():
            try:
                await asyncio.wait({life})
            except asyncio.CancelledError as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted

    async def _live(self, ready: asyncio.Future[None], stop: asyncio.Event) -> None:
        problem: BaseException | None = None
        self._ended_because = self._last_words = ""
        try:
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout(self.server.startup_timeout_s):
                        session = await self._connect(stack, stop)
                        self.tools = await _list_tools(session)
                except Exception as error:  # noqa: BLE001 - passed to the waiting task after the clean-up
                    problem = error
                else:
                    self._session = session
                    if not ready.done():
                        ready.set_result(None)
                    await stop.wait()
        except Exception as error:  # noqa: BLE001 - a client that breaks cancels us, then says why
            problem = problem or error
            self._ended_because = self._ended_because or _in_words(_first(error))
        finally:
            self._session = None
            stop.set()
            if not ready.done():
                ready.set_exception(self._unavailable(_first(problem)))
                ready.exception()  # marked as retrieved, to avoid a warning if no task waits for it

    async def _connect(self, stack: AsyncExitStack, stop: asyncio.Event) -> ClientSession:
        from mcp import ClientSession, MCPError
        from mcp.types import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION, Implementation

        read: Any
        write: Any
        if self.server.url:
            from fanfold.agents.tools import mcp_http

            refusals = mcp_http.Refusals()

            @stack.callback
            def remember() -> None:
                self._last_words = refusals.last

            read, write = await stack.enter_async_context(mcp_http.reach(self.server, refusals))
        else:
            spoken = await self._start(self._request, self.server.argv, self.server.environment)
            stack.push_async_callback(self._end, spoken)

            def ended(why: str) -> None:
                self._ended_because = self._ended_because or why
                self._session = None
                stop.set()

            write = MessageWriter(spoken.stdin, ended)
            read = MessageReader(spoken.stdout, write.asked, ended)
        who = Implementation(name="fanfold", version=version("fanfold"))
        session = await stack.enter_async_context(ClientSession(read, write, client_info=who))
        try:
            await session.initialize()  # all servers support this way
        except MCPError as error:
            if error.code not in (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION):
                raise
            await session.discover()  # the way of new servers
        return session

    async def _end(self, spoken: AgentProgram) -> None:
        """End a program in the way that servers expect: close its input, wait, then kill it."""
        try:
            spoken.stdin.close()
            async with asyncio.timeout(LEAVE_S if self._ended_because in ("", ENDED) else 0):
                while await spoken.stdout.read(CHUNK_BYTES):
                    pass
        except (TimeoutError, OSError):
            pass  # it does not end by itself
        finally:
            self._last_words = _last_line(spoken.stderr_text())
            await spoken.end()
            self._last_words = _last_line(spoken.stderr_text()) or self._last_words

    async def _reach_again(self) -> ClientSession:
        if not self.server.url:
            raise self._gone()
        async with self._reaching:
            if self._session is None:
                await self.aclose()
                try:
                    await self.open()
                except SessionFailed as failed:
                    raise ToolFailed("tool", "tool.mcp_gone", failed.message, failed.hint) from None
            if self._session is None:
                raise self._gone()
            return self._session

    def _is_over(self, error: Exception, session: ClientSession) -> bool:
        """Return whether a call failed because its connection has ended; then close the connection."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST

        if self._session is not session:
            return True
        # The client's own messages for a closed connection. Servers may use the same codes.
        reason = (error.code, error.message) if isinstance(error, MCPError) else None
        ends = ((CONNECTION_CLOSED, "Connection closed"), (INVALID_REQUEST, "Session terminated"))
        if not self.server.url or reason not in ends:  # the end of a program is detected separately
            return False
        self._session = None
        self._stop.set()
        return True

    def _call_failed(self, error: Exception) -> ToolFailed:
        from mcp import MCPError

        if isinstance(error, ValueError):  # raised by validation
            return self._failed("invalid", "gave an answer that is no result of a tool")
        words = self.server.without_secrets(shorten_line(_in_words(error), MAX_WORDS_CHARS))
        return self._failed("failed" if isinstance(error, MCPError) else "invalid", f"said: {words}")

    def _gone(self) -> ToolFailed:
        then = "the next call tries it again" if self.server.url else "its tools are gone for this session"
        hint = f"the tool may have done its work; {then}"
        return self._failed("gone", f"cannot be reached: {self._because(self._ended_because)}", hint)

    def _failed(self, code: str, why: str, hint: str = "") -> ToolFailed:
        return ToolFailed("tool", f"tool.mcp_{code}", f'the MCP server "{self.server.name}" {why}', hint)

    def _because(self, why: str) -> str:
        words = self.server.without_secrets(self._last_words)
        if self.server.url and words:  # the status has the reason; the client's own message does not
            return words
        return f"{why or ENDED}: {words}" if words else why or ENDED

    def _unavailable(self, error: BaseException | None) -> SessionFailed:
        from mcp import MCPError

        server = self.server
        why, hint, again = _in_words(error), "try it by hand, and correct the role's mcp_servers", True
        match error:
            case SessionFailed():
                return error
            case TimeoutError():
                why = f"it did not answer within {server.startup_timeout_s:g} s"
                hint = "set a longer startup_timeout_sec: a server that is downloaded first needs longer"
            case FileNotFoundError() if server.argv:
                why, again = f'there is no program "{server.argv[0]}"', False
                hint = "install it, or correct its command in the role's mcp_servers"
            case FanfoldError():
                why, hint, again = error.message, error.hint, False
            case OSError() if server.argv:
                why, again = f'"{server.argv[0]}" cannot be run: {error.strerror or error}', False
            case ValueError():  # raised by validation
                why, again = "what it says is not MCP as this client knows it", False
            case _ if self._ended_because:
                why = self._ended_because
            case MCPError():
                why = f"it said: {shorten_line(error.message, MAX_WORDS_CHARS)}"
        return unavailable(server.name, server.without_secrets(self._because(why)), hint, retryable=again)


async def _list_tools(session: ClientSession) -> list[Tool]:
    """Return the tools of a server, page by page; a repeated name counts once."""
    from mcp import MCPError
    from mcp.types import METHOD_NOT_FOUND, PaginatedRequestParams

    found: dict[str, Tool] = {}
    params: PaginatedRequestParams | None = None
    for _ in range(MAX_PAGES):
        try:
            page = await session.list_tools(params=params)
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:  # a server with only prompts or resources
                break
            raise
        for tool in page.tools:
            found.setdefault(tool.name, tool)
        if not page.next_cursor or not page.tools or len(found) > MAX_LISTED:
            break
        params = PaginatedRequestParams(cursor=page.next_cursor)
    return list(found.values())


def _first(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _in_words(error: BaseException | None) -> str:
    return ENDED if error is None else str(error) or type(error).__name__


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    shown = "".join(char for char in lines[-1] if char.isprintable()) if lines else ""
    return shorten_line(shown, MAX_WORDS_CHARS)


# -----------------------------------------------------------------------------------------------------------
# The tools of a session together with those of the MCP servers that its role names.
#
# Rules
# * Servers belong to one session: `open` starts them, `aclose` ends them, and no other session uses them. A
#   session whose role names no servers has no cost for them.
# * A server without a usable tool for the session is not started, or closed again.
# * A server's tool is mutating unless the server declares it read-only. Each mutating call needs permission
#   (see `permissions`), like a command.

MAX_ERROR_CHARS = 2_000


class ServedTools:
    """The tools of `base`, and those of the servers in the request.

    `start` starts a server that is a program. `environment` has the variables that a role names.
    """

    def __init__(
        self,
        base: Tools,
        request: SessionRequest,
        permissions: Permissions,
        start: StartServer,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._base = base
        self._request = request
        self._permissions = permissions.narrowed("read_only" if request.role.read_only else "auto")
        self._start = start
        self._environment = os.environ if environment is None else environment
        self._connections: dict[str, Connection] = {}
        self._offers: dict[str, Offer] = {}

    async def open(self) -> None:
        """Start the servers that the session can use; raise `SessionFailed` if one is unusable."""
        await self._base.open()
        for server in wanted_servers(self._request.role, self._environment):
            self._connections[server.name] = Connection(server, self._request, self._start)
        if not self._connections:
            return
        try:
            # Connect to all servers in parallel; the first failure fails the session.
            tasks = [asyncio.create_task(connection.open()) for connection in self._connections.values()]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            served = {name: (one.server, one.tools) for name, one in self._connections.items()}
            read_only = self._permissions.posture == "read_only"
            offers = choose_offers(served, self._request.role.tools, read_only)
        except BaseException:
            await self._close_servers()
            raise
        self._offers = {offer.spec.name: offer for offer in offers}
        of_use = {offer.server for offer in offers}
        await self._close_servers(keeping=of_use)

    async def aclose(self) -> None:
        """End every server; nothing of them is left when this returns."""
        try:
            await self._close_servers()
        finally:
            await self._base.aclose()

    def offered(self) -> Sequence[ToolSpec]:
        return (*self._base.offered(), *(offer.spec for offer in self._offers.values()))

    def mutates(self, name: str) -> bool:
        offer = self._offers.get(name)
        return self._base.mutates(name) if offer is None else offer.spec.mutates

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        offer = self._offers.get(name)
        if offer is None:
            return await self._base.call(name, args)
        if offer.spec.mutates:
            what = f"mcp {offer.server}/{offer.tool} {msgspec.json.encode(args).decode()}"
            action = Action("tool", what, self._request.session_id, self._request.step)
            try:
                await self._permissions.check(action)
            except PermissionDenied as denied:
                raise ToolFailed("permission", denied.code, denied.message, denied.hint) from None
        result = await self._connections[offer.server].call(offer.tool, args)
        try:
            value = result_value(result)
        except (ValueError, RecursionError):
            why = f"{offer.tool} gave a value that cannot be written as JSON"
            raise ToolFailed("tool", "tool.mcp_invalid", why) from None
        if result.is_error:
            reason = shorten_middle(str(value.get("text") or value["structured"]), MAX_ERROR_CHARS)
            raise ToolFailed("tool", "tool.mcp_failed", reason or f"{offer.tool} failed without a word")
        return value

    async def _close_servers(self, keeping: frozenset[str] | set[str] = frozenset()) -> None:
        leaving = [one for name, one in self._connections.items() if name not in keeping]
        self._connections = {name: one for name, one in self._connections.items() if name in keeping}
        await asyncio.gather(*(server.aclose() for server in leaving))
