"""The tools of a session: which there are for it, and how any of them is called.

Rules
* A session is offered what its role and step list (everything when they list nothing), less what it cannot
  have (no runner, no network, no run to query) and, when it may only read, less every mutation. Artifacts lie
  beside the project, so a role that only reads may leave them, and is offered the tool for it where that is
  listed by name; a user who only lets read wants none.
* What is not offered cannot be called either: a model that names a tool it was not given is told so. Tools
  that drive Fanfold itself are denied to every session that is not a root, whatever its prompt says.
* Mutations pass the permission of the session before they happen, reads do not.
* What goes wrong inside a tool in a way that nobody foresaw is news for the agent too, and is logged. What
  somebody raised on purpose (a cancellation, a lost lease, a contradiction of ours) passes as it is.
* Tools are opened before the session begins and closed when it is over, however it ends: some of them are
  programs that run as long as it does.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from fanfold.agents.backend import SessionRequest
from fanfold.agents.permissions import Action, PermissionDenied, Permissions, Posture
from fanfold.agents.toolbox import Toolbox, ToolFailed
from fanfold.agents.toolbox.artifacts import TOOLS as ARTIFACT_TOOLS
from fanfold.agents.toolbox.artifacts import ArtifactFiles
from fanfold.agents.toolbox.commands import CommandTools, Runner
from fanfold.agents.toolbox.edits import EditTools
from fanfold.agents.toolbox.fetch import FetchTools
from fanfold.agents.toolbox.files import FileTools
from fanfold.agents.toolbox.published import PublishedFiles
from fanfold.agents.toolbox.schemas import (
    ALIASES,
    BY_NAME,
    LEAVES_ARTIFACTS,
    OFFERED_WITH,
    ROOT_TOOLS,
    SPECS,
    ToolSpec,
)
from fanfold.agents.toolbox.search import SearchTools
from fanfold.errors import FanfoldError
from fanfold.kernel.plan import JSON
from fanfold.text.json_schema import misfits
from fanfold.text.json_value import with_text_only

READ_BYTES = 32 * 1024
"""How much of a file a model gets unless it asks for more: it pays for every byte, each turn again."""

MAX_CRASH_CHARS = 400
_log = logging.getLogger(__name__)

Call: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[JSON]]
Query: TypeAlias = Callable[[SessionRequest, str, int], Awaitable[JSON]]
"""Searches the outputs of a session's own run: request, words, number of hits."""


class Tools(Toolbox, Protocol):
    """A toolbox that can be offered to a model."""

    async def open(self) -> None:
        """Make the tools ready; raises `SessionFailed` when the session cannot have what its role names."""
        ...

    async def aclose(self) -> None:
        """Let go of what `open` began, also when it failed; nothing of it is left when this returns."""
        ...

    def offered(self) -> Sequence[ToolSpec]:
        """The tools of this session, always in the same order."""
        ...


class ToolsAround:
    """Somebody's tools as they are: whoever derives from it adds something before or behind a call."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def open(self) -> None:
        await self._tools.open()

    async def aclose(self) -> None:
        await self._tools.aclose()

    def offered(self) -> Sequence[ToolSpec]:
        return self._tools.offered()

    def mutates(self, name: str) -> bool:
        return self._tools.mutates(name)

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        return await self._tools.call(name, args)


def wrong_call(tools: Tools, name: str, args: JSON) -> str:
    """What is wrong with a call before it is made: there is no such tool, or it takes other arguments."""
    offered = {one.name: one for one in tools.offered()}
    if name not in offered and name in ROOT_TOOLS:
        return ""  # there is one, and calling it says who may
    if name not in offered:
        return f'there is no tool "{name}" here; there are {", ".join(offered) or "none"}'
    if not isinstance(args, dict):
        return "the arguments are not a JSON object"
    return misfits(offered[name].schema, args)


async def use(tools: Toolbox, name: str, args: Mapping[str, Any]) -> JSON:
    """Call a tool for an agent; whatever breaks in it is a `ToolFailed`."""
    try:
        return with_text_only(await tools.call(name, args))  # it may name files
    except FanfoldError:
        raise
    except Exception as error:
        _log.exception("the tool %s crashed", name)
        message = f"{name} broke: {type(error).__name__}: {str(error)[:MAX_CRASH_CHARS]}"
        raise ToolFailed("tool", "tool.crashed", message, "try it with other arguments") from error


class SessionTools:
    """The built-in tools of one session."""

    def __init__(
        self,
        request: SessionRequest,
        *,
        permissions: Permissions | None = None,
        runner: Runner | None = None,
        fetch: FetchTools | None = None,
        query: Query | None = None,
        published: PublishedFiles | None = None,
        artifacts: ArtifactFiles | None = None,
    ) -> None:
        self._request = request
        posture: Posture = "read_only" if request.role.read_only else "auto"
        given = permissions or Permissions("auto")
        self._permissions = given.narrowed(posture)
        self._reads = self._permissions.posture == "read_only"
        may_leave = self._reads and given.posture != "read_only" and self._is_listed(LEAVES_ARTIFACTS.name)
        self._leaves = artifacts if may_leave else None
        """Where a reader may leave files."""
        files = FileTools.of(request)
        edits = EditTools(request.workspace, files)
        search = SearchTools(request.workspace)
        self._calls: dict[str, Call] = {
            "read_file": lambda args: files.call("read_file", {"limit": READ_BYTES, **args}),
            "list_files": search.list_files,
            "search_files": search.search_files,
            "write_file": lambda args: files.call("write_file", args),
            "edit_file": edits.edit_file,
            "apply_patch": edits.apply_patch,
            "delete_file": lambda args: files.call("delete_file", args),
        }
        if artifacts is not None:
            for name in ARTIFACT_TOOLS:
                self._calls[name] = _or_elsewhere(name, artifacts, self._calls[name])
        if published is not None:
            for name in ("read_file", "list_files"):
                self._calls[name] = _or_elsewhere(name, published, self._calls[name])
        if runner is not None:
            commands = CommandTools(request, runner, self._permissions)
            self._calls |= {"run_command": commands.run_command, "read_output": commands.read_output}
        if fetch is not None:
            self._calls["fetch_url"] = fetch.fetch_url
        if query is not None:
            self._calls["query_workflow"] = _querying(request, query)
        leaves = {spec.name: spec for spec in (LEAVES_ARTIFACTS,) if self._leaves is not None}
        self._offered = tuple(leaves.get(spec.name, spec) for spec in SPECS if self._is_offered(spec))
        self._names = frozenset(spec.name for spec in self._offered)

    @classmethod
    def of(cls, request: SessionRequest) -> SessionTools:
        """The tools that a session's request allows by itself: files and searching."""
        return cls(request)

    async def open(self) -> None:
        """Files need no preparation, and what runs a command is made for the whole run."""

    async def aclose(self) -> None:
        """Nothing is held."""

    def offered(self) -> Sequence[ToolSpec]:
        return self._offered

    def mutates(self, name: str) -> bool:
        spec = BY_NAME.get(name)
        return spec is None or spec.mutates

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        try:
            return await self._call(name, args)
        except PermissionDenied as denied:
            raise ToolFailed("permission", denied.code, denied.message, denied.hint) from None
        except OSError as error:  # the disk is full, a file is somebody else's …
            raise ToolFailed("tool", "tool.io", f"{name}: {error.strerror or error}") from error

    async def _call(self, name: str, args: Mapping[str, Any]) -> JSON:
        if name in ROOT_TOOLS:
            message = f"{name} is for the session that a person talks to; a subagent delegates nothing"
            raise ToolFailed("permission", "permission_denied", message, "do the work in this session")
        leaves = self._leaves is not None and name == LEAVES_ARTIFACTS.name and self._leaves.has(args)
        if name not in self._names and not leaves:
            hint = f"there are {', '.join(spec.name for spec in self._offered)}"
            if name in self._calls and self.mutates(name) and self._reads:
                await self._permissions.check(self._action(name, args))
            raise ToolFailed("tool", "tool.unknown", f'there is no tool "{name}" here', hint)
        if self.mutates(name) and name != "run_command" and not leaves:  # which asks in its own words
            await self._permissions.check(self._action(name, args))
        return await self._calls[name](args)

    def _is_offered(self, spec: ToolSpec) -> bool:
        spec = BY_NAME[OFFERED_WITH.get(spec.name, spec.name)]
        by_name = self._leaves is not None and self._request.role.tools is not None
        leaves = by_name and spec.name == LEAVES_ARTIFACTS.name
        if spec.name not in self._calls or (spec.mutates and self._reads and not leaves):
            return False
        return self._is_listed(spec.name)

    def _is_listed(self, tool: str) -> bool:
        """Whether the role and the step list a tool; they list everything when they list nothing."""
        listed = self._request.role.tools
        return listed is None or tool in {ALIASES.get(name, name) for name in listed}

    def _action(self, name: str, args: Mapping[str, Any]) -> Action:
        argv = args.get("argv")
        where = " ".join(map(str, argv)) if isinstance(argv, list) else args.get("path", "a patch")
        return Action("write", f"{name} {where}", self._request.session_id, self._request.step)


def _or_elsewhere(name: str, elsewhere: PublishedFiles | ArtifactFiles, own: Call) -> Call:
    async def call(args: Mapping[str, Any]) -> JSON:
        return await (elsewhere.call(name, args) if elsewhere.has(args) else own(args))

    return call


def _querying(request: SessionRequest, query: Query) -> Call:
    async def call(args: Mapping[str, Any]) -> JSON:
        return await query(request, args["query"], args.get("k", 5))

    return call
