"""One MCP server for one session, from its start to its end.

Rules
* A connection lives in a task of its own: the official client keeps scopes that must be left where they were
  entered, and what breaks inside of it must not take a session with it.
* A server has a time to start in and each call a time to be answered in. Nothing it says or fails to say is
  waited for longer.
* A server that cannot be used when the session begins fails the session (`mcp.unavailable`): without its
  tools a role would do something else. One that breaks later fails its calls (`tool.mcp_…`), and the session
  goes on. A program that ended stays ended, as what it knew is lost; an address is tried again by the next
  call.
* After `aclose` no process and no connection is left, whatever the server does.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fanfold.agents.backend import SessionFailed, SessionRequest
from fanfold.agents.toolbox import ToolFailed
from fanfold.agents.toolbox.mcp.servers import Server, unavailable
from fanfold.agents.toolbox.mcp.wire import (
    CHUNK_BYTES,
    ENDED,
    MessageReader,
    MessageWriter,
    StartServer,
    TalkingProgram,
)
from fanfold.errors import FanfoldError
from fanfold.text.excerpts import shorten_line

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.types import CallToolResult, Tool

    from fanfold.agents.toolbox.mcp.http import Refusals

LEAVE_S = 1.0
"""How long a program may take to end by itself once its input is closed, before it is ended."""
SETTLE_S = 5.0
MAX_PAGES = 64
MAX_LISTED = 2_000
MAX_WORDS_CHARS = 300
_importer = ThreadPoolExecutor(1, thread_name_prefix="fanfold-mcp-imports")
_imported: set[str] = set()


async def load_client(over_http: bool) -> None:
    """Import the official client, in a thread: it takes a second, and other sessions must go on meanwhile.

    It is always the same thread: packages that import themselves in a circle come to nothing when two begin.
    """
    modules = ["mcp.client.session", *(["fanfold.agents.toolbox.mcp.http"] if over_http else [])]
    if not _imported.issuperset(modules):  # being in `sys.modules` means no more than that somebody began
        await asyncio.get_running_loop().run_in_executor(_importer, _import_all, modules)


def _import_all(modules: Iterable[str]) -> None:
    for module in modules:
        importlib.import_module(module)
        _imported.add(module)
    for name in ("mcp", "client"):  # the client logs what servers do wrong; that is not for the terminal
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


class Connection:
    """A server, and the way to it. `tools` is what it said it has when it was reached."""

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
        """Reach the server and ask what it has; raises `SessionFailed`."""
        await load_client(over_http=bool(self.server.url))
        self._stop = asyncio.Event()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(ready, self._stop))
        await ready

    async def call(self, tool: str, args: Mapping[str, Any]) -> CallToolResult:
        """Use a tool; raises `ToolFailed`."""
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

        session = self._session or await self._reach_again()
        life = self._life
        asked = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(args)))
        try:
            async with asyncio.timeout(self.server.tool_timeout_s):
                # Not `call_tool`, which would run the server's own patterns over the result.
                return await session.send_request(asked, CallToolResult)
        except TimeoutError:
            why = f"did not answer within {self.server.tool_timeout_s:g} s"
            hint = "what it was asked to do may have happened; tool_timeout_sec in the role sets the time"
            raise self._failed("timeout", why, hint) from None
        except Exception as error:  # noqa: BLE001 - whatever a server causes is news for the agent
            if life is not None and self._is_over(error, session):
                await asyncio.wait({life}, timeout=SETTLE_S)  # it ends the program, and knows why
                raise self._gone() from None
            raise self._call_failed(error) from None

    async def aclose(self) -> None:
        """Let go of the server. Its program is gone when this returns, also when this is cancelled."""
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

    # ------------------------------------------------------------------------------------- its life

    async def _live(self, ready: asyncio.Future[None], stop: asyncio.Event) -> None:
        problem: BaseException | None = None
        self._ended_because = self._last_words = ""
        try:
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout(self.server.startup_timeout_s):
                        session = await self._connect(stack, stop)
                        self.tools = await _list_tools(session)
                except Exception as error:  # noqa: BLE001 - told to whoever waits, once all is cleaned up
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
                ready.exception()  # looked at, so that nobody warns when no one waits any more

    async def _connect(self, stack: AsyncExitStack, stop: asyncio.Event) -> ClientSession:
        from mcp import ClientSession
        from mcp.types import Implementation

        read: Any
        write: Any
        if self.server.url:
            from fanfold.agents.toolbox.mcp import http as mcp_http

            refusals = mcp_http.Refusals()
            stack.callback(self._remember, refusals)
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
        await _greet(session)
        return session

    async def _end(self, spoken: TalkingProgram) -> None:
        """End a program the way servers expect it: no more input, some time, then by force."""
        try:
            spoken.stdin.close()
            async with asyncio.timeout(LEAVE_S if self._ended_because in ("", ENDED) else 0):
                while await spoken.stdout.read(CHUNK_BYTES):
                    pass
        except (TimeoutError, OSError):
            pass  # it does not leave by itself
        finally:
            self._last_words = _last_line(spoken.said())
            await spoken.end()
            self._last_words = _last_line(spoken.said()) or self._last_words

    def _remember(self, refusals: Refusals) -> None:
        self._last_words = refusals.last

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

    # ------------------------------------------------------------------------------- what went wrong

    def _is_over(self, error: Exception, session: ClientSession) -> bool:
        """Whether a call failed because its connection is over; then that is done with."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST

        if self._session is not session:
            return True
        # What the client itself says of a connection that is over; servers may use these codes too.
        said = (error.code, error.message) if isinstance(error, MCPError) else None
        ends = ((CONNECTION_CLOSED, "Connection closed"), (INVALID_REQUEST, "Session terminated"))
        if not self.server.url or said not in ends:  # a program tells by itself when it is over
            return False
        self._session = None
        self._stop.set()
        return True

    def _call_failed(self, error: Exception) -> ToolFailed:
        from mcp import MCPError

        if isinstance(error, ValueError):  # what validation raises
            return self._failed("invalid", "gave an answer that is no result of a tool")
        words = self.server.without_secrets(shorten_line(_in_words(error), MAX_WORDS_CHARS))
        return self._failed("failed" if isinstance(error, MCPError) else "invalid", f"said: {words}")

    def _gone(self) -> ToolFailed:
        then = "the next call tries it again" if self.server.url else "its tools are gone for this session"
        hint = f"what it was asked to do may have happened; {then}"
        return self._failed("gone", f"cannot be reached: {self._because(self._ended_because)}", hint)

    def _failed(self, code: str, why: str, hint: str = "") -> ToolFailed:
        return ToolFailed("tool", f"tool.mcp_{code}", f'the MCP server "{self.server.name}" {why}', hint)

    def _because(self, why: str) -> str:
        words = self.server.without_secrets(self._last_words)
        if self.server.url and words:  # the status says it; the client's own words do not
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
                hint = "set a longer startup_timeout_sec: a server that is fetched first takes its time"
            case FileNotFoundError() if server.argv:
                why, again = f'there is no program "{server.argv[0]}"', False
                hint = "install it, or correct its command in the role's mcp_servers"
            case FanfoldError():
                why, hint, again = error.message, error.hint, False
            case OSError() if server.argv:
                why, again = f'"{server.argv[0]}" cannot be run: {error.strerror or error}', False
            case ValueError():  # what validation raises
                why, again = "what it says is not MCP as this client knows it", False
            case _ if self._ended_because:
                why = self._ended_because
            case MCPError():
                why = f"it said: {shorten_line(error.message, MAX_WORDS_CHARS)}"
        return unavailable(server.name, server.without_secrets(self._because(why)), hint, retryable=again)


async def _greet(session: ClientSession) -> None:
    """Agree on the protocol: the way all servers know first, then the one that only new ones know."""
    from mcp import MCPError
    from mcp.types import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION

    try:
        await session.initialize()
    except MCPError as error:
        if error.code not in (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION):
            raise
        await session.discover()


async def _list_tools(session: ClientSession) -> list[Tool]:
    """What a server has, page by page; a name that comes twice counts once."""
    from mcp import MCPError
    from mcp.types import METHOD_NOT_FOUND, PaginatedRequestParams

    found: dict[str, Tool] = {}
    params: PaginatedRequestParams | None = None
    for _ in range(MAX_PAGES):
        try:
            page = await session.list_tools(params=params)
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:  # a server of prompts or resources alone
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
