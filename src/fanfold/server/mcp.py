"""The MCP server of a project, on top of the server of the SDK.

Every call opens the project, so that it reads the current recipes, roles and settings, and closes it at the
end. Runs that a call started continue without the server.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
import secrets
import shlex
import signal
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import anyio
import msgspec
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.server.request_state import RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    ErrorData,
    GetPromptResult,
    InputRequiredResult,
    JSONRPCError,
    Prompt,
    PromptArgument,
    PromptMessage,
    Resource,
    ResourceTemplate,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as OfferedTool
from mcp_types.version import is_version_at_least
from msgspec import Struct
from pydantic import AnyUrl, ValidationError
from starlette.types import ASGIApp

from fanfold.api.history import inspect_step, report_of, transcript
from fanfold.api.project import Project
from fanfold.api.recipes import check_recipe
from fanfold.api.run_documents import indented
from fanfold.api.run_options import Options
from fanfold.api.tool_registry import INSTRUCTIONS, call_tool, instructions, offered
from fanfold.api.tools import (
    CallMemory,
    Form,
    FormAnswer,
    ToolContext,
    as_tool_calls,
    permit_by_forms,
)
from fanfold.api.transcripts import transcript_text
from fanfold.errors import FanfoldError, NotFoundError
from fanfold.language.consent import ConsentRequest
from fanfold.language.inputs import parse_input_text

# -----------------------------------------------------------------------------------------------------------
# Recipes as prompts: a user picks one in the client, and the model gets the call that runs it.

MAX_PROMPTS = 200


# -----------------------------------------------------------------------------------------------------------
# Runs as resources: the report of each, the output of a step, the transcript of an agent.

SCHEME = "fanfold://runs/"
MARKDOWN = "text/markdown"
MAX_LISTED = 50
MAX_CHARS = 1_000_000

TEMPLATES = [
    ResourceTemplate(name=name, uri_template=f"{SCHEME}{{run}}/{path}", mime_type=kind, description=about)
    for name, path, kind, about in (
        ("report", "report", MARKDOWN,
         "The report of a run: request, answer, steps, changes and failures"),
        ("output", "outputs/{+step}", "text/plain",
         "The output of one step, cut if very long, with the command for the rest"),
        ("transcript", "transcripts/{+step}", MARKDOWN,
         "The prompts, replies and tool calls of the agent of one step"),
    )
]  # fmt: skip


def read_resource(project: Project, uri: str) -> tuple[str, str]:
    """Return the text of a resource and its media type."""
    parts = uri.removeprefix(SCHEME).split("/", 2) if uri.startswith(SCHEME) else []
    run, what, step = (*map(unquote, parts), "", "", "")[:3]
    if what == "report" and not step:
        text, kind = report_of(project, run), MARKDOWN
    elif what == "outputs" and step:
        text, kind = indented(inspect_step(project, run, step).output), "text/plain"
    elif what == "transcripts" and step:
        text, kind = transcript_text(transcript(project, run, step)), MARKDOWN
    else:
        hint = "fanfold://runs/RUN/report, /outputs/STEP or /transcripts/STEP"
        raise NotFoundError("resource.not_found", f"unknown resource {uri[:200]}", hint=hint)
    if len(text) > MAX_CHARS:
        command = "inspect" if what == "outputs" else "transcript"
        whole = f"fanfold {command} {shlex.quote(run)} {shlex.quote(step)}"
        text = f"{text[:MAX_CHARS]}\n\n… {len(text) - MAX_CHARS:,} more characters: {whole}\n"
    return text, kind


# -----------------------------------------------------------------------------------------------------------
# Questions to the user of an MCP client, by elicitation: the client shows a form, the model never answers.
#
# Two versions of the protocol:
# * Until 2025-11-25 the server sends its own request during the call and receives the answer.
# * Since 2026-07-28 the call ends with `input_required`. The client repeats the call with the answer and the
#   state that it received. The resolvers of the SDK store only answers between rounds. A call of ours may
#   have started a run, which must not start again, so `Rounds` stores the call. The SDK seals the state and
#   binds it to the arguments. An answer is valid only for the question that was asked, and once: a repeated
#   answer returns the same result.

IN_ROUNDS = "2026-07-28"
"""The first protocol version in which a call that needs an answer ends and is repeated."""
MAX_OPEN_CALLS = 1_000


class InputRequired(BaseException):
    """Ends a call that the client must repeat with an answer. Not an error: only the server catches it."""

    def __init__(self, form: Form) -> None:
        super().__init__(form.key)
        self.form = form


class RoundState(Struct, frozen=True):
    """The state that the client returns with an answer."""

    token: str
    run: str
    asked: dict[str, str]
    """The digest of each question by its key."""


class OpenCall:
    """A call that a client may repeat, with one more answer each time."""

    def __init__(self, state: RoundState) -> None:
        self.token = state.token
        self.memory = CallMemory(run=state.run)
        self.alone = asyncio.Lock()
        """Acquired during the call, because a client may send the same answer twice at once."""
        self.result: CallToolResult | None = None

    def input_required(self, needed: InputRequired) -> InputRequiredResult:
        """Return the question for the client, with the state that it must return with the answer."""
        form = needed.form
        state = RoundState(self.token, self.memory.run, {form.key: _digest(form)})
        request = ElicitRequest(
            params=ElicitRequestFormParams(message=form.message, requested_schema=_schema(form))
        )
        return InputRequiredResult(
            input_requests={form.key: request}, request_state=msgspec.json.encode(state).decode()
        )


class Rounds:
    """Open calls: those that wait for an answer, and answered ones that a client may repeat."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, OpenCall] = OrderedDict()

    def begin(self, context: Context[Any, Any]) -> tuple[OpenCall, dict[str, str]]:
        """Return the call, and the digests of its last question, which are empty for a new call."""
        state = RoundState(secrets.token_urlsafe(16), "", {})
        if context.request_state:
            state = msgspec.json.decode(context.request_state, type=RoundState)
        call = self._calls.setdefault(state.token, OpenCall(state))
        while len(self._calls) > MAX_OPEN_CALLS:
            self._calls.popitem(last=False)
        return call, state.asked

    def end(self, call: OpenCall, result: CallToolResult, asked: Mapping[str, str]) -> None:
        """Store the result of a call. After a question the client may repeat the call with its answer."""
        if asked:
            call.result = result
        else:
            self._calls.pop(call.token, None)


class ClientPerson:
    """The user of the client that made a call."""

    def __init__(self, context: Context[Any, Any], asked: dict[str, str], memory: CallMemory) -> None:
        self._context = context
        self._asked = asked
        self._memory = memory

    async def permit(self, request: ConsentRequest) -> bool | None:
        return await permit_by_forms(self.fill_in, self._memory.shown, request)

    async def fill_in(self, form: Form) -> FormAnswer | None:
        capabilities = self._context.client_capabilities
        offered = None if capabilities is None else capabilities.elicitation
        if offered is None or (offered.form is None and offered.url is not None):
            return None  # a client that declares no mode supports only forms
        if is_version_at_least(self._context.protocol_version or "", IN_ROUNDS):
            answer = (self._context.input_responses or {}).get(form.key)
            if not isinstance(answer, ElicitResult) or self._asked.get(form.key) != _digest(form):
                raise InputRequired(form)
            return _form_answer(answer)
        session = self._context.request_context.session
        if not session.can_send_request:
            return None
        try:
            answered = await session.elicit_form(
                form.message, _schema(form), related_request_id=self._context.request_context.request_id
            )
        except (MCPError, ValidationError):
            return None  # the client declared forms but refused this one
        return _form_answer(answered)


def _form_answer(answer: ElicitResult) -> FormAnswer:
    return FormAnswer(
        dict(answer.content) if answer.action == "accept" and answer.content is not None else None
    )


def _schema(form: Form) -> dict[str, Any]:
    return {"type": "object", "properties": form.properties, "required": list(form.required)}


def _digest(form: Form) -> str:
    return hashlib.sha256(msgspec.json.encode([form.message, _schema(form)])).hexdigest()[:32]


_Result = TypeVar("_Result")
PATIENCE_S = 24 * 3_600.0
"""The maximum time for an answer."""
HOW_TO_ALLOW = (
    "this client cannot show questions: the user can run the command in a terminal, or start the server with"
    " fanfold mcp --permission auto"
)
ON_THE_CONSOLE = (
    "this client cannot show questions: the user can answer in a terminal, or on this server's console"
)


class FanfoldServer(MCPServer[Any]):
    """The MCP server. `open_project` opens the project, and `options` apply to every run that a call starts.

    `how_to_allow` is the hint for users whose client cannot show questions.
    """

    def __init__(
        self,
        open_project: Callable[[], Project],
        options: Options,
        version: str,
        how_to_allow: str = HOW_TO_ALLOW,
    ) -> None:
        # Must precede the setup of the SDK: over stdio, stdout belongs to the protocol, so logs use stderr.
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        super().__init__(
            "fanfold",
            title="Fanfold",
            description="Fan a job out to a team of agents and fold one answer back",
            instructions=INSTRUCTIONS,
            version=version,
            log_level="WARNING",
            request_state_security=RequestStateSecurity.ephemeral(ttl=PATIENCE_S),
        )
        self._open_project = open_project
        self._options = options
        self._how_to_allow = how_to_allow
        self._rounds = Rounds()
        self.leaving = False
        """Set when connections are closed or lost: calls then end, and their runs continue."""

    async def serve(self, incoming: Any, outgoing: Any) -> None:
        """Serve one connection until the other side closes it."""
        self.refresh_instructions()
        own = self._lowlevel_server
        await own.run(incoming, outgoing, own.create_initialization_options())

    @contextmanager
    def _project(self) -> Iterator[Project]:
        project = self._open_project()
        try:
            yield project
        finally:
            project.close()

    # Tools

    def refresh_instructions(self) -> None:
        """Update the instructions for the next client with the current workflows and roles."""
        with suppress(FanfoldError), self._project() as project:
            self._lowlevel_server.instructions = instructions(project)

    async def list_tools(self) -> list[OfferedTool]:
        self.refresh_instructions()
        with self._project() as project:
            return [
                OfferedTool(
                    name=tool.name,
                    title=tool.title,
                    description=tool.description,
                    input_schema=tool.input_schema,
                    output_schema=tool.output_schema,
                    annotations=ToolAnnotations(
                        read_only_hint=not tool.mutates,
                        destructive_hint=tool.ends_something,
                        idempotent_hint=False if tool.mutates else None,
                        open_world_hint=tool.mutates,
                    ),
                )
                for tool in offered(project)
            ]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        assert context is not None, "a call comes from a client"
        call, asked = self._rounds.begin(context)
        person = ClientPerson(context, asked, call.memory)
        async with call.alone:
            if call.result is not None:
                return call.result
            try:
                result = await _shielded(self._carry_out(name, arguments, context, person, call.memory))
            except InputRequired as needed:
                return call.input_required(needed)
            self._rounds.end(call, result, asked)
            return result

    async def _carry_out(
        self,
        name: str,
        arguments: dict[str, Any],
        context: Context[Any, Any],
        person: ClientPerson,
        memory: CallMemory,
    ) -> CallToolResult:
        reported = 0

        async def report(line: str) -> None:
            nonlocal reported
            reported += 1
            await context.report_progress(reported, message=line)

        with self._project() as project:
            caller = ToolContext(
                project=project,
                options=self._options,
                person=person,
                report=report,
                memory=memory,
                was_cancelled=lambda: not self.leaving,
                how_to_allow=self._how_to_allow,
            )
            document = await call_tool(caller, name, arguments)
        text = TextContent(type="text", text=msgspec.json.encode(document).decode())
        return CallToolResult(content=[text], structured_content=document, is_error=not document["ok"])

    # Recipes

    async def list_prompts(self) -> list[Prompt]:
        """List the recipes that can be run, of several versions the highest; none if workflows are off."""
        prompts: list[Prompt] = []
        with self._project() as project:
            recipes = project.library.list() if project.config.switch("workflows.enabled") else []
            for name in dict.fromkeys(one.name for one in recipes):
                try:
                    plan = check_recipe(project, name).runnable()
                except FanfoldError:
                    continue  # `fanfold check` reports its errors
                arguments = [
                    PromptArgument(name=one.name, description=one.description or None, required=one.required)
                    for one in plan.inputs
                ]
                about = plan.description or f"Run the workflow {name}"
                prompts.append(Prompt(name=name, title=name, description=about, arguments=arguments))
        return prompts[:MAX_PROMPTS]

    async def get_prompt(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        context: Context[Any, Any] | None = None,  # noqa: ARG002 - the SDK's signature
    ) -> GetPromptResult | InputRequiredResult:
        given = arguments or {}
        with self._project() as project:
            try:
                plan = check_recipe(project, name).runnable()
                inputs = {i.name: parse_input_text(i, given[i.name]) for i in plan.inputs if i.name in given}
            except FanfoldError as error:
                raise MCPError(code=INVALID_PARAMS, message=_error_text(error)) from None
        call = msgspec.json.encode({"name": name, "inputs": inputs}).decode()
        missing = [one.name for one in plan.inputs if one.required and one.name not in given]
        lines = [
            f"Run the Fanfold workflow `{name}` for me. {plan.description}".rstrip(),
            f"Call the tool `run_workflow` with {call}",
            *([f"First ask me for: {', '.join(missing)}."] if missing else []),
            "Then summarize the result in a few sentences, with the run id.",
        ]
        message = PromptMessage(role="user", content=TextContent(type="text", text="\n".join(lines)))
        return GetPromptResult(description=plan.description or None, messages=[message])

    # Runs

    async def list_resources(self) -> list[Resource]:
        """List the reports of the latest runs."""
        with self._project() as project:
            return [
                Resource(
                    uri=f"{SCHEME}{quote(head.run_id, safe='')}/report",
                    name=head.run_id,
                    title=f"{head.recipe}: {head.status}",
                    description=f"Report of run {head.run_id} of {head.recipe}",
                    mime_type=MARKDOWN,
                )
                for head in project.heads(limit=MAX_LISTED)
            ]

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return TEMPLATES

    async def read_resource(
        self,
        uri: AnyUrl | str,
        context: Context[Any, Any] | None = None,  # noqa: ARG002 - the SDK's signature
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        with self._project() as project:
            try:
                text, kind = read_resource(project, str(uri))
            except NotFoundError as error:
                raise ResourceNotFoundError(_error_text(error)) from None
            except FanfoldError as error:
                raise ResourceError(_error_text(error)) from None
        return [ReadResourceContents(content=text, mime_type=kind)]


def _error_text(error: FanfoldError) -> str:
    return f"{error.message} ({as_tool_calls(error.hint)})" if error.hint else error.message


async def _shielded(call: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a call in its own task, which is cancelled once.

    The SDK cancels its own tasks repeatedly until they end, so no clean-up can finish in them.
    """
    task = asyncio.create_task(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})
        raise


# -----------------------------------------------------------------------------------------------------------
# Transports: stdin and stdout, or an endpoint of an HTTP server.
#
# Over HTTP, only exact hosts and origins are accepted. The surrounding HTTP server authenticates the caller.


class HttpEndpoint:
    """The server as an HTTP endpoint: `app` answers one path while `lifespan` is entered.

    `hosts` and `origins` are exact, with their port. Without them, the surrounding server checks both.
    """

    def __init__(
        self, server: MCPServer[Any], hosts: Sequence[str] | None = None, origins: Sequence[str] = ()
    ) -> None:
        security = TransportSecuritySettings(
            enable_dns_rebinding_protection=hosts is not None,
            allowed_hosts=list(hosts or ()),
            allowed_origins=list(origins),
        )
        server.streamable_http_app(transport_security=security)  # creates the session manager
        self._server = server
        self._manager = server.session_manager
        self.app: ASGIApp = StreamableHTTPASGIApp(self._manager)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """The lifespan of the endpoint, in the event loop of the HTTP server."""
        if isinstance(self._server, FanfoldServer):
            self._server.refresh_instructions()
        async with self._manager.run():
            try:
                yield
            finally:
                self.stopping()

    def stopping(self) -> None:
        """Note that the server ends: its calls end without being cancelled by clients."""
        if isinstance(self._server, FanfoldServer):
            self._server.leaving = True


async def serve_stdio(server: FanfoldServer) -> None:
    """Serve the client on stdin and stdout until it disconnects.

    Raises `BrokenPipeError` if it disconnected before it received every message.
    """
    here = asyncio.current_task()
    assert here is not None

    def leave() -> None:
        server.leaving = True
        here.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leave)
    try:
        async with stdio_server() as (incoming, outgoing):
            await server.serve(_Incoming(incoming, outgoing, server), outgoing)
    except asyncio.CancelledError:
        if not server.leaving:
            raise
    except BaseExceptionGroup as several:
        gone, others = several.split(BrokenPipeError)
        if gone is None or others is not None:
            raise
        raise BrokenPipeError(errno.EPIPE, "the client disconnected") from None


class _Incoming:
    """The messages of a client. The end of the messages ends the connection and cancels no run.

    An invalid line gets an error response. The SDK drops it, and its sender would wait for ever.
    """

    def __init__(self, incoming: Any, outgoing: Any, server: FanfoldServer) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._server = server

    def __aiter__(self) -> _Incoming:
        return self

    async def __anext__(self) -> Any:
        try:
            while isinstance(message := await self._incoming.__anext__(), Exception):
                for refusal in _refusals(message):
                    with suppress(
                        anyio.BrokenResourceError, anyio.ClosedResourceError
                    ):  # no client is connected
                        await self._outgoing.send(SessionMessage(refusal))
            return message
        except StopAsyncIteration:
            self._server.leaving = True
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._incoming, name)


def _refusals(wrong: Exception) -> list[JSONRPCError]:
    """Return error responses for an invalid line: one for each request id in it, else one without an id."""
    if not isinstance(wrong, ValidationError):
        return [_refusal(None, PARSE_ERROR, "this line is not valid text")]
    mistakes = wrong.errors(include_url=False)
    if mistakes[0]["type"] != "json_invalid":
        message = "this line is not a JSON-RPC 2.0 message; send one message per line"
        asked = next(filter(None, (_requests_in(one["input"]) for one in mistakes)), [])
        return [_refusal(one, INVALID_REQUEST, message) for one in asked or [None]]
    line = mistakes[0]["input"]
    try:
        asked = _requests_in(json.loads(line))  # also accepts invalid UTF-8
    except (ValueError, RecursionError):
        asked = []
    return [_refusal(one, PARSE_ERROR, mistakes[0]["msg"]) for one in asked or [None]] if line.strip() else []


def _requests_in(found: Any) -> list[str | int | None]:
    """Return the ids of the requests in one or more messages."""
    several = found if isinstance(found, list) else [found]
    ids = [one.get("id") for one in several if isinstance(one, dict) and "method" in one]
    return [one for one in ids if isinstance(one, str) or type(one) is int]


def _refusal(request: str | int | None, code: int, message: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=request, error=ErrorData(code=code, message=message))
