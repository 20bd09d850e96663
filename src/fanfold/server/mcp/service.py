"""The MCP server of a project: the SDK's, with lists that are looked up when they are asked for.

Every call opens the project anew, so that it sees recipes, roles and settings as they are, and closes it when
it is over. What a call started goes on without the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio
import msgspec
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolResult,
    GetPromptResult,
    InputRequiredResult,
    Prompt,
    Resource,
    ResourceTemplate,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as OfferedTool
from pydantic import AnyUrl

from fanfold.errors import FanfoldError, NotFoundError
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.server.mcp import prompts, resources
from fanfold.server.mcp.person import AnswerNeeded, ClientPerson, Rounds
from fanfold.tools.caller import Caller, CallMemory
from fanfold.tools.registry import INSTRUCTIONS, call_tool, offered
from fanfold.tools.tool import Tool

_Result = TypeVar("_Result")
PATIENCE_S = 24 * 3_600.0
"""How long a person may take to answer."""
HOW_TO_ALLOW = (
    "this client shows no questions: the user can do it in a terminal, or let the server run without asking:"
    " fanfold mcp --permission auto"
)
ON_THE_CONSOLE = (
    "this client shows no questions: the user can do it in a terminal, or on this server's console"
)


class FanfoldServer(MCPServer[Any]):
    """`open_project` puts the project together; `options` hold for whatever calls start. `how_to_allow` is
    what somebody can do whose client cannot ask them.
    """

    def __init__(
        self,
        open_project: Callable[[], Project],
        options: Options,
        version: str,
        how_to_allow: str = HOW_TO_ALLOW,
    ) -> None:
        _quiet_logging()  # before the SDK sets up its own
        super().__init__(
            "fanfold",
            title="Fanfold",
            description="Hand one job to a team of agents, and get a single answer back",
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
        """Set when connections are closed or lost: calls then end, and what they started goes on."""

    async def serve(self, incoming: Any, outgoing: Any) -> None:
        """Serve one connection until the other side closes it."""
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

    async def list_tools(self) -> list[OfferedTool]:
        with self._project() as project:
            return [_offered(tool) for tool in offered(project)]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        assert context is not None, "a call comes from a client"
        call, asked = self._rounds.begin(context)
        person = ClientPerson(context, asked)
        async with call.alone:
            if call.result is not None:
                return call.result
            try:
                result = await _undisturbed(self._carry_out(name, arguments, context, person, call.memory))
            except AnswerNeeded as needed:
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
        told = 0

        async def report(line: str) -> None:
            nonlocal told
            told += 1
            await context.report_progress(told, message=line)

        with self._project() as project:
            caller = Caller(
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
        with self._project() as project:
            return prompts.list_prompts(project)

    async def get_prompt(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        context: Context[Any, Any] | None = None,  # noqa: ARG002 - the SDK's signature
    ) -> GetPromptResult | InputRequiredResult:
        with self._project() as project:
            try:
                return prompts.get_prompt(project, name, arguments or {})
            except FanfoldError as error:
                raise MCPError(code=INVALID_PARAMS, message=_words(error)) from None

    # Runs

    async def list_resources(self) -> list[Resource]:
        with self._project() as project:
            return resources.list_resources(project)

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return list(resources.TEMPLATES)

    async def read_resource(
        self,
        uri: AnyUrl | str,
        context: Context[Any, Any] | None = None,  # noqa: ARG002 - the SDK's signature
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        with self._project() as project:
            try:
                text, kind = resources.read_resource(project, str(uri))
            except NotFoundError as error:
                raise ResourceNotFoundError(_words(error)) from None
            except FanfoldError as error:
                raise ResourceError(_words(error)) from None
        return [ReadResourceContents(content=text, mime_type=kind)]


def _offered(tool: Tool) -> OfferedTool:
    return OfferedTool(
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


def _words(error: FanfoldError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


async def _undisturbed(call: Coroutine[Any, Any, _Result]) -> _Result:
    """Have a call done in a task of its own, which hears once that it is cancelled.

    The SDK's tasks are told again and again until they are over, so that nothing could be cleared up in them.
    """
    task = asyncio.create_task(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})
        raise


def _quiet_logging() -> None:
    """What this process logs goes to stderr: over stdio, stdout belongs to the protocol."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
