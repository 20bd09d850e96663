"""One turn with an agent over the Agent Client Protocol, with the official library.

Rules
* Fanfold offers neither files nor terminals. The agent works in the workspace itself, and the sandbox is the
  boundary. A request for permission is answered at once: yes, unless the role is read-only and the agent asks
  to change something.
* A conversation that continues is loaded by its id. Messages during loading are history.
* A cancelled turn is also cancelled in the agent, with a short time to stop. Then its process tree is ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from fanfold.agents.backend import AgentProgram, SessionFailed, SessionRequest, import_in_thread
from fanfold.agents.command.calls import ProgramCall, Turn, for_session, model_for, with_instructions
from fanfold.agents.command.events import (
    ConversationStart,
    Delta,
    DenialEvent,
    Fact,
    Hitch,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    TurnEnd,
    UsageEvent,
    consumed,
    decode_line,
    facts_in,
)
from fanfold.agents.command.profile import Profile, Rule
from fanfold.agents.command.recorder import CHUNK_BYTES, LOOK_S, LineCutter, TranscriptRecorder
from fanfold.agents.command.transcript_events import short
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.plan import JSON
from fanfold.language.terminal import shorten_line

if TYPE_CHECKING:
    from acp.client.connection import ClientSideConnection
    from acp.schema import PermissionOption, RequestPermissionResponse, ToolCallUpdate

# -----------------------------------------------------------------------------------------------------------
# The messages of an agent, line by line, before the library of the protocol receives them.
#
# Rules
# * Reports about the agent's work (`session/update`) become facts here, from the plain JSON. Agents send more
#   kinds of reports than any version of the library knows. The `asides` of the profile read unknown kinds.
# * The library gets only requests and responses. Lines that are not messages do not reach it, because it
#   would print them.
# * Updates after the response to a prompt are ignored.
# * A request for permission is normalized first. An unknown option cannot grant permission.

UPDATE = "session/update"
PROMPT = "session/prompt"
PERMISSION = "session/request_permission"
TOOL_KINDS = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
KINDS = ("allow_once", "allow_always", "reject_once", "reject_always")
MAX_OPEN_CALLS = 64
_OVER = ("completed", "failed")


class AgentMessages:
    """A transport of the library, over the pipes of a program.

    `hear` receives each fact, and reading continues after it returns. `garbage` is called for each line that
    is not a message.
    """

    def __init__(
        self,
        program: AgentProgram,
        hear: Callable[[Fact], Awaitable[None]],
        garbage: Callable[[], None],
        rules: Sequence[Rule] = (),
    ) -> None:
        self._program = program
        self._rules = rules
        self._hear = hear
        self._garbage = garbage
        self._lines = LineCutter()
        self._ready: list[dict[str, Any]] = []
        self._calls: dict[str, dict[str, JSON]] = {}
        self._asked: Any = None
        self.is_listening = False
        """Whether updates belong to this turn; earlier ones are history."""

    async def send(self, message: dict[str, Any]) -> None:
        if message.get("method") == PROMPT:
            self._asked = message.get("id")
        self._program.stdin.write(msgspec.json.encode(message) + b"\n")
        await self._program.stdin.drain()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message for the library; None at the end."""
        while not self._ready:
            await self._program.stdin.drain()  # backpressure if the agent does not read responses
            data = await self._program.stdout.read(CHUNK_BYTES)
            if not data:
                return None
            for line in self._lines.add(data):
                if line is None or line.strip():
                    for fact in self._take(line):
                        await self._hear(fact)
            await asyncio.sleep(0)  # lets other tasks run, however much arrives
        return self._ready.pop(0)

    async def close(self) -> None:
        """Do nothing: the session that started the program ends it."""

    def _take(self, line: bytes | None) -> list[Fact]:
        """Return the facts in a line; a message for the library is queued."""
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
                return [TextEvent(_text(update.get("content")), str(update.get("messageId") or ""), "", True)]
            case "agent_thought_chunk":
                return [Delta("")]  # shows that it is alive
            case "tool_call" | "tool_call_update":
                return self._call(update)
            case "usage_update":
                cost = update.get("cost")
                return consumed({"usd": cost.get("amount")}, "all") if isinstance(cost, dict) else []
        return list(facts_in(update, self._rules))

    def _call(self, update: Mapping[str, JSON]) -> list[Fact]:
        """Return the facts of a call, combined from its updates, because its arguments may arrive late."""
        name = short(str(update.get("toolCallId") or ""))
        known = self._calls.pop(name, {})
        known.update({key: value for key, value in update.items() if value not in (None, {}, [], "")})
        if known.get("status") not in _OVER:
            self._calls[name] = known
            while len(self._calls) > MAX_OPEN_CALLS:
                del self._calls[next(iter(self._calls))]
        # Agents have their own names of tools besides the kinds of the protocol.
        meta = known.get("_meta")
        own = (
            [inner.get("toolName") for inner in meta.values() if isinstance(inner, dict)]
            if isinstance(meta, dict)
            else []
        )
        tool = next((named for named in own if isinstance(named, str)), None)
        tool = tool or str(known.get("kind") or known.get("title") or "tool")
        facts: list[Fact] = []
        if known.get("rawInput") is not None or known.get("status") in (*_OVER, "in_progress"):
            facts.append(ToolCallEvent(name, tool, known.get("rawInput")))
        else:
            facts.append(Delta(""))
        if known.get("status") in _OVER:
            text = _text(known.get("content")) or _text(known.get("rawOutput"))
            facts.append(
                ToolResultEvent(name, text, known["status"] == "failed", tool, known.get("rawInput"))
            )
        return facts


def _text(content: JSON) -> str:
    """Return the text of a block, of a list of blocks, or of a tool's output."""
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
    """Return a message that the library can read, because it rejects others or waits forever."""
    error = message.get("error")
    if error is not None and not (isinstance(error, dict) and isinstance(error.get("message"), str)):
        return {**message, "error": {"code": -32603, "message": f"an error that says: {error}"[:1_000]}}
    if message.get("method") != PERMISSION:
        return message
    params = message.get("params")
    fields = params if isinstance(params, dict) else {}
    options, call = fields.get("options"), fields.get("toolCall")
    kept = [
        {"optionId": one["optionId"], "kind": one["kind"], "name": str(one.get("name") or one["kind"])}
        for one in (options if isinstance(options, list) else ())
        if isinstance(one, dict) and isinstance(one.get("optionId"), str) and one.get("kind") in KINDS
    ]
    known = call if isinstance(call, dict) else {}
    tool_call = {
        "toolCallId": str(known.get("toolCallId") or ""),
        **{key: known[key] for key in ("kind", "title") if isinstance(known.get(key), str)},
    }
    if tool_call.get("kind") not in TOOL_KINDS:
        tool_call.pop("kind", None)
    request = {"sessionId": str(fields.get("sessionId")), "toolCall": tool_call, "options": kept}
    return {**message, "params": request}


CANCEL_S = 1.0
ENDING_S = 0.05
START_S = 120.0
CHANGES = ("edit", "delete", "move")
"""Kinds of calls that a read-only role is not allowed to make."""
MAX_NAME_CHARS = 500
MAX_WHY_CHARS = 300


class _TurnStopped(Exception):
    """The agent must end its turn now; the recorder has the reason."""


class _UnknownConversation(Exception):
    """The agent does not know the conversation."""


class AgentTurn:
    """One connection and one prompt."""

    def __init__(
        self,
        program: AgentProgram,
        request: SessionRequest,
        profile: Profile,
        turn: Turn,
        transcript: TranscriptRecorder,
        attached: Callable[[], Awaitable[None]],
        call: ProgramCall,
    ) -> None:
        self._call = call
        self._request = request
        self._profile = profile
        self._turn = turn
        self._transcript = transcript
        self._attached = attached
        self._one_by_one = asyncio.Lock()
        self._broken: Exception | None = None
        """The error after which no more facts can be recorded."""
        self._messages = AgentMessages(program, self._heard, self._garbage, profile.asides)
        self._failed: TurnEnd | None = None
        """The failed end of the turn that the agent reported before its response, which may deny it."""
        self._last = 0.0
        self._cost: Usage | None = None
        self._prompting: asyncio.Future[TurnEnd] | None = None
        self._is_stopping = False
        """Whether its own output was the reason to stop it. Then it is cancelled; else its program is ended,
        because some agents drop the conversation of a cancelled turn."""

    async def run(self) -> None:
        """Run the turn; the recorder has its outcome."""
        await import_in_thread(["acp"])
        from acp import RequestError
        from acp.client.connection import ClientSideConnection

        logging.getLogger().addFilter(_is_not_of_library)
        client: Any = _Client(self._request.role.read_only, self._heard)
        connection = ClientSideConnection(client, self._messages)
        try:
            await self._converse(connection)
        except _TurnStopped:
            pass
        except TimeoutError:
            self._transcript.ending.stopped = "idle"
        except _UnknownConversation as lost:
            await self._put_down(TurnEnd(failed=True, why=f"the conversation cannot be loaded: {lost}"))
        except RequestError as error:
            why = _words(error)
            reason = next((words for words in self._profile.reasons if words in why), "")
            await self._put_down(TurnEnd(failed=True, why=why, reason=reason))
        except ValueError as error:  # errors that the library finds in a response
            why = shorten_line(f"it violates the protocol: {error}", MAX_WHY_CHARS)
            await self._put_down(TurnEnd(failed=True, why=why))
        except (ConnectionError, OSError):
            pass  # it has ended; its outcome is judged from its output
        finally:
            async with self._one_by_one:  # no interruption while a fact is recorded
                await connection.close()
        if self._broken is not None:
            raise self._broken

    async def _converse(self, connection: ClientSideConnection) -> None:
        limit = min(START_S, self._profile.idle_s)
        try:
            async with asyncio.timeout(limit):
                name = await self._open(connection)
        except TimeoutError:
            self._transcript.ending.silent_s = limit
            raise
        if name.isprintable() and len(name) <= MAX_NAME_CHARS:  # otherwise it cannot be resumed
            await self._put_down(ConversationStart(name))
        self._messages.is_listening = True
        prompt = self._prompting = asyncio.ensure_future(self._prompt(connection, name))
        try:
            await self._watch(prompt)
        except (asyncio.CancelledError, _TurnStopped):
            with suppress(Exception):  # it is notified, and need not respond
                await asyncio.wait_for(connection.cancel(name), CANCEL_S)
                await asyncio.wait({prompt}, timeout=CANCEL_S)
            raise
        finally:
            prompt.cancel()
            await asyncio.wait({prompt})
        if self._broken is None:
            end = prompt.result()
            if self._failed is not None:  # its last message is the reason
                end = structs.replace(
                    self._failed, why=self._failed.why or self._transcript.ending.words.text
                )
            await self._put_down(end)

    async def _open(self, connection: ClientSideConnection) -> str:
        """Initialize the connection, then start or load a conversation; return its id."""
        from acp import PROTOCOL_VERSION, RequestError
        from acp.schema import ClientCapabilities, FileSystemCapabilities, Implementation

        fs = FileSystemCapabilities(read_text_file=False, write_text_file=False)
        greeted = await connection.initialize(
            PROTOCOL_VERSION,
            client_capabilities=ClientCapabilities(fs=fs, terminal=False),
            client_info=Implementation(name="fanfold", version=version("fanfold")),
        )
        about = greeted.agent_info
        await self._put_down(ConversationStart("", "", about.version if about is not None else ""))
        cwd = self._turn.folder
        can = greeted.agent_capabilities
        at = can.mcp_capabilities if can is not None else None
        http, sse = (at is not None and bool(way) for way in (at and at.http, at and at.sse))
        servers = for_session(self._call.servers, http, sse) if self._call.servers else None
        if self._turn.resumes:
            if can is None or not can.load_session:
                raise _UnknownConversation("it says that it cannot")
            try:
                loaded = await connection.load_session(
                    cwd, self._turn.conversation, servers, **self._call.meta
                )
            except RequestError as error:
                raise _UnknownConversation(_words(error)) from None
            await self._set_up(connection, self._turn.conversation, loaded)
            return self._turn.conversation
        made = await connection.new_session(cwd, mcp_servers=servers, **self._call.meta)
        await self._set_up(connection, made.session_id, made)
        return made.session_id

    async def _set_up(self, connection: ClientSideConnection, name: str, made: Any) -> None:
        """Select the mode with the fewest questions, and the model, if the agent offers them."""
        from acp import RequestError

        modes, wanted = getattr(made, "modes", None), self._profile.mode
        if modes and modes.current_mode_id != wanted and wanted in [one.id for one in modes.available_modes]:
            with suppress(RequestError):  # if it fails, the agent asks and gets a response
                await connection.set_session_mode(session_id=name, mode_id=wanted)
        model = "" if "{model}" in self._profile.meta.values() else self._request.role.model
        model = model_for(self._profile, model)
        for option in getattr(made, "config_options", None) or () if model else ():
            if getattr(option, "category", None) == "model" or getattr(option, "id", "") == "model":
                try:
                    await connection.set_config_option(config_id=option.id, session_id=name, value=model)
                except RequestError as error:
                    why = f'{self._profile.title} refuses the model "{model}": {_words(error)}'
                    failure = Failure("agent", "agent.failed", why, "name another model in the role", False)
                    raise SessionFailed(failure) from None

    async def _prompt(self, connection: ClientSideConnection, name: str) -> TurnEnd:
        from acp import text_block

        prompt = with_instructions(self._profile, self._request, self._turn)
        answered = await connection.prompt(session_id=name, prompt=[text_block(prompt)])
        used = answered.usage
        if used is not None:
            read = used.input_tokens + (used.cached_read_tokens or 0) + (used.cached_write_tokens or 0)
            price = None if self._cost is None else self._cost.micro_usd
            spent = Usage(read, used.output_tokens, price, used.cached_read_tokens or 0)
            known = self._transcript.so_far
            if known is None or known.tokens <= spent.tokens:  # some report only their last response
                await self._put_down(UsageEvent(spent.bounded()))
        reason = str(answered.stop_reason)
        over = reason == "end_turn"
        return TurnEnd(failed=not over, reason=reason, why="" if over else f"it stopped: {reason}")

    async def _watch(self, prompt: asyncio.Future[TurnEnd]) -> None:
        """Wait for the end of the turn, as long as the agent makes progress."""
        loop, ending = asyncio.get_running_loop(), self._transcript.ending
        self._last = loop.time()
        while not prompt.done() and not self._is_stopping:
            left = self._last + self._profile.idle_s - loop.time()
            if left <= 0:
                raise TimeoutError
            await asyncio.wait({prompt}, timeout=min(left, LOOK_S))
        spent = ending.stopped == "budget"
        if spent:  # the cost can arrive with the end of the turn: then the work is done, and paid for
            await asyncio.wait({prompt}, timeout=ENDING_S)
        if prompt.cancelled() or not prompt.done() or (spent and prompt.exception() is not None):
            raise _TurnStopped  # the prompt stays open, so that the agent can answer that it was cancelled
        if spent:
            ending.stopped = ""

    async def _heard(self, fact: Fact) -> None:
        self._last = asyncio.get_running_loop().time()
        if isinstance(fact, UsageEvent):  # the cost of all so far
            self._cost = fact.usage
        if isinstance(fact, TurnEnd):
            self._failed = fact
            return
        await self._put_down(fact)
        self._is_stopping = bool(self._transcript.ending.stopped)

    async def _put_down(self, fact: Fact) -> None:
        async with self._one_by_one:
            if self._broken is not None:
                return
            known = self._transcript.began
            try:
                await self._transcript.hear(fact)
                if self._transcript.began is not known:
                    await self._attached()
            except Exception as error:  # the library would swallow it
                self._broken = error
                if self._prompting is not None:
                    self._prompting.cancel()
                raise
            self._transcript.ending.lines += 1

    def _garbage(self) -> None:
        self._transcript.ending.garbage += 1
        self._transcript.ending.lines += 1


class _Client:
    """The requests that the agent can send to Fanfold."""

    def __init__(self, read_only: bool, heard: Callable[[Fact], Awaitable[None]]) -> None:
        self._read_only = read_only
        self._heard = heard

    async def request_permission(
        self, *, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        refuse = self._read_only and tool_call.kind in CHANGES
        kinds = ("reject_once", "reject_always") if refuse else ("allow_once", "allow_always")
        chosen = next((option for kind in kinds for option in options if option.kind == kind), None)
        if refuse or chosen is None:
            await self._heard(
                DenialEvent(tool_call.tool_call_id, str(tool_call.kind or tool_call.title or "tool"))
            )
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        )

    async def session_update(self, **_: Any) -> None:
        """Do nothing: updates are read before the library sees them."""


def _is_not_of_library(record: logging.LogRecord) -> bool:
    """Keep the library from writing to the terminal."""
    return not record.pathname.startswith(os.path.dirname(sys.modules["acp"].__file__ or ""))


def _words(error: Exception) -> str:
    """Return an agent's error message with its details."""
    data = getattr(error, "data", None)
    more = data.get("details") or data.get("message") if isinstance(data, dict) else data
    return f"{error}: {more}" if more and isinstance(more, str) else str(error)


async def listen(
    profile: Profile,
    program: AgentProgram,
    call: ProgramCall,
    request: SessionRequest,
    turn: Turn,
    transcript: TranscriptRecorder,
    attached: Callable[[], Awaitable[None]],
) -> None:
    """Run one turn with a program that uses the protocol; see `session.Listen`."""
    await AgentTurn(program, request, profile, turn, transcript, attached, call).run()
    transcript.ending.stderr = program.stderr_text()
    if transcript.ending.finished is None and not transcript.ending.stopped:
        transcript.ending.troubles = [
            *transcript.ending.troubles,
            Hitch("it ended in the middle of the conversation"),
        ]
