"""One turn with an agent over the Agent Client Protocol, on the official library.

Rules
* We offer neither files nor terminals: the agent works in the workspace itself, and the sandbox is the
  boundary. A request for permission is a courtesy, answered at once: yes, unless the role may only read and
  the agent asks to change something.
* A conversation that goes on is loaded by its id; what the agent tells while it loads is history.
* A turn that is cancelled is cancelled in the agent too, with a short time to stop; then its tree is ended.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fanfold.agents.acp.messages import AgentMessages
from fanfold.agents.backend import SessionRequest
from fanfold.agents.command.calls import ProgramCall, Turn, model_for, with_instructions
from fanfold.agents.command.events import Began, Consumed, Denied, Fact, Hitch, TurnEnd
from fanfold.agents.command.hearing import Hearing
from fanfold.agents.command.profile import Profile
from fanfold.agents.command.served import for_session
from fanfold.agents.confined import AgentProgram
from fanfold.agents.toolbox.mcp.servers import Server
from fanfold.kernel.events import Usage
from fanfold.text.excerpts import shorten_line

if TYPE_CHECKING:
    from acp.client.connection import ClientSideConnection
    from acp.schema import PermissionOption, RequestPermissionResponse, ToolCallUpdate

CANCEL_S = 1.0
START_S = 120.0
CHANGES = ("edit", "delete", "move")
"""Kinds of calls that a reader is not allowed."""
MAX_NAME_CHARS = 500
MAX_WHY_CHARS = 300


class _Lost(Exception):
    """The agent does not know the conversation."""


class AgentTurn:
    """One connection and one prompt."""

    def __init__(
        self,
        program: AgentProgram,
        request: SessionRequest,
        profile: Profile,
        turn: Turn,
        hearing: Hearing,
        attached: Callable[[], Awaitable[None]],
        servers: Sequence[Server] = (),
    ) -> None:
        self._servers = servers
        self._request = request
        self._profile = profile
        self._turn = turn
        self._hearing = hearing
        self._attached = attached
        self._one_by_one = asyncio.Lock()
        self._broken: Exception | None = None
        """Why nothing more can be put down."""
        self._messages = AgentMessages(program, self._heard, self._garbage)
        self._last = 0.0
        self._cost: Usage | None = None

    async def run(self) -> None:
        """Hold the conversation; what came of it is in the hearing."""
        await asyncio.to_thread(_load)
        from acp import RequestError
        from acp.client.connection import ClientSideConnection

        client: Any = _Client(self._request.role.read_only, self._heard)
        connection = ClientSideConnection(client, self._messages)
        try:
            await self._converse(connection)
        except TimeoutError:
            self._hearing.ending.stopped = "idle"
        except _Lost as lost:
            await self._put_down(TurnEnd(failed=True, why=f"the conversation cannot be loaded: {lost}"))
        except RequestError as error:
            await self._put_down(TurnEnd(failed=True, why=_words(error)))
        except ValueError as error:  # what the library finds wrong with an answer
            why = shorten_line(f"it does not keep to the protocol: {error}", MAX_WHY_CHARS)
            await self._put_down(TurnEnd(failed=True, why=why))
        except (ConnectionError, OSError):
            pass  # it is gone; how is judged from what it said
        finally:
            async with self._one_by_one:  # nobody is interrupted while something is put down
                await connection.close()
        if self._broken is not None:
            raise self._broken

    async def _converse(self, connection: ClientSideConnection) -> None:
        limit = min(START_S, self._profile.idle_s)
        try:
            async with asyncio.timeout(limit):
                name = await self._open(connection)
        except TimeoutError:
            self._hearing.ending.silent_s = limit
            raise
        if name.isprintable() and len(name) <= MAX_NAME_CHARS:  # else it cannot be asked for again
            await self._put_down(Began(name))
        self._messages.is_listening = True
        prompt = asyncio.ensure_future(self._prompt(connection, name))
        try:
            await self._watch(prompt)
        except asyncio.CancelledError:
            with suppress(Exception):  # it is told, and need not answer
                await asyncio.wait_for(connection.cancel(name), CANCEL_S)
                await asyncio.wait({prompt}, timeout=CANCEL_S)
            raise
        finally:
            prompt.cancel()
            await asyncio.wait({prompt})
        await self._put_down(prompt.result())

    async def _open(self, connection: ClientSideConnection) -> str:
        """Greet, then begin a conversation or load one; the name of it."""
        from acp import PROTOCOL_VERSION, RequestError
        from acp.schema import ClientCapabilities, FileSystemCapabilities, Implementation

        fs = FileSystemCapabilities(read_text_file=False, write_text_file=False)
        greeted = await connection.initialize(
            PROTOCOL_VERSION,
            client_capabilities=ClientCapabilities(fs=fs, terminal=False),
            client_info=Implementation(name="fanfold", version=version("fanfold")),
        )
        about = greeted.agent_info
        await self._put_down(Began("", "", about.version if about is not None else ""))
        cwd = self._turn.folder
        can = greeted.agent_capabilities
        at = can.mcp_capabilities if can is not None else None
        http, sse = (at is not None and bool(way) for way in (at and at.http, at and at.sse))
        servers = for_session(self._servers, http, sse) if self._servers else None
        if self._turn.resumes:
            if can is None or not can.load_session:
                raise _Lost("it says that it cannot")
            try:
                loaded = await connection.load_session(
                    cwd=cwd, session_id=self._turn.conversation, mcp_servers=servers
                )
            except RequestError as error:
                raise _Lost(_words(error)) from None
            await self._set_up(connection, self._turn.conversation, loaded)
            return self._turn.conversation
        made = await connection.new_session(cwd=cwd, mcp_servers=servers)
        await self._set_up(connection, made.session_id, made)
        return made.session_id

    async def _set_up(self, connection: ClientSideConnection, name: str, made: Any) -> None:
        """Choose the mode in which it asks least, and the model, where it has them."""
        from acp import RequestError

        modes = getattr(made, "modes", None)
        wanted = self._profile.mode
        offered = [mode.id for mode in modes.available_modes] if modes is not None else []
        with suppress(RequestError):  # then it asks, and is answered
            if wanted in offered and modes is not None and modes.current_mode_id != wanted:
                await connection.set_session_mode(session_id=name, mode_id=wanted)
        model = model_for(self._profile, self._request.role.model)
        for option in getattr(made, "config_options", None) or () if model else ():
            if getattr(option, "category", None) == "model" or getattr(option, "id", "") == "model":
                with suppress(RequestError):
                    await connection.set_config_option(config_id=option.id, session_id=name, value=model)

    async def _prompt(self, connection: ClientSideConnection, name: str) -> TurnEnd:
        from acp import text_block

        prompt = with_instructions(self._profile, self._request, self._turn)
        answered = await connection.prompt(session_id=name, prompt=[text_block(prompt)])
        used = answered.usage
        if used is not None:
            cached = (used.cached_read_tokens or 0) + (used.cached_write_tokens or 0)
            price = None if self._cost is None else self._cost.micro_usd
            spent = Usage(used.input_tokens + cached, used.output_tokens, price)
            await self._put_down(Consumed(spent.bounded()))
        reason = str(answered.stop_reason)
        over = reason == "end_turn"
        return TurnEnd(failed=not over, reason=reason, why="" if over else f"it stopped: {reason}")

    async def _watch(self, prompt: asyncio.Future[TurnEnd]) -> None:
        """Wait for the end of the turn, for as long as the agent gets on."""
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        while not prompt.done():
            left = self._last + self._profile.idle_s - loop.time()
            if left <= 0:
                raise TimeoutError
            await asyncio.wait({prompt}, timeout=left)

    # ---------------------------------------------------------------------------------- what it says

    async def _heard(self, fact: Fact) -> None:
        self._last = asyncio.get_running_loop().time()
        if isinstance(fact, Consumed):  # the cost of all so far
            self._cost = fact.usage
        else:
            await self._put_down(fact)

    async def _put_down(self, fact: Fact) -> None:
        async with self._one_by_one:
            if self._broken is not None:
                return
            known = self._hearing.began
            try:
                await self._hearing.hear(fact)
                if self._hearing.began is not known:
                    await self._attached()
            except Exception as error:  # the library would keep it to itself
                self._broken = error
                raise
            self._hearing.ending.lines += 1

    def _garbage(self) -> None:
        self._hearing.ending.garbage += 1
        self._hearing.ending.lines += 1


class _Client:
    """What the agent may ask of us."""

    def __init__(self, read_only: bool, heard: Callable[[Fact], Awaitable[None]]) -> None:
        self._read_only = read_only
        self._heard = heard

    async def request_permission(
        self, *, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        refuse = self._read_only and tool_call.kind in CHANGES
        kinds = ("reject_once", "reject_always") if refuse else ("allow_once", "allow_always")
        chosen = next((one for kind in kinds for one in options if one.kind == kind), None)
        if refuse or chosen is None:
            await self._heard(
                Denied(tool_call.tool_call_id, str(tool_call.kind or tool_call.title or "tool"))
            )
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        )

    async def session_update(self, **_: Any) -> None:
        """Heard before the library sees it."""


def _words(error: Exception) -> str:
    """What an agent says went wrong, with what it says beyond the usual words."""
    data = getattr(error, "data", None)
    more = (
        data
        if isinstance(data, str)
        else data.get("details") or data.get("message")
        if isinstance(data, dict)
        else None
    )
    return f"{error}: {more}" if more else str(error)


def _load() -> None:
    """Import the library, which takes half a second, and keep it from writing to the terminal."""
    if "acp" not in _loaded:
        own = os.path.dirname(importlib.import_module("acp").__file__ or "")
        logging.getLogger().addFilter(lambda record: not record.pathname.startswith(own))
        _loaded.add("acp")


_loaded: set[str] = set()


async def listen(
    profile: Profile,
    program: AgentProgram,
    call: ProgramCall,
    request: SessionRequest,
    turn: Turn,
    hearing: Hearing,
    attached: Callable[[], Awaitable[None]],
) -> None:
    """Hold one turn with a program that speaks the protocol; see `session.Listen`."""
    await AgentTurn(program, request, profile, turn, hearing, attached, call.servers).run()
    hearing.ending.stderr = program.said()
    if hearing.ending.finished is None and not hearing.ending.stopped:
        hearing.ending.troubles = [
            *hearing.ending.troubles,
            Hitch("it ended in the middle of the conversation"),
        ]
